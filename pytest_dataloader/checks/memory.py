"""Memory: what a worker takes for itself, and what a batch keeps alive."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_dataloader.checks.asked import Memory
from pytest_dataloader.checks.catalogue import BY_NAME
from pytest_dataloader.checks.evidence import Evidence, Question
from pytest_dataloader.checks.finding import ERROR, WARNING, Finding, NotJudged
from pytest_dataloader.observe.facts import RunRequest


def needs(_asked: Memory, question: Question) -> list[RunRequest]:
    """The base run."""
    return [question.base()]


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


def _finding(code: str, severity: str, evidence: Evidence, culprit: str, message: str) -> Finding:
    return Finding(code, severity, (evidence.config,), culprit, message, BY_NAME[code].mend)


CHECKS = (within_budget, batches_keep_little)
