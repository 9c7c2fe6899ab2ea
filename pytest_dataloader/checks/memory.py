"""Memory: what a worker takes for itself, and what a batch keeps alive."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_dataloader.checks.asked import Memory
from pytest_dataloader.checks.catalogue import BY_NAME
from pytest_dataloader.checks.evidence import Evidence, Question
from pytest_dataloader.checks.finding import ERROR, INFO, WARNING, Finding, NotJudged
from pytest_dataloader.checks.trend import Trend, trend
from pytest_dataloader.observe.facts import GrowthFacts, RunFacts, RunRequest

_MIB = 2**20
# A run without a budget is only made in passing; one with a budget may take its time.
_IN_PASSING_S, _WITH_A_BUDGET_S = 2.0, 120.0
_WARM_UP_EPOCHS, _LEAST_EPOCHS = 2, 7
_CHANCE = 0.01
# Without a budget: the least growth an epoch that is told, and the least of one whose cause is
# seen; what comes and goes with the allocator is less.
_LEAST_GROWTH, _LEAST_GROWTH_OF_A_FIELD = 1 * _MIB, _MIB // 8
_LARGE_OF_OBJECTS, _COPIED_SHARE, _LEAST_COPIED = 16 * _MIB, 0.15, 8 * _MIB


def needs(asked: Memory, question: Question) -> list[RunRequest]:
    """The base run, and one of several epochs in the same processes.

    What grows does so under every start method: without a budget one of them is enough.
    """
    config = question.config
    alike = config.has_workers and config != question.with_workers
    if asked.max_growth_mb is None and alike:
        return [question.base()]
    return [question.base(), _growth_request(asked, question)]


def _growth_request(asked: Memory, question: Question) -> RunRequest:
    budget = asked.max_growth_mb is not None
    return question.growth(_WITH_A_BUDGET_S if budget else _IN_PASSING_S)


def within_budget(evidence: Evidence, asked: Memory) -> Iterator[Finding | NotJudged]:
    """The unique memory (USS) of each worker stays within the budget."""
    run = evidence.base
    if asked.max_worker_mb is None or run is None or not evidence.config.has_workers:
        return
    if run.worker_unique_bytes is None:
        yield NotJudged("memory of the workers: this platform does not tell it")
        return
    used = run.worker_unique_bytes / 2**20
    if used > asked.max_worker_mb:
        message = (
            f"expected at most {asked.max_worker_mb:g} MiB of unique memory a worker, got "
            f"{used:.0f} MiB under {evidence.config.id}"
        )
        yield _finding("memory-over-budget", ERROR, evidence, "dataset", message)


def batches_keep_little(evidence: Evidence, _asked: Memory) -> Iterator[Finding | NotJudged]:
    """A batch's tensors do not keep a much larger storage alive, or send it to the parent."""
    run = evidence.base
    for epoch in run.epochs if run is not None else ():
        for path, values, storage in epoch.oversized:
            message = (
                f"expected {path} to bring little more than its {values:,} bytes of values, but it "
                f"is a view that keeps a storage of {storage:,} bytes alive"
            )
            yield _finding("view-of-large-buffer", WARNING, evidence, path, message)


def workers_share(evidence: Evidence, _asked: Memory) -> Iterator[Finding | NotJudged]:
    """Forked workers do not copy a container of very many objects by looking at it.

    Told where there is such a container and the workers' unique memory grows from their first
    batch to their last by a good part of it.
    """
    run = evidence.base
    grown = max((w.grown_bytes or 0 for w in run.workers), default=0) if run is not None else 0
    for path, kind, count, size in run.many_objects if run is not None else ():
        if size < _LARGE_OF_OBJECTS or grown < max(_LEAST_COPIED, _COPIED_SHARE * size):
            continue
        message = (
            f"expected forked workers to share {path}, a {kind} of {count:,} objects of about "
            f"{size / _MIB:,.0f} MiB, but the unique memory of a worker grew by "
            f"{grown / _MIB:,.0f} MiB in one epoch: to look at a Python object writes its "
            f"reference count, and that copies its page"
        )
        yield _finding("copied-per-worker", WARNING, evidence, path, message)


