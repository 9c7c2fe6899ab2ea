"""Fork safety: handles that workers read through, locks that are held at the fork."""

from __future__ import annotations

from dataclasses import replace

import pytest
from by_hand import FORK, W0, judged, question, run

from pytest_dataloader.checks import forksafety
from pytest_dataloader.checks.asked import ForkSafe
from pytest_dataloader.checks.catalogue import BY_NAME
from pytest_dataloader.checks.finding import ERROR, INFO, WARNING, Finding
from pytest_dataloader.observe.facts import HUNG, RAISED, HandleFacts, RunRequest, ThreadFacts


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


# Threads -----------------------------------------------------------------------------------------

POOL = ThreadFacts(
    "pool_0", "/project/words.py:8", "dataset.pool", "a ThreadPoolExecutor", used=True, gone=True
)
SERVER = ThreadFacts("server", "socketserver.serve_forever")
EXPECTED = (
    "expected no thread of the test process to be needed in a worker, but dataset.pool is a "
    "ThreadPoolExecutor started before the fork, running /project/words.py:8, and workers have it "
    "without its thread"
)


def beside(threads, *, alone=None, **facts):
    """What is said of threads where the run with 0 workers ends as given, or was not made."""
    runs = [run(FORK, live_threads=threads, **facts)]
    return judged(ForkSafe(), question(FORK), [*runs, *([run(W0, **alone)] if alone else [])])


ALONE_OK = {"outcome": "ok"}


def test_a_thread_for_which_a_worker_waits_for_ever() -> None:
    assert beside((SERVER, POOL), alone=ALONE_OK, outcome=HUNG, reason="no batch for 60 s") == [
        finding(
            "fork-unsafe-thread",
            ERROR,
            "dataset.pool",
            f"{EXPECTED}; the run hung, and with 0 workers it runs to its end",
        )
    ]


@pytest.mark.parametrize("alone", [None, {"outcome": HUNG}, {"outcome": RAISED}])
def test_a_hang_that_is_not_of_the_fork_proves_nothing(alone) -> None:
    assert beside((POOL,), alone=alone, outcome=HUNG) == [
        finding("fork-unsafe-thread", WARNING, "dataset.pool", EXPECTED)
    ]


def test_a_mere_thread_of_the_dataset_is_a_warning() -> None:
    assert beside((POOL,)) == [finding("fork-unsafe-thread", WARNING, "dataset.pool", EXPECTED)]


def test_a_thread_that_making_samples_does_not_name_is_information() -> None:
    (found,) = beside((replace(POOL, used=False),), alone=ALONE_OK, outcome=HUNG)
    assert (found.severity, found.culprit) == (INFO, "dataset.pool")


@pytest.mark.parametrize(
    "threads", [(replace(POOL, gone=False),), (SERVER,), (replace(SERVER, used=True),)]
)
def test_a_thread_started_anew_or_held_by_nothing_is_no_finding(threads) -> None:
    assert beside(threads) == []


def test_threads_that_were_alive_are_named_where_a_forked_run_hangs() -> None:
    assert beside((SERVER,), alone=ALONE_OK, outcome=HUNG) == [
        finding(
            "fork-unsafe-thread",
            INFO,
            "socketserver.serve_forever",
            "expected a forked run to end as it does with 0 workers, but it hung, and these "
            "threads were alive in the test process as it forked: server (running "
            "socketserver.serve_forever)",
        )
    ]
