"""The matrix: ids, axes and what a platform offers."""

from __future__ import annotations

import multiprocessing
import sys

import pytest
from hypothesis import given, strategies as st

from pytest_dataloader import matrix
from pytest_dataloader.matrix import (
    START_METHODS,
    LoaderConfig,
    available_start_methods,
    configurations,
    default_start_method,
    expand_start_methods,
    lacking,
)

yes_no_or_unsaid = st.lists(
    st.sampled_from([None, True, False]), min_size=1, max_size=3, unique=True
)
axes = st.tuples(
    st.lists(st.sampled_from([*START_METHODS, "all", "default"]), min_size=1, max_size=4),
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
    yes_no_or_unsaid,
    st.lists(st.sampled_from([None, 1, 2, 4]), min_size=1, max_size=3),
    yes_no_or_unsaid,
)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (LoaderConfig(None, 0), "w0"),
        (LoaderConfig("spawn", 2), "spawn-w2"),
        (LoaderConfig("fork", None), "fork"),
        (LoaderConfig("fork", 2, True), "fork-w2-persistent"),
        (LoaderConfig("fork", 2, False), "fork-w2-restarted"),
        (LoaderConfig("spawn", 1, None, 4, True), "spawn-w1-prefetch4-pinned"),
        (LoaderConfig(None, 0, pin_memory=False), "w0-unpinned"),
    ],
)
def test_ids(config: LoaderConfig, name: str) -> None:
    assert config.id == name
    assert str(config) == name


@given(axes)
def test_ids_are_unique_and_configurations_come_once(axes: tuple) -> None:
    configs = configurations(*axes)

    assert len({config.id for config in configs}) == len(configs)


@given(axes)
def test_no_workers_come_once_a_kind_of_memory_and_without_what_needs_workers(axes: tuple) -> None:
    without = [c for c in configurations(*axes) if not c.has_workers]

    wanted = dict.fromkeys(axes[4]) if 0 in axes[1] else {}
    assert without == [LoaderConfig(None, 0, pin_memory=pinned) for pinned in wanted]


@given(axes)
def test_each_combination_with_workers_is_there(axes: tuple) -> None:
    methods, counts, persistent, prefetch, pinned = axes
    got = {c for c in configurations(*axes) if c.has_workers}

    assert got == {
        LoaderConfig(method, count, keeps, ahead, pin)
        for method in expand_start_methods(methods)
        for count in counts
        if count
        for keeps in persistent
        for ahead in prefetch
        for pin in pinned
    }


def test_the_usual_matrix() -> None:
    assert [c.id for c in configurations(["fork", "spawn"], [0, 2])] == [
        "w0",
        "fork-w2",
        "spawn-w2",
    ]


def test_all_and_default_are_expanded_once_in_order() -> None:
    assert expand_start_methods(["spawn", "all"]) == ("spawn", "fork", "forkserver")
    assert expand_start_methods(["default", default_start_method()]) == (default_start_method(),)


def test_the_default_is_read_without_fixing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none: None)
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["forkserver", "spawn"])

    assert default_start_method() == "forkserver"


def test_what_the_platform_lacks_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    monkeypatch.setattr(sys, "platform", "win32")

    assert available_start_methods() == ("spawn",)
    assert lacking(LoaderConfig("fork", 2)) == "fork is not available on Windows"
    assert lacking(LoaderConfig("spawn", 2)) is None
    assert lacking(LoaderConfig(None, 0)) is None


@pytest.mark.parametrize(
    ("platform", "name"), [("linux", "Linux"), ("darwin", "macOS"), ("freebsd14", "freebsd14")]
)
def test_platforms_have_their_names(
    monkeypatch: pytest.MonkeyPatch, platform: str, name: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)

    assert matrix.platform_name() == name


def test_neighbours_of_a_configuration() -> None:
    config = LoaderConfig("fork", 2, True, 4, True)

    assert config.with_start_method("spawn") == LoaderConfig("spawn", 2, True, 4, True)
    assert config.without_workers() == LoaderConfig(None, 0, pin_memory=True)