def memory_stays(evidence: Evidence, asked: Memory) -> Iterator[Finding | NotJudged]:
    """The unique memory of a process does not rise from epoch to epoch.

    Judged by a rank test over the epochs after the first two, so that a cache that fills, an
    allocator that warms up and a single larger value are none; and what slows down is none.
    """
    run = evidence.get(_growth_request(asked, evidence.question))
    if run is None:
        return
    budget = None if asked.max_growth_mb is None else asked.max_growth_mb * _MIB
    epochs = max((len(one.unique_bytes) for one in run.growth), default=0)
    if not run.ok or epochs < _LEAST_EPOCHS:
        if budget is not None or not run.ok:
            yield NotJudged(f"growth of memory: {_why_not(run, epochs)}")
        return
    if budget is not None and not any(_memory_trend(one) for one in run.growth):
        yield NotJudged("growth of memory: this platform does not tell it")
        return
    found = [finding for one in run.growth if (finding := _grows(evidence, one, budget))]
    yield from sorted(found, key=lambda f: f.severity != ERROR)[:1]


def _why_not(run: RunFacts, epochs: int) -> str:
    if not run.ok:
        return "the run over several epochs did not come to its end"
    return f"{epochs} of at least {_LEAST_EPOCHS} epochs ended within {_WITH_A_BUDGET_S:g} s"


def _memory_trend(one: GrowthFacts) -> Trend | None:
    known = [value for value in one.unique_bytes[_WARM_UP_EPOCHS:] if value is not None]
    whole = len(known) == len(one.unique_bytes) - _WARM_UP_EPOCHS
    return trend(known) if whole and len(known) >= _LEAST_EPOCHS - _WARM_UP_EPOCHS else None


def _rises(rise: Trend | None) -> bool:
    return rise is not None and rise.lasting and rise.p < _CHANCE


def _growing_field(one: GrowthFacts) -> tuple[str, tuple[int, ...]] | None:
    """What takes in at least every second batch and lets none go; the fastest of such."""
    rising = [(path, sizes, trend(sizes[_WARM_UP_EPOCHS:])) for path, sizes in one.sizes]
    least = max(2.0, one.batches_an_epoch / 2)
    fast = [item for item in rising if _rises(item[2]) and item[2].slope >= least]
    return max(fast, key=lambda item: item[2].slope)[:2] if fast else None


def _grows(evidence: Evidence, one: GrowthFacts, budget: float | None) -> Finding | None:
    rise = _memory_trend(one)
    field = _growing_field(one)
    slope = rise.slope if rise is not None and _rises(rise) else 0.0
    over = budget is not None and slope > budget
    told = slope >= (_LEAST_GROWTH if field is None else _LEAST_GROWTH_OF_A_FIELD)
    if not over and not (told or field is not None):
        return None
    limit = 0.0 if budget is None else budget / _MIB
    where = "the test process" if one.worker_id is None else f"worker {one.worker_id}"
    message = (
        f"expected at most {limit:g} MiB more unique memory an epoch, got {slope / _MIB:.2f} MiB "
        f"an epoch in {where}, over {len(one.unique_bytes)} epochs in one process{_grew(field)}"
    )
    severity = ERROR if over else WARNING if budget is None and one.lives_on else INFO
    return _finding("memory-growth", severity, evidence, field[0] if field else "dataset", message)


def _grew(field: tuple[str, tuple[int, ...]] | None) -> str:
    if field is None:
        return ""
    path, sizes = field
    return f", in which the size of {path} grew from {sizes[0]:,} to {sizes[-1]:,}"


def _finding(code: str, severity: str, evidence: Evidence, culprit: str, message: str) -> Finding:
    return Finding(code, severity, (evidence.config,), culprit, message, BY_NAME[code].mend)


CHECKS = (within_budget, batches_keep_little, workers_share, memory_stays)
