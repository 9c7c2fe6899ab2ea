"""Memory: budgets a worker, and batches that keep large storages alive."""

from __future__ import annotations

import dataclasses

from by_hand import SPAWN, W0, batch, epoch, judged, question, run

from pytest_dataloader.checks.asked import Memory
from pytest_dataloader.checks.catalogue import BY_NAME
from pytest_dataloader.checks.finding import ERROR, WARNING, Finding, NotJudged
from pytest_dataloader.observe.facts import WorkerFacts

WORKERS = (
    WorkerFacts(worker_id=0, pid=10, exit_code=0, unique_bytes=150 * 2**20),
    WorkerFacts(worker_id=1, pid=11, exit_code=0, unique_bytes=210 * 2**20),
)
UNTOLD = (WorkerFacts(worker_id=0, pid=10, exit_code=0),)


def said(budget=None, *, config=SPAWN, **facts):
    return judged(Memory(budget), question(config), [run(config, **facts)])


def test_memory_over_budget() -> None:
    assert said(200, workers=WORKERS) == [
        Finding(
            "memory-over-budget",
            ERROR,
            (SPAWN,),
            "dataset",
            "expected at most 200 MiB of unique memory a worker, got 210 MiB under spawn-w2",
            BY_NAME["memory-over-budget"].mend,
        )
    ]


def test_memory_within_budget_or_without_one() -> None:
    assert said(211, workers=WORKERS) == []
    assert said(None, workers=WORKERS) == []
    assert said(1, config=W0) == []


def test_memory_that_the_platform_does_not_tell() -> None:
    assert said(1, workers=UNTOLD) == [
        NotJudged("memory of the workers: this platform does not tell it")
    ]


def test_a_view_of_a_large_buffer() -> None:
    kept = dataclasses.replace(epoch(batch(1.0)), oversized=(("batch['clip']", 16, 4_096_000),))
    assert said(epochs=(kept,)) == [
        Finding(
            "view-of-large-buffer",
            WARNING,
            (SPAWN,),
            "batch['clip']",
            "expected batch['clip'] to bring little more than its 16 bytes of values, but it is a "
            "view that keeps a storage of 4,096,000 bytes alive",
            BY_NAME["view-of-large-buffer"].mend,
        )
    ]


def test_a_batch_of_its_own_size_is_no_finding() -> None:
    assert said(epochs=(epoch(batch(1.0)),)) == []
