"""Passes over one loader again, run for real: early breaks, and two iterators at once."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info

from pytest_dataloader.checks.asked import Complete
from pytest_dataloader.checks.evidence import Question
from pytest_dataloader.judge import judge
from pytest_dataloader.matrix import LoaderConfig
from pytest_dataloader.observe.observer import Observer
from pytest_dataloader.pipeline import Pipeline

needs_fork = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="fork is not available here"
)
needs_forkserver = pytest.mark.skipif(
    "forkserver" not in multiprocessing.get_all_start_methods(),
    reason="forkserver is not available here",
)
W0 = LoaderConfig(None, 0)
FORK = LoaderConfig("fork", 2)
SPAWN = LoaderConfig("spawn", 2)
FORKSERVER = LoaderConfig("forkserver", 2)
WITH_WORKERS = [
    pytest.param(FORK, marks=needs_fork),
    SPAWN,
    pytest.param(FORKSERVER, marks=needs_forkserver),
]
LEFT = (
    "expected each of the 12 samples once after an epoch that was left at 6 samples, got 6 "
    "samples, 6 never came; {} keeps the position of an iterator"
)


class Rows(Dataset[float]):
    def __init__(self, augment: bool = False) -> None:
        self.augment = augment

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> float:
        return index + (random.random() if self.augment else 0)


def _mine() -> range:
    """This worker's share of the numbers."""
    info = get_worker_info()
    return range(info.id if info else 0, 12, info.num_workers if info else 1)


class Local(IterableDataset[int]):
    """Sound: the position is the iterator's own."""

    def __iter__(self) -> Iterator[int]:
        yield from _mine()


class Cached(Local):
    """Sound: what it keeps is not its position."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}
        self.calls = 0

    def __iter__(self) -> Iterator[int]:
        self.calls += 1
        for number in _mine():
            yield self.seen.setdefault(number, number)


class Augmented(Local):
    """Sound: other samples in each epoch, but as many."""

    def __iter__(self) -> Iterator[Any]:
        for number in _mine():
            yield number + random.random()


class Sampled(Local):
    """Sound: each epoch has as many samples as it draws."""

    def __iter__(self) -> Iterator[int]:
        for number in _mine():
            if random.random() < 0.5:
                yield number


class Positioned(IterableDataset[int]):
    """Keeps its position on itself, and begins from it."""

    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> Iterator[int]:
        mine = _mine()
        while self.position < len(mine):
            self.position += 1
            yield mine[self.position - 1]
        self.position = 0


class Itself(IterableDataset[int]):
    """Is its own iterator."""

    def __iter__(self) -> Itself:
        self.numbers = iter(_mine())
        return self

    def __next__(self) -> int:
        return next(self.numbers)


class GoesOn(Sampler[int]):
    """A sampler that goes on where the last iterator stopped."""

    def __init__(self) -> None:
        self.at = 0

    def __len__(self) -> int:
        return 12

    def __iter__(self) -> Iterator[int]:
        while self.at < 12:
            self.at += 1
            yield self.at - 1
        self.at = 0


SOUND = {
    "rows": lambda: DataLoader(Rows(), batch_size=2, shuffle=True),
    "augmented rows": lambda: DataLoader(Rows(augment=True), batch_size=2, shuffle=True),
    "drop_last": lambda: DataLoader(Rows(), batch_size=5, shuffle=True, drop_last=True),
    "local": lambda: DataLoader(Local(), batch_size=2),
    "cached": lambda: DataLoader(Cached(), batch_size=2),
    "augmented": lambda: DataLoader(Augmented(), batch_size=2),
    "sampled": lambda: DataLoader(Sampled(), batch_size=2),
    "no batches": lambda: DataLoader(Local(), batch_size=None),
    "one batch": lambda: DataLoader(Local(), batch_size=12),
    "empty": lambda: DataLoader(Rows(), batch_size=2, sampler=[]),
}


@pytest.fixture(scope="module")
def observer() -> Iterator[Observer]:
    made = Observer(timeout_s=30)
    yield made
    made.close()


def told(
    observer: Observer, make: Any, config: LoaderConfig = W0
) -> list[tuple[str, str, str, str]]:
    pipeline = Pipeline(repr(make), make_loader=make)
    about = Question(config, (W0, config))
    seen = judge(pipeline, about, (Complete(),), observer, timed=False, one_family=True)
    return [(f.code, f.severity, f.culprit, f.message) for f in seen.findings]


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_pipeline_is_clean(observer: Observer, name: str) -> None:
    assert told(observer, SOUND[name]) == []


def busy(num_workers: int) -> Any:
    """Persistent workers that make batches ahead and out of order."""
    more: dict[str, Any] = {"persistent_workers": True, "prefetch_factor": 4, "in_order": False}
    more = more if num_workers else {}
    return DataLoader(Local(), batch_size=2, num_workers=num_workers, **more)


def busy_rows(num_workers: int) -> Any:
    more: dict[str, Any] = {"persistent_workers": True, "prefetch_factor": 4, "in_order": False}
    more = more if num_workers else {}
    return DataLoader(Rows(augment=True), shuffle=True, num_workers=num_workers, **more)


@pytest.mark.parametrize("config", WITH_WORKERS, ids=str)
@pytest.mark.parametrize("make", [busy, busy_rows])
def test_sound_persistent_workers(observer: Observer, make: Any, config: LoaderConfig) -> None:
    assert told(observer, make, config) == []


def test_a_position_on_the_dataset(observer: Observer) -> None:
    assert told(observer, lambda: DataLoader(Positioned(), batch_size=2)) == [
        ("lost-samples", "error", "dataset.position", LEFT.format("dataset.position"))
    ]


def persistent(num_workers: int) -> Any:
    return DataLoader(
        Positioned(), batch_size=2, num_workers=num_workers, persistent_workers=num_workers > 0
    )


def fresh_workers(num_workers: int) -> Any:
    return DataLoader(Positioned(), batch_size=2, num_workers=num_workers)


@pytest.mark.parametrize("config", WITH_WORKERS, ids=str)
def test_a_position_in_persistent_workers(observer: Observer, config: LoaderConfig) -> None:
    assert told(observer, persistent, config) == [
        ("lost-samples", "error", "dataset.position", LEFT.format("dataset.position"))
    ]


@pytest.mark.parametrize("config", WITH_WORKERS, ids=str)
def test_workers_that_start_afresh_have_no_position(
    observer: Observer, config: LoaderConfig
) -> None:
    assert told(observer, fresh_workers, config) == []


def test_a_dataset_that_is_its_own_iterator(observer: Observer) -> None:
    assert told(observer, lambda: DataLoader(Itself(), batch_size=2)) == [
        (
            "lost-samples",
            "warning",
            "dataset.numbers",
            (
                "expected each of the 12 samples once from the first of two iterators at once, got "
                "2 samples, 10 never came; dataset.numbers keeps the position of an iterator"
            ),
        )
    ]


def test_a_sampler_that_goes_on(observer: Observer) -> None:
    assert told(observer, lambda: DataLoader(Rows(), batch_size=2, sampler=GoesOn())) == [
        ("lost-samples", "error", "loader.sampler.at", LEFT.format("loader.sampler.at"))
    ]
