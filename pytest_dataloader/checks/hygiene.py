"""Hygiene: nothing outlives the loader that caused it, however an epoch comes to its end."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_dataloader.checks.asked import NoLeaks
from pytest_dataloader.checks.catalogue import BY_NAME
from pytest_dataloader.checks.evidence import Evidence, Question, shown_path
from pytest_dataloader.checks.finding import ERROR, Finding, NotJudged
from pytest_dataloader.observe.facts import (
    GONE,
    LEFT_FILE,
    LEFT_MEMORY,
    LEFT_OPEN,
    LEFT_PROCESS,
    LEFT_THREAD,
    LeakFacts,
    RunRequest,
)

_CODES = {
    LEFT_PROCESS: ("leaked-process", "processes"),
    LEFT_THREAD: ("leaked-process", "threads"),
    LEFT_OPEN: ("leaked-file", "open files"),
    LEFT_FILE: ("leaked-file", "temporary files"),
    LEFT_MEMORY: ("leaked-shared-memory", "blocks of shared memory"),
}


def needs(_asked: NoLeaks, question: Question) -> list[RunRequest]:
    """The base run, and the run that goes through all endings."""
    return [question.base(), question.leaks()]


def nothing_is_left(evidence: Evidence, _asked: NoLeaks) -> Iterator[Finding | NotJudged]:
    """No process, thread, file or shared memory is left more with each epoch or each dataset.

    What is left once, such as a handle that is opened at first use and kept, is no leak.
    """
    run = evidence.get(evidence.question.leaks())
    if run is None:
        return
    if not run.ok:
        yield NotJudged(f"the run that looks for what is left did not end well: {run.reason}")
    for leak in run.leaks:
        yield _finding(evidence, leak)


def _finding(evidence: Evidence, leak: LeakFacts) -> Finding:
    code, many = _CODES[leak.kind]
    culprit = leak.holder or (leak.where and shown_path(leak.where)) or leak.what
    message = f"expected 0 more {many} after {_endings(leak)}, got {_counts(leak)}: {_told(leak)}"
    return Finding(code, ERROR, (evidence.config,), culprit, message, BY_NAME[code].mend)


def _endings(leak: LeakFacts) -> str:
    if leak.endings == (GONE,):
        return GONE
    *first, last = leak.endings
    return f"{', '.join(first)} and {last}" if first else last


def _counts(leak: LeakFacts) -> str:
    each = str(leak.counts[0]) if len(set(leak.counts)) == 1 else ", ".join(map(str, leak.counts))
    side = " in a worker" if leak.in_worker else ""
    return f"{each}{side} in each of {len(leak.counts)} rounds"


def _told(leak: LeakFacts) -> str:
    made = {LEFT_OPEN: "opened", LEFT_FILE: "made", LEFT_MEMORY: "made"}.get(leak.kind, "started")
    where = f", {made} at {shown_path(leak.where)}" if leak.where else ""
    holder = f", held by {leak.holder}" if leak.holder else ""
    return f"{leak.what}{where}{holder}"


CHECKS = (nothing_is_left,)
