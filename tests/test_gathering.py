"""The gatherer: reads tests' reports, prints the session's and writes it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_dataloader.gathering import Gatherer
from pytest_dataloader.report.schema import Report, Row
from pytest_dataloader.settings import Settings


class FakeReporter:
    """Keeps what is written to the terminal."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write_sep(self, sep: str, title: str) -> None:
        self.lines.append(f"{sep} {title}")

    def write_line(self, line: str) -> None:
        self.lines.append(line)


class FakeConfig:
    """Of a pytest.Config, what the gatherer uses; the hook has one more implementation."""

    def __init__(
        self, *, width: int = 200, verbosity: int = 0, others: Any = (), collectonly: bool = False
    ) -> None:
        self.option = SimpleNamespace(collectonly=collectonly)
        self.width = width
        self.verbosity = verbosity
        self.others = others
        self.gatherer: Gatherer | None = None
        self.pluginmanager = SimpleNamespace(hook=SimpleNamespace(pytest_dl_report=self.hook))

    def hook(self, *, report: Report, config: Any) -> list[Any]:
        assert self.gatherer is not None
        return [self.gatherer.pytest_dl_report(report, config), *self.others]

    def get_terminal_writer(self) -> Any:
        return SimpleNamespace(fullwidth=self.width)

    def get_verbosity(self) -> int:
        return self.verbosity


def gatherer(settings: Settings | None = None, **config: Any) -> Gatherer:
    fake: Any = FakeConfig(**config)
    fake.gatherer = Gatherer(fake, settings or Settings())
    return fake.gatherer


def finding(message: str, severity: str = "error") -> dict[str, Any]:
    return {
        "code": "raises",
        "severity": severity,
        "configurations": [{"start_method": "spawn", "num_workers": 2}],
        "culprit": "words.py:3",
        "message": message,
        "advice": "Mend it.",
    }


def report_of(outcome: str, told: Any = None, **more: Any) -> pytest.TestReport:
    report = pytest.TestReport(
        "test_words.py::test_words[spawn-w2]",
        ("test_words.py", 3, "test_words[spawn-w2]"),
        {},
        outcome,
        more.pop("longrepr", None),
        "call",
        **more,
    )
    if told is not None:
        report.dataloader = {
            "pipeline": "test_words.py::test_words",
            "config": "spawn-w2",
            "runs": [],
            "findings": [],
            "not_judged": [],
            "judged": True,
            "lacking": None,
            **told,
        }
    return report


def printed(one: Gatherer) -> list[str]:
    reporter = FakeReporter()
    one.pytest_terminal_summary(reporter, pytest.ExitCode.OK)
    return reporter.lines


# Outcomes ----------------------------------------------------------------------------------------


def gathered(report: pytest.TestReport) -> Report:
    one = gatherer()
    one.pytest_runtest_logreport(report)
    assert one.report is not None
    return one.report


@pytest.mark.parametrize(
    ("report", "row", "expected"),
    [
        (report_of("passed", {}), Row(1, 0, 0), 0),
        (report_of("failed", {}), Row(0, 1, 0), 0),
        (report_of("skipped", {}, wasxfail="reason: known"), Row(0, 0, 0), 1),
        (report_of("passed", {}, wasxfail="known"), Row(1, 0, 0), 0),
        (report_of("skipped", {}, longrepr=("f", 1, "Skipped: not judged")), Row(0, 0, 1), 0),
    ],
    ids=["passed", "failed", "xfailed", "xpassed", "not-judged"],
)
def test_an_outcome_is_counted(report, row, expected) -> None:
    session = gathered(report)
    assert (session.rows, session.ran, session.expected) == ({"spawn-w2": row}, 1, expected)


@pytest.mark.parametrize(
    ("longrepr", "reason"),
    [
        (("test_words.py", 3, "Skipped: no data here"), "no data here"),
        (("test_words.py", 3, "no data here"), "no data here"),
        ("no data here", "no reason given"),
        (None, "no reason given"),
    ],
)
def test_a_skip_by_the_tests_has_its_reason(longrepr, reason) -> None:
    session = gathered(report_of("skipped", {"judged": False}, longrepr=longrepr))
    assert session.user_skips == {reason: 1}
    assert (session.ran, session.platform_skips) == (0, {})


