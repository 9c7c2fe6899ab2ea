"""Throughput: budgets, and intervals that are too wide to judge by."""

from __future__ import annotations

import dataclasses
import math

import pytest
from by_hand import FORK, SPAWN, W0, judged, question, run

from pytest_dataloader.checks import throughput
from pytest_dataloader.checks.asked import Runs, Throughput
from pytest_dataloader.checks.catalogue import BY_NAME
from pytest_dataloader.checks.finding import ERROR, WARNING, Finding, NotJudged
from pytest_dataloader.observe.facts import (
    TIMED,
    MakingFacts,
    PartFacts,
    RateFacts,
    RunFacts,
    RunRequest,
    StallFacts,
    StartupFacts,
    WorkerFacts,
)

MORE_WORKERS = (
    "Keep on the dataset, per worker, what one sample can use of the other's work. Then try more "
    "workers, and make whole batches at once in __getitems__."
)
READ_LESS = (
    "Read what a sample needs and no more: map a large file instead of loading it. Keep heavy "
    "imports and heavy work out of the top level of the main script, keep the dataset light, and "
    "pass persistent_workers=True."
)
NO_WORKERS = (
    "Use num_workers=0 where the work is this light, or make batches larger so that each trip "
    "carries more. Otherwise remove what the workers wait for."
)


# A batch whose samples sleep, and one whose collate function computes.
SLEEPS = MakingFacts(8, PartFacts(0.0804, 0.0004, 0.0, 0.08), PartFacts(1e-4, 1e-4, 0.0, 0.0))
COLLATES = MakingFacts(8, PartFacts(0.01, 0.01, 0.0, 0.0), PartFacts(0.2, 0.1, 0.08, 0.02))
WAITS_SIDE_BY_SIDE = (
    "Fetching waits more than it computes, and workers wait side by side: raise num_workers and "
    "prefetch_factor, or read fewer and larger pieces from a nearer place. "
)


def timed(config, step_ms=None, budget=None):
    return RunRequest(config, purpose=TIMED, seconds=3.0, step_ms=step_ms, budget=budget)


def rate(per_s, low=None, high=None, samples=400):
    low, high = low or per_s * 0.9, high or per_s * 1.1
    return RateFacts(100, samples, 2.0, per_s, low, high, None, 10)


def pass_of(config, found, why=None):
    return RunFacts(timed(config), "warm", "ok", rate=found, no_rate_reason=why)


def said(asked, *facts, config=SPAWN):
    """What is said of facts, whose timed passes are those that were asked for."""
    alone = not asked.min_samples_per_s and not asked.min_speedup
    passes = timed(config, budget=asked.min_batches_per_s if alone else None)
    facts = [
        dataclasses.replace(f, request=passes) if f.request == timed(config) else f for f in facts
    ]
    return judged(asked, question(config), facts)


# What is run -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "requests"),
    [
        (Throughput(), []),
        (Throughput(max_startup_s=1), []),
        (Throughput(min_batches_per_s=1), [timed(SPAWN, budget=1)]),
        (Throughput(min_batches_per_s=1, min_samples_per_s=1), [timed(SPAWN)]),
        (Throughput(min_batches_per_s=1, min_speedup=1), [timed(SPAWN), timed(W0)]),
        (Throughput(min_samples_per_s=1), [timed(SPAWN)]),
        (Throughput(min_speedup=1), [timed(SPAWN), timed(W0)]),
        (Throughput(step_ms=20, max_stall=0.1), [timed(SPAWN, 20)]),
    ],
)
def test_what_is_run(asked, requests) -> None:
    assert throughput.needs(asked, question()) == [*requests, RunRequest(SPAWN)]


# slow --------------------------------------------------------------------------------------------


def test_slow_batches() -> None:
    assert said(Throughput(min_batches_per_s=60), pass_of(SPAWN, rate(50, 45, 55))) == [
        Finding(
            "slow",
            ERROR,
            (SPAWN,),
            "dataset",
            "expected at least 60 batches/s in the steady state, got 50 batches/s (95 % interval "
            "45 to 55) over 100 batches under spawn-w2",
            MORE_WORKERS,
        )
    ]


def test_slow_samples() -> None:
    [finding] = said(Throughput(min_samples_per_s=250), pass_of(SPAWN, rate(50, 45, 55)))
    assert finding.message == (
        "expected at least 250 samples/s in the steady state, got 200 samples/s (95 % interval 180 "
        "to 220) over 100 batches under spawn-w2"
    )


@pytest.mark.parametrize("budget", [10, 50])
def test_a_rate_that_keeps_its_budget_says_nothing(budget) -> None:
    assert said(Throughput(min_batches_per_s=budget), pass_of(SPAWN, rate(50))) == []
    assert said(Throughput(min_samples_per_s=4 * budget), pass_of(SPAWN, rate(50))) == []


@pytest.mark.parametrize(("high", "shown"), [(55, "55"), (math.inf, "inf")])
def test_a_budget_inside_the_interval_is_not_judged(high, shown) -> None:
    assert said(Throughput(min_batches_per_s=55), pass_of(SPAWN, rate(50, 45, high))) == [
        NotJudged(
            "at least 55 batches/s expected, got 50 batches/s (95 % interval 45 to "
            f"{shown}): too noisy to tell"
        )
    ]


