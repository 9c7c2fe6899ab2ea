"""Fork safety: no handle, lock or thread that a fork would break."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_dataloader.checks.asked import ForkSafe
from pytest_dataloader.checks.catalogue import BY_NAME
from pytest_dataloader.checks.evidence import Evidence, Question
from pytest_dataloader.checks.finding import ERROR, WARNING, Finding, NotJudged
from pytest_dataloader.observe.facts import HUNG, HandleFacts, RunRequest


def needs(_asked: ForkSafe, question: Question) -> list[RunRequest]:
    """The base run."""
    return [question.base()]


def no_shared_handle(evidence: Evidence, _asked: ForkSafe) -> Iterator[Finding | NotJudged]:
    """No worker reads through a handle that was opened before the fork.

    Forked processes share one open file description and so one offset (POSIX, fork). A handle
    that the worker opens anew is no finding, and neither is a file that it does not read.
    """
    run = evidence.base
    for handle in run.handles if run is not None else ():
        if handle.moved is not False:
            yield _shared(evidence, handle)


def _shared(evidence: Evidence, handle: HandleFacts) -> Finding:
    how = "they share one offset" if handle.moved else "its library does not support that"
    message = (
        f"expected each worker to open its own handle, but {handle.path} is {handle.kind} opened "
        f"before the fork, and the workers read through it: {how}"
    )
    return _finding("fork-unsafe-handle", ERROR, evidence, handle.path, message)


def no_held_lock(evidence: Evidence, _asked: ForkSafe) -> Iterator[Finding | NotJudged]:
    """No lock is held as workers are forked: its holder does not live on in the worker."""
    run = evidence.base
    if run is None:
        return
    for path in run.held_locks:
        hung = run.outcome == HUNG
        after = "; the run hung" if hung else ""
        message = (
            f"expected no lock to be held at the fork, but {path} is held by one of the threads "
            f"{', '.join(run.threads)}; in a worker nobody will release it{after}"
        )
        yield _finding("fork-unsafe-lock", ERROR if hung else WARNING, evidence, path, message)


def _finding(code: str, severity: str, evidence: Evidence, culprit: str, message: str) -> Finding:
    return Finding(code, severity, (evidence.config,), culprit, message, BY_NAME[code].mend)


CHECKS = (no_shared_handle, no_held_lock)
