"""Two reports side by side: what became worse, and what is another content."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_dataloader.report.compare import compare, lines, machines_differ

LINUX = {"os": "Linux", "architecture": "x86_64", "cpus": 2, "torch": "2.13.0", "python": "3.11.7"}


def report(environment: Any = LINUX, id_: str = "test_a.py::test", **run: Any) -> dict[str, Any]:
    told = {
        "start_method": "spawn",
        "num_workers": 2,
        "outcome": "ok",
        "seed": 0,
        "repeat": 0,
        "purpose": "content",
        "start": "true",
        "digest": "a" * 32,
        "startup_s": 2.0,
        "batches_per_s": 100.0,
        "batches_per_s_low": 95.0,
        "batches_per_s_high": 105.0,
    }
    pipelines = [{"id": id_, "runs": [{**told, **run}], "findings": []}]
    return {"environment": environment, "pipelines": pipelines}


def rate(value: float, spread: float) -> dict[str, float]:
    low, high = value - spread, value + spread
    return {"batches_per_s": value, "batches_per_s_low": low, "batches_per_s_high": high}


def test_the_same_again_is_neither_worse_nor_changed() -> None:
    assert list(lines(report(), report(), "old.json")) == [
        "compared with old.json: 1 pipelines in both, 0 worse, 0 changed"
    ]


def test_a_rate_whose_interval_lies_below_the_earlier_one() -> None:
    assert list(lines(report(), report(**rate(50, 2)), "old.json")) == [
        "compared with old.json: 1 pipelines in both, 1 worse, 0 changed",
        "  worse slow: test_a.py::test [spawn-w2]",
        (
            "      expected at least 85.5 batches/s (the earlier 100 batches/s, 95 % within 95 to "
            "105, less 10%), got 50 batches/s, 95 % within 48 to 52"
        ),
    ]


@pytest.mark.parametrize("now", [rate(84, 5), rate(200, 1), {"batches_per_s_high": None}])
def test_rates_that_may_be_as_good_say_nothing(now: Any) -> None:
    assert list(compare(report(), report(**now))) == []


def test_a_machine_that_is_slower_than_it_was() -> None:
    old, new = report(reference_s=0.01), report(**rate(50, 2), reference_s=0.015)
    [one] = compare(old, new)
    assert one.message == (
        "expected at least 57 batches/s (the earlier 100 batches/s, 95 % within 95 to 105, less "
        "10% and for a machine that now takes 1.5 times as long for the same work), got 50 "
        "batches/s, 95 % within 48 to 52"
    )
    assert list(compare(old, report(**rate(50, 2), reference_s=0.02))) == []
    # a faster one is not held against the pipeline
    assert list(compare(old, report(reference_s=0.005))) == []


def test_a_start_that_takes_much_longer() -> None:
    (found,) = compare(report(), report(startup_s=4.5))
    assert (found.code, found.worse) == ("slow-start", True)
    assert found.message == (
        "expected the first batch within 4 s (the earlier 2 s, times 2 or 1 s more), got 4.5 s"
    )
    assert list(compare(report(startup_s=0.1), report(startup_s=0.9))) == []
    assert list(compare(report(), report(startup_s=4.5, start="warm"))) == []


def test_other_content_is_told_and_is_not_worse() -> None:
    (found,) = compare(report(), report(digest="b" * 32))
    assert (found.code, found.worse) == ("not-repeatable", False)
    assert found.message == (
        "expected the content of the earlier report (digest aaaaaaaaaaaa), got bbbbbbbbbbbb: the "
        "data, the code or the platform gives other batches"
    )


def test_speeds_of_other_machines_are_not_compared_but_content_is() -> None:
    windows = report({**LINUX, "os": "Windows"}, digest="b" * 32, startup_s=60.0, **rate(1, 0))
    assert machines_differ(report(), report()) is None
    assert list(lines(report(), windows, "linux.json"))[:2] == [
        "speeds are not compared with linux.json: other machines or versions: os Linux and Windows",
        "compared with linux.json: 1 pipelines in both, 0 worse, 1 changed",
    ]


@pytest.mark.parametrize(
    "new",
    [
        report(id_="test_b.py::test", startup_s=60.0),
        report(seed=1, startup_s=60.0),
        report(num_workers=4, startup_s=60.0),
        report(outcome="died", startup_s=60.0),
    ],
)
def test_runs_that_only_one_report_has_say_nothing(new: Any) -> None:
    assert list(compare(report(), new)) == []