def test_no_rate_is_not_judged() -> None:
    asked = Throughput(min_batches_per_s=60, min_samples_per_s=60)
    assert said(asked, pass_of(SPAWN, None, "a rate needs 3 batches")) == [
        NotJudged("batches per second: a rate needs 3 batches"),
        NotJudged("samples per second: a rate needs 3 batches"),
    ]
    assert said(asked, pass_of(FORK, rate(1))) == [
        NotJudged("batches per second: there was no timed pass"),
        NotJudged("samples per second: there was no timed pass"),
    ]


def test_samples_that_cannot_be_counted_are_not_judged() -> None:
    asked = Throughput(min_samples_per_s=60)
    assert said(asked, pass_of(SPAWN, rate(50, samples=None))) == [
        NotJudged("samples per second: the size of a batch is not known")
    ]


def test_large_rates_are_told_as_people_read_them() -> None:
    [finding] = said(Throughput(min_batches_per_s=1e6), pass_of(SPAWN, rate(22791.3, 2e4, 34567)))
    assert finding.message == (
        "expected at least 1,000,000 batches/s in the steady state, got 22,790 batches/s (95 % "
        "interval 20,000 to 34,570) over 100 batches under spawn-w2"
    )


def test_a_slow_pipeline_with_its_measured_cause() -> None:
    found = dataclasses.replace(rate(50), wait_p50_s=0.001, wait_p99_s=0.4)
    base = run(SPAWN, making=SLEEPS, pickle_s=0.0002)
    [finding] = said(Throughput(min_batches_per_s=60), pass_of(SPAWN, found), base)
    assert finding.culprit == "dataset"
    assert finding.message == (
        "expected at least 60 batches/s in the steady state, got 50 batches/s (95 % interval 45 to "
        "55) over 100 batches under spawn-w2; for a batch a worker takes: fetch 80 ms, collate 0.1 "
        "ms, transfer 0.2 ms, and the fetch is I/O-bound (0% computing, 100% waiting); most waits "
        "are short and some long (p50 1 ms, p99 400 ms)"
    )
    assert finding.advice == WAITS_SIDE_BY_SIDE + MORE_WORKERS


@pytest.mark.parametrize(
    ("headspace", "budget", "words"),
    [
        (5000.0, 60, "; with its batches in memory this loader gives 5,000 batches/s"),
        (55.0, 60, "; even with its batches in memory this loader gives only 55 batches/s"),
    ],
)
def test_a_slow_pipeline_with_its_headspace(headspace, budget, words) -> None:
    found = dataclasses.replace(rate(50), headspace=headspace)
    [finding] = said(Throughput(min_batches_per_s=budget), pass_of(SPAWN, found))
    assert finding.message.endswith(f"over 100 batches under spawn-w2{words}")


# stalls ------------------------------------------------------------------------------------------

STALL = Throughput(step_ms=20, max_stall=0.1)


def stalled(share, low, high, config=SPAWN):
    stall = StallFacts(20, share, low, high, 120, 3.0, 10, 0.02, 0.03)
    return RunFacts(timed(config, 20), "warm", "ok", stall=stall)


def test_stalls() -> None:
    base = run(SPAWN, making=COLLATES)
    assert said(STALL, stalled(0.5, 0.45, 0.55), base) == [
        Finding(
            "stalls",
            ERROR,
            (SPAWN,),
            "loader.collate_fn",
            "expected a loop that is busy for 20 ms a batch to wait at most 0.1 of its time, got "
            "0.5 (95 % interval 0.45 to 0.55) over 120 batches under spawn-w2; for a batch a "
            "worker takes: fetch 10 ms, collate 200 ms, and the collate is CPU-bound (83% "
            "computing, 17% waiting) besides 40% of its time in line for a CPU",
            BY_NAME["stalls"].mend,
        )
    ]


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_a_loop_that_waits_little_says_nothing(share) -> None:
    assert said(STALL, stalled(share, 0.0, 0.3)) == []


def test_a_share_whose_budget_is_inside_the_interval_is_not_judged() -> None:
    assert said(STALL, stalled(0.2, 0.1, 0.3)) == [
        NotJudged(
            "a loop that is busy for 20 ms a batch: to wait at most 0.1 of its time expected, got "
            "0.2 (95 % interval 0.1 to 0.3): too noisy to tell"
        )
    ]


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ([], "there was no timed pass"),
        (
            [RunFacts(timed(SPAWN, 20), "warm", "hung", no_rate_reason="the timed pass hung")],
            "the timed pass hung",
        ),
    ],
)
def test_no_share_is_not_judged(facts, why) -> None:
    assert said(STALL, *facts) == [NotJudged(f"the time that a step waits: {why}")]


# slow-start --------------------------------------------------------------------------------------


def test_slow_start() -> None:
    assert said(Throughput(max_startup_s=2), run(SPAWN, startup_s=3.456)) == [
        Finding(
            "slow-start",
            ERROR,
            (SPAWN,),
            "dataset",
            "expected the first batch within 2 s, got it after 3.46 s",
            READ_LESS,
        )
    ]


