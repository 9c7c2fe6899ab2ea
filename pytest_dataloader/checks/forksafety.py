"""Fork safety: no handle, lock or thread that a fork would break."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_dataloader.checks.asked import ForkSafe
from pytest_dataloader.checks.catalogue import BY_NAME
from pytest_dataloader.checks.evidence import Evidence, Question, shown_path
from pytest_dataloader.checks.finding import ERROR, INFO, WARNING, Finding, NotJudged
from pytest_dataloader.observe.facts import HUNG, HandleFacts, RunRequest, ThreadFacts


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


def no_lost_thread(evidence: Evidence, _asked: ForkSafe) -> Iterator[Finding | NotJudged]:
    """The pipeline waits for no thread of the test process: a fork copies only the one that forks.

    An error is a run that hangs where it runs to its end without workers. A thread that a worker
    starts anew is no finding, nor is one that nothing of the user's holds.
    """
    run = evidence.base
    if run is None:
        return
    alone = evidence.get(RunRequest(evidence.config.without_workers(), run.request.seed))
    hung = run.outcome == HUNG and alone is not None and alone.ok
    lost = [(t.path, t) for t in run.live_threads if t.path is not None and t.gone]
    if hung and not lost and run.live_threads:
        yield _threads_alive(evidence, run.live_threads)
    for path, thread in lost:
        severity = INFO if not thread.used else ERROR if hung else WARNING
        after = "; the run hung, and with 0 workers it runs to its end" if hung else ""
        message = (
            f"expected no thread of the test process to be needed in a worker, but {path} "
            f"is {thread.kind} started before the fork, running {shown_path(thread.runs)}, and "
            f"workers have it without its thread{after}"
        )
        yield _finding("fork-unsafe-thread", severity, evidence, path, message)


def _threads_alive(evidence: Evidence, threads: tuple[ThreadFacts, ...]) -> Finding:
    """What a run that hangs may have waited for, where nothing shows that it did."""
    told = ", ".join(f"{thread.name} (running {shown_path(thread.runs)})" for thread in threads)
    message = (
        f"expected a forked run to end as it does with 0 workers, but it hung, and these threads "
        f"were alive in the test process as it forked: {told}"
    )
    return _finding("fork-unsafe-thread", INFO, evidence, shown_path(threads[0].runs), message)


def _finding(code: str, severity: str, evidence: Evidence, culprit: str, message: str) -> Finding:
    return Finding(code, severity, (evidence.config,), culprit, message, BY_NAME[code].mend)


CHECKS = (no_shared_handle, no_held_lock, no_lost_thread)
