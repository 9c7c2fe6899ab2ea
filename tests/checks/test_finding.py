"""Findings: several of one kind become one."""

from __future__ import annotations

from by_hand import FORK, SPAWN, W0

from pytest_dataloader.checks.finding import ERROR, INFO, WARNING, Finding, merged


def finding(config, code="raises", severity=ERROR, culprit="words.py:3", message="it raised"):
    return Finding(code, severity, (config,), culprit, message, "Mend it.")


def test_findings_of_several_configurations_become_one_in_the_words_of_the_first() -> None:
    several = [
        finding(SPAWN, message="under spawn"),
        finding(FORK, message="under fork"),
        finding(SPAWN, message="again"),
    ]
    assert merged(several) == [
        Finding("raises", ERROR, (SPAWN, FORK), "words.py:3", "under spawn", "Mend it.")
    ]


def test_another_code_severity_or_culprit_is_another_finding() -> None:
    different = [
        finding(W0),
        finding(W0, code="hang"),
        finding(W0, culprit="words.py:4"),
        finding(W0, culprit=None),
        finding(W0, severity=WARNING),
    ]
    assert merged(different) == different


def test_errors_come_first_then_warnings_and_each_in_the_order_found() -> None:
    found = [
        finding(W0, "a", INFO),
        finding(W0, "b", WARNING),
        finding(W0, "c", ERROR),
        finding(W0, "d", INFO),
        finding(W0, "e", ERROR),
    ]
    assert [one.code for one in merged(found)] == ["c", "e", "b", "a", "d"]


def test_nothing_merges_to_nothing() -> None:
    assert merged([]) == []
