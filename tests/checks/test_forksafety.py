"""Fork safety: handles that workers read through, locks that are held at the fork."""

from __future__ import annotations

import pytest
from by_hand import FORK, judged, question, run

from pytest_dataloader.checks import forksafety
from pytest_dataloader.checks.asked import ForkSafe
from pytest_dataloader.checks.catalogue import BY_NAME
from pytest_dataloader.checks.finding import ERROR, WARNING, Finding
from pytest_dataloader.observe.facts import HUNG, HandleFacts, RunRequest


def said(**facts):
    return judged(ForkSafe(), question(FORK), [run(FORK, **facts)])


def finding(code, severity, culprit, message):
    return Finding(code, severity, (FORK,), culprit, message, BY_NAME[code].mend)


def test_what_is_run() -> None:
    assert forksafety.needs(ForkSafe(), question(FORK)) == [RunRequest(FORK)]


def test_a_file_that_workers_read_through() -> None:
    assert said(handles=(HandleFacts("dataset.f", "an open file", moved=True),)) == [
        finding(
            "fork-unsafe-handle",
            ERROR,
            "dataset.f",
            "expected each worker to open its own handle, but dataset.f is an open file opened "
            "before the fork, and the workers read through it: they share one offset",
        )
    ]


def test_a_library_that_does_not_survive_a_fork() -> None:
    assert said(handles=(HandleFacts("dataset.h5", "an open HDF5 object", moved=None),)) == [
        finding(
            "fork-unsafe-handle",
            ERROR,
            "dataset.h5",
            "expected each worker to open its own handle, but dataset.h5 is an open HDF5 object "
            "opened before the fork, and the workers read through it: its library does not "
            "support that",
        )
    ]


def test_a_file_that_nobody_reads_is_no_finding() -> None:
    assert said(handles=(HandleFacts("dataset.log", "an open file", moved=False),)) == []


def test_a_lock_that_is_held_while_the_run_hangs() -> None:
    facts = {"held_locks": ("data._lock",), "threads": ("reporter",), "outcome": HUNG}
    assert said(**facts, reason="no batch for 60 s") == [
        finding(
            "fork-unsafe-lock",
            ERROR,
            "data._lock",
            "expected no lock to be held at the fork, but data._lock is held by one of the threads "
            "reporter; in a worker nobody will release it; the run hung",
        )
    ]


def test_a_lock_that_is_held_and_does_no_harm_yet() -> None:
    (found,) = said(held_locks=("data._lock",), threads=("reporter", "saver"))
    assert (found.code, found.severity) == ("fork-unsafe-lock", WARNING)
    assert "one of the threads reporter, saver;" in found.message


@pytest.mark.parametrize("facts", [{}, {"threads": ("reporter",)}])
def test_threads_without_locks_are_no_finding(facts) -> None:
    assert said(**facts) == []
