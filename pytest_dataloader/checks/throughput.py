"""Throughput: budgets on the steady state, on the start, and on what workers are worth."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_dataloader.checks.asked import Throughput
from pytest_dataloader.checks.catalogue import BY_NAME
from pytest_dataloader.checks.evidence import Evidence, Question
from pytest_dataloader.checks.finding import ERROR, WARNING, Finding, NotJudged
from pytest_dataloader.observe.facts import RateFacts, RunRequest

BUDGET_SECONDS = 3.0
SLOW_PICKLE_S = 0.01
LARGE_PICKLE_BYTES = 128 * 1024
PICKLE_SHARE = 0.4


def needs(asked: Throughput, question: Question) -> list[RunRequest]:
    """A timed pass, one without workers for a speed-up, and the base run for the start."""
    requests = []
    if asked.min_batches_per_s or asked.min_samples_per_s or asked.min_speedup:
        requests.append(question.timed(BUDGET_SECONDS))
    if asked.min_speedup:
        requests.append(question.timed(BUDGET_SECONDS, question.config.without_workers()))
    return [*requests, question.base()]


def fast_enough(evidence: Evidence, asked: Throughput) -> Iterator[Finding | NotJudged]:
    """Batches and samples per second; fails only when the budget lies outside the interval."""
    budgets = (
        (asked.min_batches_per_s, "batches", lambda r: 1.0),
        (asked.min_samples_per_s, "samples", _samples_a_batch),
    )
    for budget, unit, factor_of in budgets:
        if budget is None:
            continue
        run = evidence.get(evidence.question.timed(BUDGET_SECONDS))
        rate = run.rate if run is not None else None
        if rate is None:
            why = run.no_rate_reason if run is not None else "there was no timed pass"
            yield NotJudged(f"{unit} per second: {why}")
            continue
        factor = factor_of(rate)
        if factor is None:
            yield NotJudged("samples per second: the size of a batch is not known")
            continue
        yield from _against(evidence, budget, rate, factor, unit)


def _samples_a_batch(rate: RateFacts) -> float | None:
    return rate.samples / rate.batches if rate.samples else None


def _against(
    evidence: Evidence, budget: float, rate: RateFacts, factor: float, unit: str
) -> Iterator[Finding | NotJudged]:
    value, low, high = (r * factor for r in (rate.batches_per_s, rate.low, rate.high))
    if value >= budget:
        return
    interval = f"{value:.4g} {unit}/s (95 % interval {low:.4g} to {high:.4g})"
    if high >= budget:
        yield NotJudged(f"at least {budget:g} {unit}/s expected, got {interval}: too noisy to tell")
        return
    message = (
        f"expected at least {budget:g} {unit}/s in the steady state, got {interval} over "
        f"{rate.batches} batches under {evidence.config.id}"
    )
    yield _error("slow", evidence, message)


def starts_fast_enough(evidence: Evidence, asked: Throughput) -> Iterator[Finding | NotJudged]:
    """Seconds from ``iter(loader)`` to the first batch, at a true start."""
    if asked.max_startup_s is None:
        return
    run = evidence.base
    if run is None or run.startup_s is None:
        yield NotJudged("seconds to the first batch: there was no first batch")
    elif run.start == "warm":
        yield NotJudged("seconds to the first batch: the run had a warm start")
    elif run.startup_s > asked.max_startup_s:
        message = (
            f"expected the first batch within {asked.max_startup_s:g} s, got it after "
            f"{run.startup_s:.3g} s"
        )
        yield _error("slow-start", evidence, message)


def worth_its_workers(evidence: Evidence, asked: Throughput) -> Iterator[Finding | NotJudged]:
    """The rate with workers over the rate without, in one session on one machine."""
    if asked.min_speedup is None or not evidence.config.has_workers:
        return
    question = evidence.question
    with_workers = evidence.get(question.timed(BUDGET_SECONDS))
    without = evidence.get(question.timed(BUDGET_SECONDS, evidence.config.without_workers()))
    rates = [run.rate if run is not None else None for run in (with_workers, without)]
    if rates[0] is None or rates[1] is None:
        yield NotJudged("speed-up over 0 workers: there is no rate for one of the two")
        return
    speedup = rates[0].batches_per_s / rates[1].batches_per_s
    best = rates[0].high / rates[1].low
    if speedup >= asked.min_speedup:
        return
    if best >= asked.min_speedup:
        yield NotJudged(
            f"a speed-up of at least {asked.min_speedup:g} over 0 workers expected, got "
            f"{speedup:.3g} (at most {best:.3g}): too noisy to tell"
        )
        return
    message = (
        f"expected a speed-up of at least {asked.min_speedup:g} over 0 workers, got {speedup:.3g} "
        f"({rates[0].batches_per_s:.4g} against {rates[1].batches_per_s:.4g} batches/s)"
    )
    yield _error("no-speedup", evidence, message)


def batches_travel_quickly(evidence: Evidence, _asked: object) -> Iterator[Finding | NotJudged]:
    """A worker does not spend most of its time on turning a batch of Python objects into bytes.

    Tensors travel as handles of shared memory; every other object is pickled by the worker and
    unpickled by the loader's process.
    """
    run = evidence.base
    if run is None or not run.pickle_s or not run.batch_cpu_s:
        return
    if run.pickle_s < SLOW_PICKLE_S or (run.pickle_bytes or 0) < LARGE_PICKLE_BYTES:
        return
    share = run.pickle_s / run.batch_cpu_s
    if not PICKLE_SHARE <= share <= 1.5:  # more than the whole is noise
        return
    message = (
        f"expected at most {PICKLE_SHARE:.0%} of a worker's time a batch to go into sending it, "
        f"but pickling its {run.pickle_bytes or 0:,} bytes takes {run.pickle_s * 1000:.0f} ms of "
        f"{run.batch_cpu_s * 1000:.0f} ms, and the process that trains has to unpickle them"
    )
    yield Finding(
        "slow-transfer",
        WARNING,
        (evidence.config,),
        "batch",
        message,
        BY_NAME["slow-transfer"].mend,
    )


def _error(code: str, evidence: Evidence, message: str) -> Finding:
    return Finding(code, ERROR, (evidence.config,), "dataset", message, BY_NAME[code].mend)


CHECKS = (fast_enough, starts_fast_enough, worth_its_workers)
