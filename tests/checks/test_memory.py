"""Memory: budgets a worker, and batches that keep large storages alive."""

from __future__ import annotations

import dataclasses

import pytest
from by_hand import FORK, SPAWN, W0, batch, epoch, judged, question, run

from pytest_dataloader.checks import memory
from pytest_dataloader.checks.asked import Memory
from pytest_dataloader.checks.catalogue import BY_NAME
from pytest_dataloader.checks.finding import ERROR, INFO, WARNING, Finding, NotJudged
from pytest_dataloader.observe.facts import HUNG, GrowthFacts, WorkerFacts

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


# Growth ------------------------------------------------------------------------------------------

MIB = 2**20
LEAK = tuple(MIB * (100 + 3 * n) for n in range(8))
FLAT = tuple(MIB * 100 + (7 * n % 5) * 1_000 for n in range(8))
FILLING = tuple(int(MIB * (200 - 100 * 0.5**n)) for n in range(8))
SEEN = ("dataset.seen", tuple(64 * (n + 1) for n in range(8)))
CACHE = ("dataset.cache", (32, 46, 53, 56, 58, 61, 63, 64))
EPOCHS = ("dataset.history", tuple(range(1, 9)))


def grown(unique=FLAT, *sizes, worker=None, batches=16.0, **facts):
    return GrowthFacts(worker, unique, sizes, batches, **facts)


def of_growth(*growth, budget=None, config=W0, **facts):
    asked = Memory(max_growth_mb=budget)
    request = question(config).growth(2.0 if budget is None else 120.0)
    facts = {"request": request, "growth": growth, **facts}
    return judged(asked, question(config), [run(config), run(config, **facts)])


def test_growth_is_looked_at_under_one_start_method_unless_there_is_a_budget() -> None:
    def purposes(asked, config):
        return [r.purpose for r in memory.needs(asked, question(config))]

    for config in (W0, FORK):
        assert purposes(Memory(), config) == ["content", "growth"]
    assert purposes(Memory(), SPAWN) == ["content"]
    assert purposes(Memory(max_growth_mb=1), SPAWN) == ["content", "growth"]


def test_growth_over_the_budget() -> None:
    assert of_growth(grown(LEAK, SEEN), budget=2) == [
        Finding(
            "memory-growth",
            ERROR,
            (W0,),
            "dataset.seen",
            "expected at most 2 MiB more unique memory an epoch, got 3.00 MiB an epoch in the test "
            "process, over 8 epochs in one process, in which the size of dataset.seen grew from 64 "
            "to 512",
            BY_NAME["memory-growth"].mend,
        )
    ]


def test_growth_within_the_budget_is_information_where_its_cause_is_seen() -> None:
    assert [f.severity for f in of_growth(grown(LEAK, SEEN), budget=4)] == [INFO]
    assert of_growth(grown(FLAT), budget=4) == []


def test_growth_whose_cause_is_not_seen() -> None:
    (found,) = of_growth(grown(LEAK, CACHE, worker=1), config=FORK)
    assert (found.severity, found.culprit) == (WARNING, "dataset")
    assert found.message == (
        "expected at most 0 MiB more unique memory an epoch, got 3.00 MiB an epoch in worker 1, "
        "over 8 epochs in one process"
    )


def test_one_entry_a_sample_is_growth_whatever_it_weighs() -> None:
    (found,) = of_growth(grown(FLAT, SEEN))
    assert (found.severity, found.culprit) == (WARNING, "dataset.seen")


def test_growth_in_workers_that_end_with_the_epoch_is_information() -> None:
    (found,) = of_growth(grown(LEAK, SEEN, worker=0, lives_on=False), config=FORK)
    assert found.severity == INFO


def test_the_worst_process_is_told() -> None:
    quiet, loud = grown(FLAT, worker=0), grown(LEAK, worker=1)
    (found,) = of_growth(quiet, loud, config=FORK, budget=1)
    assert "in worker 1," in found.message


@pytest.mark.parametrize(
    "facts",
    [
        grown(FLAT),
        grown(FILLING, CACHE),
        grown(FLAT, EPOCHS),
        grown((*FLAT[:4], *(MIB * 150 for _ in range(4)))),
        grown(LEAK[:5]),
        grown((None,) * 8),
    ],
    ids=["flat", "a cache that fills", "one an epoch", "one step", "too few epochs", "untold"],
)
def test_no_growth(facts) -> None:
    assert of_growth(facts) == []


@pytest.mark.parametrize(
    ("growth", "facts", "reason"),
    [
        (grown(LEAK[:5]), {}, "5 of at least 7 epochs ended within 120 s"),
        (grown((None,) * 8), {}, "this platform does not tell it"),
        (
            grown(LEAK[:2]),
            {"outcome": HUNG},
            "the run over several epochs did not come to its end",
        ),
    ],
)
def test_growth_that_cannot_be_judged(growth, facts, reason) -> None:
    assert of_growth(growth, budget=1, **facts) == [NotJudged(f"growth of memory: {reason}")]


# What a fork shares ------------------------------------------------------------------------------

META = ("dataset.meta", "list", 400_000, 60 * MIB)


def grew_by(mib):
    return (WorkerFacts(worker_id=0, pid=10, exit_code=0, grown_bytes=mib * MIB),)


def test_a_container_of_very_many_objects_is_copied_by_looking_at_it() -> None:
    assert said(config=FORK, workers=grew_by(19), many_objects=(META,)) == [
        Finding(
            "copied-per-worker",
            WARNING,
            (FORK,),
            "dataset.meta",
            "expected forked workers to share dataset.meta, a list of 400,000 objects of about 60 "
            "MiB, but the unique memory of a worker grew by 19 MiB in one epoch: to look at a "
            "Python object writes its reference count, and that copies its page",
            BY_NAME["copied-per-worker"].mend,
        )
    ]


@pytest.mark.parametrize(
    ("mib", "container"),
    [(5, META), (30, ("dataset.words", "list", 100_000, 8 * MIB)), (60, None)],
)
def test_what_is_shared_or_small_is_no_finding(mib, container) -> None:
    facts = {"many_objects": (container,) if container else ()}
    assert said(config=FORK, workers=grew_by(mib), **facts) == []