def test_a_skip_by_the_platform_has_the_platform_s_reason() -> None:
    lacking = "fork is not available on Windows"
    told = {"judged": False, "lacking": lacking}
    session = gathered(report_of("skipped", told, longrepr=("f", 1, f"Skipped: {lacking}")))
    assert session.platform_skips == {lacking: 1}
    assert (session.ran, session.user_skips) == (0, {})


def test_a_failure_s_text_is_no_reason_for_a_skip() -> None:
    session = gathered(report_of("failed", {"judged": False}, longrepr=("f", 1, "Skipped: no")))
    assert (session.ran, session.user_skips) == (1, {})


# The end of the session --------------------------------------------------------------------------


def test_a_session_of_other_tests_prints_nothing() -> None:
    one = gatherer()
    one.pytest_runtest_logreport(report_of("passed"))
    assert printed(one) == []


def test_a_session_that_was_asked_and_used_nothing_says_so() -> None:
    asked = Settings(sources={"num_workers": "--dl-num-workers", "seeds": "default"})
    assert printed(gatherer(asked)) == [
        "= dataloader report",
        "no data: no test of this session used a pipeline",
    ]
    assert printed(gatherer(Settings(sources={"num_workers": "the ini file"}))) == []


def test_a_session_that_only_collects_prints_nothing() -> None:
    asked = Settings(sources={"num_workers": "--dl-num-workers"})
    assert printed(gatherer(asked, collectonly=True)) == []


def test_the_section_is_printed_with_what_other_plugins_add() -> None:
    one = gatherer(others=[None, [], ["uploaded", "twice"]])
    one.pytest_runtest_logreport(report_of("passed", {}))
    assert printed(one) == [
        "= dataloader report",
        "configuration  passed  failed  skipped  first batch  steady rate  memory/worker  speed-up",
        "spawn-w2            1       0        0            -            -              -         -",
        "",
        "checks: 1 ran, 0 skipped, 0 expected to fail, 0 not judged",
        "uploaded",
        "twice",
    ]


@pytest.mark.parametrize(("width", "most"), [(60, 60), (100, 100), (300, 100)])
def test_words_are_wrapped_to_the_terminal_and_to_100_columns(width, most) -> None:
    one = gatherer(width=width)
    one.pytest_runtest_logreport(report_of("failed", {"findings": [finding(60 * "long ")]}))
    longest = max(len(line) for line in printed(one) if line.startswith("      "))
    assert most - 12 < longest <= most


@pytest.mark.parametrize(("verbosity", "shown"), [(-1, False), (0, False), (1, True)])
def test_advice_of_information_is_printed_where_the_session_is_verbose(verbosity, shown) -> None:
    one = gatherer(verbosity=verbosity)
    one.pytest_runtest_logreport(report_of("passed", {"findings": [finding("It is so.", "info")]}))
    lines = printed(one)
    assert "      It is so." in lines
    assert ("      To do: Mend it." in lines) is shown


# The file ----------------------------------------------------------------------------------------


def test_the_json_report_is_written_and_its_place_is_told(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    one = gatherer(Settings(report=path))
    one.pytest_runtest_logreport(report_of("failed", {"findings": [finding("It raised.")]}))
    one.pytest_sessionfinish(SimpleNamespace(exitstatus=0))
    written = json.loads(path.read_text(encoding="utf-8"))
    assert [pipeline["findings"] for pipeline in written["pipelines"]] == [[finding("It raised.")]]
    assert written["environment"]["python"]
    assert printed(one)[-1] == f"JSON report: {path}"


def test_a_session_without_a_pipeline_writes_a_report_without_any(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    one = gatherer(Settings(report=path))
    one.pytest_runtest_logreport(report_of("passed"))
    one.pytest_sessionfinish(SimpleNamespace(exitstatus=0))
    written = json.loads(path.read_text(encoding="utf-8"))
    assert (written["pipelines"], written["checks"]["ran"]) == ([], 0)
    assert printed(one) == [
        "= dataloader report",
        "no data: no test of this session used a pipeline",
        f"JSON report: {path}",
    ]


def test_without_an_option_no_report_is_made_or_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    one = gatherer()
    one.pytest_runtest_logreport(report_of("passed"))
    one.pytest_sessionfinish(SimpleNamespace(exitstatus=0))
    assert one.report is None
    assert list(tmp_path.iterdir()) == []
