"""Memory passes, run for real: unique memory and sizes at the end of each epoch."""

from __future__ import annotations

import itertools
import multiprocessing
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, get_worker_info

from pytest_dataloader.checks.asked import Memory
from pytest_dataloader.checks.evidence import Question
from pytest_dataloader.diagnose import sizes
from pytest_dataloader.judge import Verdict, judge
from pytest_dataloader.matrix import LoaderConfig
from pytest_dataloader.observe.facts import GROWTH, RAISED, RunFacts, RunRequest
from pytest_dataloader.observe.observer import Observer
from pytest_dataloader.pipeline import Pipeline

W0 = LoaderConfig(None, 0)
FORK = LoaderConfig("fork", 2)
needs_fork = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="fork is not available here"
)


class Kept(Dataset[Any]):
    """Keeps all that it makes, or the first of each index."""

    def __init__(self, *, cache: bool = False) -> None:
        self.cache = cache
        self.kept: dict[Any, Any] = {}
        self.count = 0

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> Any:
        self.count += 1
        key = index if self.cache else self.count
        return self.kept.setdefault(key, torch.full((50_000,), float(index)))


class FailsLater(Dataset[int]):
    def __init__(self) -> None:
        self.made = 0

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        self.made += 1
        if self.made > 8:
            raise ValueError("a third epoch")
        return index


@pytest.fixture(scope="module")
def observer() -> Iterator[Observer]:
    made = Observer(timeout_s=60)
    yield made
    made.close()


def run(observer: Observer, config: LoaderConfig, make: Any, **facts: Any) -> RunFacts:
    request = RunRequest(config, **{"purpose": GROWTH, "seconds": 60, "epochs": 8, **facts})
    pipeline = Pipeline(make.__name__, make_dataset=make, loader_kwargs={"batch_size": 4})
    return observer.observe(pipeline, request)


def keeps_all() -> Kept:
    return Kept()


def keeps_each() -> Kept:
    return Kept(cache=True)


def verdict(observer: Observer, config: LoaderConfig, make: Any) -> Verdict:
    pipeline = Pipeline(make.__name__, make_dataset=make, loader_kwargs={"batch_size": 4})
    question = Question(config, (W0, FORK))
    return judge(pipeline, question, [Memory(max_growth_mb=1)], observer, timed=False)


def test_without_workers(observer: Observer) -> None:
    (growth,) = run(observer, W0, keeps_all).growth
    assert growth.worker_id is None
    assert growth.lives_on
    assert growth.batches_an_epoch == 8
    assert dict(growth.sizes)["dataset.kept"] == tuple(32 * n for n in range(1, 9))
    assert len(growth.unique_bytes) == 8


@needs_fork
def test_each_worker_is_told_of_as_if_the_epochs_were_one(observer: Observer) -> None:
    facts = run(observer, FORK, keeps_all)
    assert sorted(growth.worker_id or 0 for growth in facts.growth) == [0, 1]
    for growth in facts.growth:
        assert not growth.lives_on
        assert growth.batches_an_epoch == 4
        kept = dict(growth.sizes)["dataset.kept"]
        assert kept[-1] > kept[4] > kept[0]
        assert len(growth.unique_bytes) == 8


@pytest.mark.parametrize("config", [W0, pytest.param(FORK, marks=needs_fork)], ids=lambda c: c.id)
def test_a_leak_is_found_by_its_path_and_a_cache_is_none(
    observer: Observer, config: LoaderConfig
) -> None:
    (found,) = verdict(observer, config, keeps_all).findings
    assert (found.code, found.culprit) == ("memory-growth", "dataset.kept")
    if config.has_workers:  # this process's own memory may shrink by more than an epoch adds
        assert found.severity == "error"
    assert verdict(observer, config, keeps_each).findings == ()


@pytest.fixture
def crowded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of which a look at the globals takes longer than ten epochs do."""
    module = types.ModuleType("crowded_for_growth")
    module.__file__ = __file__
    for number in range(30_000):
        setattr(module, f"table_{number}", [number])
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(sizes, "_MOST_PARTS", 50_000)


@needs_fork
def test_very_many_globals_do_not_keep_a_dataset_from_being_looked_at(
    observer: Observer, crowded: None
) -> None:
    for growth in run(observer, FORK, keeps_all).growth:
        kept = dict(growth.sizes)["dataset.kept"]
        assert all(after > before for before, after in itertools.pairwise(kept))


def test_epochs_that_do_not_end_in_time_are_left_out(observer: Observer) -> None:
    facts = run(observer, W0, keeps_each, seconds=0.0)
    assert facts.ok
    assert facts.growth == ()


def test_a_run_that_fails_in_a_later_epoch_says_so(observer: Observer) -> None:
    facts = run(observer, W0, FailsLater)
    assert (facts.outcome, len(facts.growth[0].unique_bytes)) == (RAISED, 2)
    assert facts.error is not None
    assert facts.error.message == "a third epoch"


class Sees(Dataset[bool]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> bool:
        return get_worker_info() is not None


def test_a_pass_leaves_no_objects_frozen(observer: Observer) -> None:
    import gc

    run(observer, W0, Sees, epochs=1)
    assert gc.get_freeze_count() == 0
