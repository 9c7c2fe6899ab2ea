"""What the workers' notes say of handles and threads."""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import Dataset

from pytest_dataloader.matrix import LoaderConfig
from pytest_dataloader.observe.facts import HandleFacts, RunFacts, RunRequest, ThreadFacts
from pytest_dataloader.observe.forking import shared_handles, worker_threads
from pytest_dataloader.observe.observer import Observer
from pytest_dataloader.pipeline import Pipeline

needs_fork = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="fork is not available here"
)


def note(pid, **handles):
    return {
        "kind": "handles",
        "pid": pid,
        "handles": {f"dataset.{k}": v for k, v in handles.items()},
    }


def test_a_handle_that_a_worker_still_has_and_moves() -> None:
    told = [note(1, f=[7, "an open file", 0]), note(1, f=[7, "an open file", 80])]
    assert shared_handles(told) == (HandleFacts("dataset.f", "an open file", moved=True),)


def test_a_handle_that_stays_where_it_was() -> None:
    told = [note(1, f=[7, "an open file", 0]), note(1, f=[7, "an open file", 0])]
    assert shared_handles(told) == (HandleFacts("dataset.f", "an open file", moved=False),)


def test_one_moving_worker_is_enough() -> None:
    still, moved = [7, "an open file", 0], [7, "an open file", 9]
    told = [note(1, f=still), note(2, f=still), note(1, f=still), note(2, f=moved)]
    assert shared_handles(told) == (HandleFacts("dataset.f", "an open file", moved=True),)


def test_a_handle_that_is_opened_anew_is_not_shared() -> None:
    told = [note(1, f=[7, "an open file", 0]), note(1, f=[8, "an open file", 80])]
    assert shared_handles(told) == ()


def test_a_handle_that_was_not_there_at_the_start_is_the_workers_own() -> None:
    told = [note(1), note(1, f=[8, "an open file", 0]), note(1, f=[8, "an open file", 80])]
    assert shared_handles(told) == ()


def test_a_worker_that_made_no_batch_tells_nothing() -> None:
    assert shared_handles([note(1, f=[7, "an open file", 0])]) == ()


def test_threads_are_told_once() -> None:
    told = [{"kind": "batch", "threads": ["a (run at x.py:1)"]}, {"kind": "batch"}]
    assert worker_threads(told * 2) == ("a (run at x.py:1)",)


# Threads, in forked workers ----------------------------------------------------------------------


class Pooled(Dataset[int]):
    """Had a pool before the fork, and does without it, or makes it anew in each process."""

    def __init__(self, *, anew: bool) -> None:
        self.anew = anew
        self.start()

    def start(self) -> None:
        self.pid = os.getpid()
        self.pool = concurrent.futures.ThreadPoolExecutor(1, "pool")
        self.zero = self.pool.submit(int).result()

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if self.anew and self.pid != os.getpid():
            self.start()
        return index if self.pool is not None else -1


class Feeder:
    def __init__(self) -> None:
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.stop.wait, name="feeder", daemon=True)
        self.thread.start()


class Fed(Dataset[int]):
    def __init__(self) -> None:
        self.feeder = Feeder()
        self.other = Feeder()

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index + self.feeder.stop.is_set()


@contextlib.contextmanager
def forked(dataset: Any) -> Iterator[RunFacts]:
    observer = Observer(timeout_s=30)
    try:
        pipeline = Pipeline("threads", dataset=dataset, loader_kwargs={"batch_size": 2})
        yield observer.observe(pipeline, RunRequest(LoaderConfig("fork", 1)))
    finally:
        observer.close()


@needs_fork
@pytest.mark.parametrize("anew", [True, False])
def test_a_pool_is_gone_in_workers_unless_it_is_made_anew(anew: bool) -> None:
    dataset = Pooled(anew=anew)
    with dataset.pool, forked(dataset) as facts:
        (pool,) = (t for t in facts.live_threads if t.path)
    assert pool == ThreadFacts(
        "pool_0",
        "concurrent.futures.thread._worker",
        "dataset.pool",
        "a ThreadPoolExecutor",
        used=True,
        gone=not anew,
    )


@needs_fork
def test_threads_are_told_by_path_and_by_their_use_in_making_samples() -> None:
    dataset = Fed()
    with forked(dataset) as facts:
        held = [t for t in facts.live_threads if t.path]
    dataset.feeder.stop.set()
    dataset.other.stop.set()
    assert [(t.path, t.used, t.gone, t.runs) for t in held] == [
        ("dataset.feeder.thread", True, True, "threading.Event.wait"),
        ("dataset.other.thread", False, True, "threading.Event.wait"),
    ]
    assert facts.held_locks == ()


class SelfFed(Dataset[int]):
    """Starts a thread and keeps no hold of it."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        threading.Thread(target=self.feed, name="feed", daemon=True).start()

    def feed(self) -> None:
        self.stop.wait()

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index + self.stop.is_set()


@needs_fork
def test_a_thread_that_runs_a_method_of_the_dataset() -> None:
    dataset = SelfFed()
    with forked(dataset) as facts:
        told = [t for t in facts.live_threads if t.path]
    dataset.stop.set()
    line = SelfFed.feed.__code__.co_firstlineno
    assert told == [
        ThreadFacts(
            "feed",
            f"{__file__}:{line}",
            "dataset.feed",
            used=True,
            gone=True,
            anonymous=True,
        )
    ]


@needs_fork
def test_threads_that_nothing_holds_and_threads_of_tools() -> None:
    stop = threading.Event()
    for name in ("server", "pytest_timeout test_it"):
        threading.Thread(target=stop.wait, name=name, daemon=True).start()
    with forked(range(8)) as facts:
        told = [(t.name, t.path) for t in facts.live_threads]
    stop.set()
    assert ("server", None) in told
    assert "pytest_timeout test_it" not in [name for name, _ in told]
