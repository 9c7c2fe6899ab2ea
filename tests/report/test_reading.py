"""Reading a report back: what is whole is given as it is, all else is one clean error."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from pytest_dataloader.report import compare, terminal
from pytest_dataloader.report.reading import ReportError, parse, read
from pytest_dataloader.report.schema import merged

WHOLE: dict[str, Any] = {
    "schema": "pytest-dataloader/1",
    "environment": {"os": "Linux", "python": "3.11.7", "torch": "2.13.0", "cpus": 2},
    "pipelines": [
        {
            "id": "test_words.py::test_conforms",
            "runs": [
                {
                    "start_method": "fork",
                    "num_workers": 2,
                    "prefetch_factor": 4,
                    "outcome": "ok",
                    "reason": None,
                    "purpose": "content",
                    "seed": 0,
                    "repeat": 0,
                    "samples": 8,
                    "batches": 2,
                    "digest": "00ff",
                    "startup_s": 0.1,
                    "batches_per_s": 10.0,
                    "batches_per_s_low": 9.0,
                    "batches_per_s_high": 11.0,
                    "a field of a later version": [1],
                }
            ],
            "findings": [
                {
                    "code": "slow",
                    "severity": "error",
                    "configurations": [{"start_method": None, "num_workers": 0}],
                    "culprit": None,
                    "message": "expected more",
                    "advice": "Do less.",
                }
            ],
        }
    ],
}


def whole() -> dict[str, Any]:
    return copy.deepcopy(WHOLE)


def test_a_whole_report_is_given_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text(json.dumps(WHOLE), encoding="utf-8")
    assert read(file) == WHOLE


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (["schema"], "other/1", "the report.schema must be 'pytest-dataloader/1', the only kind"),
        (["environment"], [], "the report.environment must be an object; got []"),
        (["pipelines"], {}, "the report.pipelines must be a list; got {}"),
        (["pipelines", 0, "id"], 3, "the report.pipelines[0].id must be text; got 3"),
        (
            ["pipelines", 0, "runs", 0, "outcome"],
            "fine",
            (
                "the report.pipelines[0].runs[0].outcome must be one of ok, raised, died, hung, "
                "skipped; got 'fine'"
            ),
        ),
        (
            ["pipelines", 0, "runs", 0, "batches_per_s"],
            True,
            "the report.pipelines[0].runs[0].batches_per_s must be a number; got True",
        ),
        (
            ["pipelines", 0, "runs", 0, "startup_s"],
            -1,
            "the report.pipelines[0].runs[0].startup_s must be a number from 0; got -1",
        ),
        (
            ["pipelines", 0, "runs", 0, "seed"],
            1.5,
            "the report.pipelines[0].runs[0].seed must be a whole number from 0; got 1.5",
        ),
        (
            ["pipelines", 0, "findings", 0, "configurations", 0],
            "w0",
            "the report.pipelines[0].findings[0].configurations[0] must be an object; got 'w0'",
        ),
    ],
)
def test_a_field_that_is_wrong_is_named(path: list[Any], value: Any, words: str) -> None:
    report = inner = whole()
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    with pytest.raises(ReportError) as caught:
        parse(json.dumps(report), "old.json")
    assert str(caught.value).startswith(f"old.json: {words}")


def test_a_field_that_is_missing_is_named() -> None:
    report = whole()
    del report["pipelines"][0]["findings"]
    with pytest.raises(ReportError, match=r"pipelines\[0\] must be an object with 'findings'"):
        parse(json.dumps(report), "old.json")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "old.json: expected a JSON report; Expecting value: line 1 column 1 (char 0)"),
        ("[" * 100_000, "old.json: expected a report, got JSON that is nested too deep"),
        ('{"schema": NaN}', "old.json: expected a JSON report; NaN is no JSON number"),
        ("[]", "old.json: the report must be an object; got []"),
    ],
)
def test_what_is_no_report(text: str, words: str) -> None:
    with pytest.raises(ReportError) as caught:
        parse(text, "old.json")
    assert str(caught.value) == words


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ReportError, match="cannot be read: No such file"):
        read(tmp_path / "none.json")
    file = tmp_path / "bytes.json"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ReportError, match="expected UTF-8 text; invalid start byte"):
        read(file)
    monkeypatch.setattr("pytest_dataloader.report.reading._MOST_BYTES", 1)
    with pytest.raises(ReportError, match="expected a report of at most 1 bytes, got 2"):
        read(file)


# Hostile reports: an error that says so, or a report that all of us can work with ----------------

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from([10**400, -(10**400), "fork", "\x1b[2J", "ok", "error", "\ud800"])
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


@st.composite
def spoilt(draw: st.DrawFn) -> str:
    """A report of which some fields are replaced, lost or added, or which is cut short."""
    report = whole()
    for _ in range(draw(st.integers(1, 3))):
        inner: Any = report
        while True:
            keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(inner[key], (dict, list)) and draw(st.integers(0, 4)):
                inner = inner[key]
                continue
            if draw(st.booleans()):
                inner[key] = draw(values)
            elif isinstance(inner, dict) and draw(st.booleans()):
                del inner[key]
            else:
                inner.append(draw(values)) if isinstance(inner, list) else inner.update(new=0)
            break
    text = json.dumps(report)
    return text[: draw(st.integers(0, len(text)))] if draw(st.integers(0, 9)) == 0 else text


def parsed(text: str) -> tuple[dict[str, Any] | None, str]:
    try:
        return parse(text, "hostile.json"), ""
    except ReportError as error:
        return None, str(error)


def stands(text: str) -> None:
    """Parse a text; what is accepted must serve every reader."""
    report, error = parsed(text)
    if report is None:
        assert error.startswith("hostile.json: ")
        return
    for line in compare.lines(WHOLE, report, "whole.json"):
        assert terminal.printable(line).isprintable()
    list(compare.compare(report, WHOLE))
    merged([report, WHOLE])
    for pipeline in report["pipelines"]:
        for finding in pipeline["findings"]:
            for line in terminal.finding_lines(finding, 80):
                assert line.isprintable()


hostile = settings(
    max_examples=2_500, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


@hostile
@given(text=spoilt())
def test_spoilt_reports(text: str) -> None:
    stands(text)


@hostile
@given(text=st.text(max_size=40) | values.map(json.dumps))
def test_texts_that_are_no_reports(text: str) -> None:
    stands(text)
