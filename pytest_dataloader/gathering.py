"""Gathers what tests told, where their reports arrive, and reports it at the end of the session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_dataloader.report.schema import Report
    from pytest_dataloader.settings import Settings


class Gatherer:
    """Reads tests' reports alike with and without xdist; prints and writes the session's report."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self.config = config
        self.settings = settings
        self.report: Report | None = None
        # What the comparison with an earlier report says; filled when the session ends.
        self.compared: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        told = getattr(report, "dataloader", None)
        if told is not None:
            self._report().add(told, *_outcome(report))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.settings.compare is not None:
            self._compare(session, self.settings.compare)
        if self.settings.report is not None:
            self._finished().write(self.settings.report)

    def _compare(self, session: pytest.Session, path: Path) -> None:
        """Lay this session beside an earlier report; what became worse fails the session."""
        from pytest_dataloader.report import compare, reading, schema

        old, new = reading.read(path), schema.finite(self._finished().to_dict())
        self.compared = list(compare.lines(old, new, str(path)))
        worse = any(one.worse for one in compare.compare(old, new))
        if worse and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any, exitstatus: int) -> None:
        nothing_asked = self.report is None and not self.settings.was_asked
        cut_short = exitstatus in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.INTERNAL_ERROR)
        if nothing_asked or cut_short or self.config.option.collectonly:
            return
        from pytest_dataloader.report.terminal import printable

        report = self._finished()
        told = self.config.pluginmanager.hook.pytest_dl_report(report=report, config=self.config)
        terminalreporter.write_sep("=", "dataloader report")
        for lines in told:
            for line in lines or ():
                terminalreporter.write_line(line)
        for line in self.compared:
            terminalreporter.write_line(printable(line))
        if self.settings.report is not None:
            terminalreporter.write_line(f"JSON report: {self.settings.report}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_dl_report(self, report: Report, config: pytest.Config) -> list[str]:
        from pytest_dataloader.report import terminal

        width = min(config.get_terminal_writer().fullwidth, 100)
        return list(terminal.lines(report, width=width, verbose=config.get_verbosity()))

    def _report(self) -> Report:
        if self.report is None:
            from pytest_dataloader.report.schema import Report

            self.report = Report()
        return self.report

    def _finished(self) -> Report:
        from pytest_dataloader.report import schema

        report = self._report()
        report.environment = report.environment or schema.environment()
        return report


def _outcome(report: pytest.TestReport) -> tuple[str, str | None]:
    """passed, failed, skipped or xfailed, and a skip's reason."""
    if report.skipped and hasattr(report, "wasxfail"):
        return "xfailed", None
    reason = None
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = str(report.longrepr[2]).removeprefix("Skipped: ")
    return report.outcome, reason