def test_a_slow_start_of_a_new_interpreter_with_its_parts() -> None:
    parts = StartupFacts(1.5, 3.25, 0.001, 0.0, 0.05, 0.01, ("mypackage.heavy", 3.2))
    [finding] = said(Throughput(max_startup_s=2), run(SPAWN, startup_s=4.9, startup=parts))
    assert finding.culprit == "mypackage.heavy"
    assert finding.message == (
        "expected the first batch within 2 s, got it after 4.9 s: interpreter, torch and main "
        "module 1.5 s, imports (slowest mypackage.heavy, 3.2 s) 3.2 s, unpickling 0.001 s, making "
        "the batch 0.05 s, bringing it 0.01 s"
    )


def test_a_slow_start_of_a_forked_worker_with_its_parts() -> None:
    worker = WorkerFacts(0, 1, 0, ready_s=0.02, first_batch_s=3.02)
    [finding] = said(Throughput(max_startup_s=2), run(SPAWN, startup_s=3.1, workers=(worker,)))
    assert finding.message == (
        "expected the first batch within 2 s, got it after 3.1 s: a worker was ready after 0.02 s "
        "and made the batch in 3 s"
    )


@pytest.mark.parametrize(
    ("asked", "startup_s"), [(Throughput(max_startup_s=2), 2.0), (Throughput(), 60.0)]
)
def test_a_start_within_its_budget_or_without_one_says_nothing(asked, startup_s) -> None:
    assert said(asked, run(SPAWN, startup_s=startup_s)) == []


def test_a_budget_of_0_s_is_a_budget() -> None:
    [finding] = said(Throughput(max_startup_s=0), run(SPAWN, startup_s=0.5))
    assert finding.message == "expected the first batch within 0 s, got it after 0.5 s"


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ([], "there was no first batch"),
        ([run(SPAWN)], "there was no first batch"),
        ([run(SPAWN, start="warm", startup_s=60.0)], "the run had a warm start"),
    ],
)
def test_no_true_first_batch_is_not_judged(facts, reason) -> None:
    assert said(Throughput(max_startup_s=2), *facts) == [
        NotJudged(f"seconds to the first batch: {reason}")
    ]


# no-speedup --------------------------------------------------------------------------------------

DOUBLE = Throughput(min_speedup=2)


def test_no_speedup() -> None:
    assert said(DOUBLE, pass_of(SPAWN, rate(60)), pass_of(W0, rate(50))) == [
        Finding(
            "no-speedup",
            ERROR,
            (SPAWN,),
            "dataset",
            "expected a speed-up of at least 2 over 0 workers, got 1.2 (60 against 50 batches/s)",
            NO_WORKERS,
        )
    ]


def test_enough_speedup_says_nothing() -> None:
    assert said(DOUBLE, pass_of(SPAWN, rate(100)), pass_of(W0, rate(50))) == []


def test_without_workers_there_is_no_speedup_to_judge() -> None:
    assert said(DOUBLE, pass_of(W0, rate(50)), config=W0) == []


def test_a_speedup_that_may_be_enough_is_not_judged() -> None:
    facts = (pass_of(SPAWN, rate(90, 80, 100)), pass_of(W0, rate(50, 40, 60)))
    assert said(DOUBLE, *facts) == [
        NotJudged(
            "a speed-up of at least 2 over 0 workers expected, got 1.8 (at most 2.5): too noisy to "
            "tell"
        )
    ]


@pytest.mark.parametrize(
    "facts",
    [
        [pass_of(SPAWN, rate(1))],
        [pass_of(W0, rate(50))],
        [pass_of(SPAWN, None), pass_of(W0, rate(50))],
    ],
)
def test_a_speedup_over_nothing_is_not_judged(facts) -> None:
    assert said(DOUBLE, *facts) == [
        NotJudged("speed-up over 0 workers: there is no rate for one of the two")
    ]


HEAVY = {"pickle_s": 0.03, "pickle_bytes": 900_000, "batch_cpu_s": 0.05}


def transferred(**facts):
    return judged(Runs(), question(SPAWN), [run(SPAWN, **facts)])


def test_a_batch_that_is_mostly_pickled() -> None:
    assert transferred(**HEAVY) == [
        Finding(
            "slow-transfer",
            WARNING,
            (SPAWN,),
            "batch",
            "expected at most 40% of a worker's time a batch to go into sending it, but pickling "
            "its 900,000 bytes takes 30 ms of 50 ms, and the process that trains has to unpickle "
            "them",
            BY_NAME["slow-transfer"].mend,
        )
    ]


@pytest.mark.parametrize(
    "lighter",
    [
        {"pickle_s": 0.009},
        {"pickle_bytes": 63},
        {"batch_cpu_s": 0.2},
        {"batch_cpu_s": 0.001},
        {"batch_cpu_s": None},
        {"pickle_s": None},
    ],
    ids=str,
)
def test_a_batch_that_is_quickly_sent_or_only_noise(lighter) -> None:
    assert transferred(**(HEAVY | lighter)) == []
