"""Evidence: requests of a question, what it is compared with, and how places are written."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from by_hand import (
    FORK,
    MATRIX,
    SPAWN,
    W0,
    epochs_run,
    error,
    other_in_worker,
    question,
    run,
    sampled,
)

from pytest_dataloader.checks.evidence import (
    Evidence,
    causes,
    place,
    quoted,
    samples_of,
    shown_path,
    told_cause,
)
from pytest_dataloader.matrix import LoaderConfig
from pytest_dataloader.observe.facts import CONTENT, IMPORT, RAISED, SCRIPT, TIMED, RunRequest

# Questions ---------------------------------------------------------------------------------------


def test_the_base_run_has_the_first_seed() -> None:
    about = question(seeds=(7, 8))
    assert about.base() == RunRequest(SPAWN, seed=7, repeat=0, purpose=CONTENT)
    assert about.base(W0) == RunRequest(W0, seed=7)


def test_a_timed_pass_of_some_seconds() -> None:
    about = question(seeds=(7, 8))
    assert about.timed() == RunRequest(SPAWN, seed=7, purpose=TIMED, seconds=0.5)
    assert about.timed(3.0, W0) == RunRequest(W0, seed=7, purpose=TIMED, seconds=3.0)


def test_a_run_of_three_epochs() -> None:
    about = question(seeds=(7, 8))
    assert about.epochs() == RunRequest(SPAWN, seed=7, repeat=1, epochs=3)
    assert about.epochs(W0) == RunRequest(W0, seed=7, repeat=1, epochs=3)


def test_runs_of_several_epochs_count_if_they_came_to_their_end() -> None:
    def evidence(**facts: object) -> Evidence:
        runs = [epochs_run(config, (1,), (2,), **facts) for config in (SPAWN, W0)]
        return Evidence(question(), {facts.request: facts for facts in runs})

    sound = evidence()
    assert sound.epochs is sound.get(question().epochs())
    assert sound.epochs_in_process is sound.get(question().epochs(W0))
    for unsound in (evidence(outcome=RAISED), evidence(epochs=(sampled(1),))):
        assert (unsound.epochs, unsound.epochs_in_process) == (None, None)


def test_the_samples_of_an_epoch_whatever_their_order() -> None:
    assert samples_of(sampled(1, 2, 2)) == samples_of(sampled(2, 1, 2)) != samples_of(sampled(1, 2))
    unknown = replace(sampled(1, 2), sample_ids=None)
    assert samples_of(unknown) == unknown.batch_multiset


def test_a_script_is_the_same_run_for_every_number_of_workers() -> None:
    request = RunRequest(
        LoaderConfig("spawn", None), purpose=SCRIPT, script="train.py", args=("--fast",)
    )
    for workers in (2, 4, None):
        about = question(LoaderConfig("spawn", workers), seeds=(7,))
        assert about.script("train.py", ("--fast",)) == request


def test_imports_are_the_same_run_for_every_configuration() -> None:
    request = RunRequest(LoaderConfig("spawn", None), purpose=IMPORT)
    assert {question(config).imports() for config in MATRIX} == {request}


@pytest.mark.parametrize(
    ("config", "matrix", "reference"),
    [
        (SPAWN, (W0, FORK, SPAWN), FORK),
        (FORK, (W0, SPAWN, FORK), SPAWN),
        (FORK, (W0, FORK, SPAWN), None),
        (W0, (W0, FORK, SPAWN), None),
        (SPAWN, (LoaderConfig("fork", 4), SPAWN), None),
        (SPAWN, (LoaderConfig("fork", 4), FORK, SPAWN), FORK),
        (replace(SPAWN, pin_memory=True), (FORK, replace(SPAWN, pin_memory=True)), None),
        (LoaderConfig("spawn", None), (LoaderConfig("fork", None),), LoaderConfig("fork", None)),
    ],
)
def test_the_reference_is_the_first_start_method_with_the_same_other_axes(
    config, matrix, reference
) -> None:
    assert question(config, matrix=matrix).reference == reference


def test_what_the_platform_lacks_is_no_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pytest_dataloader.matrix.available_start_methods", lambda: ("spawn", "forkserver")
    )
    forkserver = LoaderConfig("forkserver", 2)
    about = question(forkserver, matrix=(W0, FORK, SPAWN, forkserver))
    assert about.reference == SPAWN
    assert about.with_workers == SPAWN


def test_the_first_configuration_with_workers() -> None:
    assert question(W0).with_workers == FORK
    assert question(W0, matrix=(W0,)).with_workers is None


# Evidence ----------------------------------------------------------------------------------------


def test_content_runs_of_the_configuration_stand_by_seed_and_repeat() -> None:
    base = run(SPAWN)
    in_order = [base, run(SPAWN, 0, 1), run(SPAWN, 1), run(SPAWN, 1, 1)]
    timed = replace(base, request=replace(base.request, purpose=TIMED))
    facts = [*reversed(in_order), run(FORK), run(W0), timed]
    evidence = Evidence(question(), {one.request: one for one in facts})
    assert evidence.contents == in_order
    assert evidence.base is base


def test_what_was_not_run_is_none() -> None:
    evidence = Evidence(question(), {})
    assert evidence.base is None
    assert evidence.get(RunRequest(W0)) is None
    assert evidence.contents == []


def test_causes_are_what_the_worker_s_code_uses() -> None:
    world = tuple(other_in_worker(f"words.{r}", "1", "2", rank=r) for r in range(5))
    assert causes(run(SPAWN, world=world)) == list(world[:3])
    assert causes(run(SPAWN)) == []
    assert causes(None) == []


def test_a_cause_in_words() -> None:
    cause = other_in_worker("words.SCALE", "2.0", "1.0")
    assert told_cause(cause) == ("words.SCALE is 2.0 in the test process and 1.0 in the worker")


# Places ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("{here}/src/words.py:31", "src/words.py:31"),
        ("{here}/src/words.py", "src/words.py"),
        ("src/words.py:31", "src/words.py:31"),
        ("/elsewhere/words.py:31", "/elsewhere/words.py:31"),
        ("/elsewhere/odd:name.py", "/elsewhere/odd:name.py"),
    ],
)
def test_a_path_is_relative_to_the_working_directory_where_it_lies_below_it(
    path, shown, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown_path(path.format(here=os.getcwd())) == shown


def test_an_error_without_a_file_has_no_place() -> None:
    assert place(error("iterate", "KeyError", "'x'")) is None


@pytest.mark.parametrize(
    ("more", "where"),
    [
        ({}, " at /project/words.py:31"),
        ({"function": "<module>"}, " at /project/words.py:31"),
        ({"function": "load"}, " in load at /project/words.py:31"),
        (
            {"function": "load", "source": "return 1 / 0"},
            " in load at /project/words.py:31, `return 1 / 0`",
        ),
    ],
)
def test_an_error_is_quoted_on_one_line(more, where) -> None:
    told = error("iterate", "ValueError", "bad record", "/project/words.py:31", **more)
    assert quoted(told) == f"ValueError: bad record{where}"


def test_an_error_without_a_message_or_a_place_is_quoted_by_its_type() -> None:
    assert quoted(error("iterate", "StopIteration", "")) == "StopIteration"
