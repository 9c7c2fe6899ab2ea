"""Throughput: budgets on the steady state, on the start, and on what workers are worth."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_dataloader.checks import bottleneck
from pytest_dataloader.checks.asked import Throughput
from pytest_dataloader.checks.catalogue import BY_NAME
from pytest_dataloader.checks.evidence import Evidence, Question
from pytest_dataloader.checks.finding import ERROR, WARNING, Finding, NotJudged
from pytest_dataloader.checks.numbers import readable
from pytest_dataloader.observe.facts import RateFacts, RunFacts, RunRequest, StartupFacts

BUDGET_SECONDS = 3.0
SLOW_PICKLE_S = 0.01
LARGE_PICKLE_BYTES = 128 * 1024
PICKLE_SHARE = 0.4


def needs(asked: Throughput, question: Question) -> list[RunRequest]:
    """A timed pass, one without workers for a speed-up, and the base run for the start."""
    requests = []
    if asked.min_batches_per_s or asked.min_samples_per_s or asked.min_speedup:
        requests.append(_timed(asked, question))
    if asked.min_speedup:
        requests.append(question.timed(BUDGET_SECONDS, question.config.without_workers()))
    if asked.step_ms is not None:
        requests.append(question.stalls(asked.step_ms, BUDGET_SECONDS))
    return [*requests, question.base()]


def _timed(asked: Throughput, question: Question) -> RunRequest:
    """The pass for all that is asked; it may only end early if batches per second are all."""
    alone = not asked.min_samples_per_s and not asked.min_speedup
    return question.timed(BUDGET_SECONDS, budget=asked.min_batches_per_s if alone else None)


def fast_enough(evidence: Evidence, asked: Throughput) -> Iterator[Finding | NotJudged]:
    """Batches and samples per second; fails only when the budget lies outside the interval."""
    budgets = (
        (asked.min_batches_per_s, "batches", lambda r: 1.0),
        (asked.min_samples_per_s, "samples", _samples_a_batch),
    )
    for budget, unit, factor_of in budgets:
        if budget is None:
            continue
        run = evidence.get(_timed(asked, evidence.question))
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
    limit = f"{readable(budget)} {unit}/s"
    got = f"{readable(value)} {unit}/s (95 % interval {readable(low)} to {readable(high)})"
    if high >= budget:
        yield NotJudged(f"at least {limit} expected, got {got}: too noisy to tell")
        return
    message = (
        f"expected at least {limit} in the steady state, got {got} over {rate.batches:,} batches "
        f"under {evidence.config.id}{bottleneck.told(evidence.base)}{bottleneck.uneven(rate)}"
        f"{_headspace(rate, budget / factor)}"
    )
    yield _waiting("slow", evidence, message)


def _headspace(rate: RateFacts, wanted: float) -> str:
    """What the loader itself could give, as the end of a sentence."""
    if rate.headspace is None:
        return ""
    told = f"{readable(rate.headspace)} batches/s"
    if rate.headspace < wanted:
        return f"; even with its batches in memory this loader gives only {told}"
    return f"; with its batches in memory this loader gives {told}"


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
        culprit, split = _split_of_start(run)
        message = (
            f"expected the first batch within {asked.max_startup_s:g} s, got it after "
            f"{run.startup_s:.3g} s{split}"
        )
        yield _error("slow-start", evidence, message, culprit)


def _split_of_start(run: RunFacts) -> tuple[str, str]:
    """What takes most of a start that can be taken away, and the whole split in words."""
    if run.startup is None:
        return "dataset", _split_of_fork(run)
    split = run.startup
    parts = _parts_of_start(split)
    words = ", ".join(f"{name} {seconds:.2g} s" for name, _, seconds in parts)
    culprit = max(parts[1:], key=lambda part: part[2])[1]
    return culprit, f": {words}"


def _parts_of_start(split: StartupFacts) -> list[tuple[str, str, float]]:
    """Each part's name, its culprit and its seconds; parts that took no time but the main ones
    are left out."""
    module, seconds = split.slowest or ("dataset", 0.0)
    imports = "imports"
    if seconds >= 0.1:
        imports = f"imports (slowest {module}, {seconds:.2g} s)"
    parts = [
        ("interpreter, torch and main module", "loader", split.interpreter_s),
        (imports, module, split.imports_s),
        ("unpickling", "dataset", split.arrival_s),
        ("worker_init_fn", "loader.worker_init_fn", split.init_s),
        ("making the batch", "dataset", split.first_fetch_s),
        ("bringing it", "batch", split.delivery_s),
    ]
    return [part for part in parts if part[2] >= 0.005 or part[1] in (module, "dataset")]


def _split_of_fork(run: RunFacts) -> str:
    first = min(run.workers, key=lambda w: w.worker_id or 0, default=None)
    if first is None or first.ready_s is None or first.first_batch_s is None:
        return ""
    made_s = first.first_batch_s - first.ready_s
    return f": a worker was ready after {first.ready_s:.2g} s and made the batch in {made_s:.2g} s"


def waits_little(evidence: Evidence, asked: Throughput) -> Iterator[Finding | NotJudged]:
    """The share of its time that a consumer waits who is busy for ``step_ms`` a batch."""
    if asked.step_ms is None or asked.max_stall is None:
        return
    run = evidence.get(evidence.question.stalls(asked.step_ms, BUDGET_SECONDS))
    stall = run.stall if run is not None else None
    if stall is None:
        why = run.no_rate_reason if run is not None else None
        yield NotJudged(f"the time that a step waits: {why or 'there was no timed pass'}")
        return
    if stall.share <= asked.max_stall:
        return
    limit = f"{asked.max_stall:.3g}"
    got = f"{stall.share:.3g} (95 % interval {stall.low:.3g} to {stall.high:.3g})"
    who = f"a loop that is busy for {readable(asked.step_ms)} ms a batch"
    if stall.low <= asked.max_stall:
        yield NotJudged(
            f"{who}: to wait at most {limit} of its time expected, got {got}: too noisy to tell"
        )
        return
    message = (
        f"expected {who} to wait at most {limit} of its time, got {got} over {stall.batches:,} "
        f"batches under {evidence.config.id}{bottleneck.told(evidence.base)}"
        f"{bottleneck.uneven(stall)}"
    )
    yield _waiting("stalls", evidence, message)


def worth_its_workers(evidence: Evidence, asked: Throughput) -> Iterator[Finding | NotJudged]:
    """The rate with workers over the rate without, in one session on one machine."""
    if asked.min_speedup is None or not evidence.config.has_workers:
        return
    question = evidence.question
    with_workers = evidence.get(_timed(asked, question))
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
            f"a speed-up of at least {readable(asked.min_speedup)} over 0 workers expected, got "
            f"{speedup:.3g} (at most {best:.3g}): too noisy to tell"
        )
        return
    message = (
        f"expected a speed-up of at least {readable(asked.min_speedup)} over 0 workers, got "
        f"{speedup:.3g} ({readable(rates[0].batches_per_s)} against "
        f"{readable(rates[1].batches_per_s)} batches/s){bottleneck.told(evidence.base)}"
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


def _waiting(code: str, evidence: Evidence, message: str) -> Finding:
    """A finding whose culprit and advice follow from where the time of a batch goes."""
    base = evidence.base
    mend = bottleneck.advice(base, BY_NAME[code].mend)
    culprit = bottleneck.culprit(base)
    return Finding(code, ERROR, (evidence.config,), culprit, message, mend)


def _error(code: str, evidence: Evidence, message: str, culprit: str = "dataset") -> Finding:
    return Finding(code, ERROR, (evidence.config,), culprit, message, BY_NAME[code].mend)


CHECKS = (fast_enough, waits_little, starts_fast_enough, worth_its_workers)
