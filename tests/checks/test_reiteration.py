"""Reiteration, judged on facts written by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from by_hand import FORK, W0, question, run

from pytest_dataloader.checks import reiteration
from pytest_dataloader.checks.asked import Complete
from pytest_dataloader.checks.evidence import Evidence
from pytest_dataloader.checks.finding import ERROR, WARNING, Finding, NotJudged
from pytest_dataloader.observe.facts import RAISED, AgainFacts, ReiterateFacts

LEFT = AgainFacts("after an epoch that was left at 6 samples", 12, 0, 0)
FIRST = AgainFacts("from the first of two iterators at once", 12, 0, 0)


def said(*again: AgainFacts, kept: tuple[str, ...] = (), **facts: Any) -> list[Any]:
    about = question(W0)
    places = {"dataset.__iter__": "/code/data.py:4"}
    made = {"reiterated": ReiterateFacts(12, again, kept, places), **facts}
    seen = run(W0, **{"request": about.reiterate(), **made})
    evidence = Evidence(about, {seen.request: seen})
    return [f for check in reiteration.CHECKS for f in check(evidence, Complete())]


def test_it_is_run_where_the_dataset_lives_on() -> None:
    kept, ended = (replace(FORK, persistent_workers=value) for value in (True, False))
    asked = [bool(reiteration.needs(Complete(), question(c))) for c in (W0, FORK, kept, ended)]
    assert asked == [True, True, True, False]


def test_whole_epochs_are_clean() -> None:
    assert said(LEFT, FIRST) == []
    assert said(reiterated=None) == []


@pytest.mark.parametrize(
    ("one", "code", "severity", "words"),
    [
        (
            replace(LEFT, samples=6, lost=6),
            "lost-samples",
            ERROR,
            "once after an epoch that was left at 6 samples, got 6 samples, 6 never came",
        ),
        (
            replace(FIRST, samples=15, more=3),
            "duplicated-samples",
            WARNING,
            "once from the first of two iterators at once, got 15 samples, 3 too many",
        ),
        (
            replace(LEFT, lost=2, more=2),
            "lost-samples",
            ERROR,
            (
                "once after an epoch that was left at 6 samples, got 12 samples, 2 never came and "
                "2 too many"
            ),
        ),
    ],
)
def test_an_epoch_that_is_not_whole(one: AgainFacts, code: str, severity: str, words: str) -> None:
    [found] = said(LEFT, one)
    assert isinstance(found, Finding)
    assert (found.code, found.severity, found.culprit) == (code, severity, "/code/data.py:4")
    assert found.message == f"expected each of the 12 samples {words}"
    assert found.advice.startswith(
        "Keep the position in a local variable of __iter__, not on the object: each call of iter() "
        "then begins at the start. "
    )


def test_what_keeps_the_position_is_named() -> None:
    [found] = said(replace(LEFT, samples=6, lost=6), kept=("dataset.at", "dataset.other"))
    assert found.culprit == "dataset.at"
    assert found.message.endswith("; dataset.at keeps the position of an iterator")


def test_a_run_that_fails_is_not_judged() -> None:
    failed = said(reiterated=None, outcome=RAISED, reason="ValueError: busy")
    assert failed == [
        NotJudged("epochs after an early break did not come to their end: ValueError: busy")
    ]
