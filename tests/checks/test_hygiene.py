"""Hygiene: what each round leaves more of is a finding with its place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from by_hand import FORK, W0, judged, question, run

from pytest_dataloader.checks import hygiene
from pytest_dataloader.checks.asked import NoLeaks
from pytest_dataloader.checks.catalogue import BY_NAME
from pytest_dataloader.checks.finding import ERROR, Finding, NotJudged
from pytest_dataloader.observe.facts import (
    BROKEN_OFF,
    FAILED,
    FINISHED,
    GONE,
    LEAKS,
    LEFT_FILE,
    LEFT_MEMORY,
    LEFT_OPEN,
    LEFT_PROCESS,
    LEFT_THREAD,
    RAISED,
    SKIPPED,
    LeakFacts,
    RunRequest,
)

PLACE = f"{Path.cwd()}/data.py:12"


def leak(kind, what, **facts):
    known = {"where": PLACE, "in_worker": False, "endings": (FINISHED,), "counts": (2, 2, 2)}
    return LeakFacts(kind, what, **{**known, **facts})


def said(*leaks, config=FORK, **facts):
    request = question(config).leaks()
    return judged(NoLeaks(), question(config), [run(config, request=request, leaks=leaks, **facts)])


def finding(code, culprit, message, config=FORK):
    return Finding(code, ERROR, (config,), culprit, message, BY_NAME[code].mend)


def test_what_is_run() -> None:
    leaks = RunRequest(FORK, purpose=LEAKS)
    assert hygiene.needs(NoLeaks(), question(FORK)) == [RunRequest(FORK), leaks]


def test_nothing_is_left() -> None:
    assert said() == []


def test_a_program_of_a_worker() -> None:
    endings = (FINISHED, BROKEN_OFF, FAILED)
    assert said(leak(LEFT_PROCESS, "sleep 60 (pid 7)", in_worker=True, endings=endings)) == [
        finding(
            "leaked-process",
            "data.py:12",
            "expected 0 more processes after a full epoch, an early break and an exception, got 2 "
            "in a worker in each of 3 rounds: sleep 60 (pid 7), started at data.py:12",
        )
    ]


def test_a_thread_that_an_early_break_leaves() -> None:
    assert said(leak(LEFT_THREAD, "fill", endings=(BROKEN_OFF,), counts=(1, 1, 1))) == [
        finding(
            "leaked-process",
            "data.py:12",
            "expected 0 more threads after an early break, got 1 in each of 3 rounds: fill, "
            "started at data.py:12",
        )
    ]


def test_open_files_that_an_attribute_holds() -> None:
    found = said(leak(LEFT_OPEN, "/data/a", holder="dataset.files", counts=(3, 2, 2)), config=W0)
    assert found == [
        finding(
            "leaked-file",
            "dataset.files",
            "expected 0 more open files after a full epoch, got 3, 2, 2 in each of 3 rounds: "
            "/data/a, opened at data.py:12, held by dataset.files",
            W0,
        )
    ]


def test_a_temporary_file_for_each_dataset() -> None:
    assert said(leak(LEFT_FILE, "/tmp/x", endings=(GONE,))) == [
        finding(
            "leaked-file",
            "data.py:12",
            "expected 0 more temporary files after the loader and its dataset were let go, got 2 "
            "in each of 3 rounds: /tmp/x, made at data.py:12",
        )
    ]


def test_shared_memory_of_an_unknown_maker_is_named_by_itself() -> None:
    assert said(leak(LEFT_MEMORY, "/dev/shm/psm_1", where=None)) == [
        finding(
            "leaked-shared-memory",
            "/dev/shm/psm_1",
            "expected 0 more blocks of shared memory after a full epoch, got 2 in each of 3 "
            "rounds: /dev/shm/psm_1",
        )
    ]


@pytest.mark.parametrize("outcome", [RAISED, SKIPPED])
def test_a_run_that_did_not_end_well_judges_nothing(outcome) -> None:
    reason = "it raised ValueError: no"
    assert said(outcome=outcome, reason=reason) == [
        NotJudged("the run that looks for what is left did not end well: it raised ValueError: no")
    ]


def test_each_leak_is_a_finding_of_its_own() -> None:
    one = leak(LEFT_FILE, "/tmp/x")
    found = said(one, replace(one, where="/elsewhere/b.py:3"))
    assert [f.culprit for f in found] == ["data.py:12", "/elsewhere/b.py:3"]
