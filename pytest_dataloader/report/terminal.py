"""The terminal section: an iterator of lines that a unit test reads without pytest."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pytest_dataloader.report.schema import PipelineReport, Report, configuration_words

_NO_DATA = "-"


def lines(report: Report, *, width: int = 88, verbose: int = 0) -> Iterator[str]:
    """The whole section: the table, the findings by pipeline, the counts."""
    if not report.rows:
        yield "no data: no test of this session used a pipeline"
        return
    yield from table(report)
    yield ""
    found = False
    for pipeline in report.pipelines.values():
        for line in _findings(pipeline, width, verbose):
            found = True
            yield line
    if found:
        yield ""
    yield from counts(report)


def table(report: Report) -> Iterator[str]:
    """A row a configuration: tests, first batch, steady rate, memory, speed-up over 0 workers."""
    head = (
        "configuration",
        "passed",
        "failed",
        "skipped",
        "first batch",
        "steady rate",
        "memory/worker",
        "speed-up",
    )
    rows = [head, *(_row(report, name) for name in sorted(report.rows, key=_order))]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
        yield "  ".join(cells).rstrip()


def _order(name: str) -> tuple[int, str]:
    methods = ("w0", "fork", "spawn", "forkserver")
    return methods.index(name.split("-")[0]) if name.split("-")[0] in methods else 9, name


def _row(report: Report, name: str) -> tuple[str, ...]:
    row = report.rows[name]
    runs = [run for p in report.pipelines.values() for run in p.runs if _name(run) == name]
    base = [run for run in runs if run.get("repeat") == 0 and run["outcome"] == "ok"]
    return (
        name,
        str(row.passed),
        str(row.failed),
        str(row.skipped),
        _median(base, "startup_s", lambda v: f"{v:.3g} s"),
        _median(base, "batches_per_s", lambda v: f"{v:,.4g} batches/s"),
        _median(base, "worker_unique_bytes", lambda v: f"{v / 2**20:.0f} MiB"),
        _speedup(report, name),
    )


def _name(run: Mapping[str, Any]) -> str:
    keys = ("start_method", "num_workers", "persistent_workers", "prefetch_factor", "pin_memory")
    return configuration_words([{key: run.get(key) for key in keys}])


def _median(runs: Iterable[Mapping[str, Any]], key: str, shown: Any) -> str:
    values = [run[key] for run in runs if run.get(key) is not None]
    return shown(statistics.median(values)) if values else _NO_DATA


def _speedup(report: Report, name: str) -> str:
    """The median over pipelines of the rate over that pipeline's rate with 0 workers."""
    if name.startswith("w0"):
        return _NO_DATA
    ratios = []
    for pipeline in report.pipelines.values():
        rates = {_name(r): r["batches_per_s"] for r in pipeline.runs if r.get("batches_per_s")}
        if rates.get(name) and rates.get("w0"):
            ratios.append(rates[name] / rates["w0"])
    return f"{statistics.median(ratios):.2g}x" if ratios else _NO_DATA


def _findings(pipeline: PipelineReport, width: int, verbose: int) -> Iterator[str]:
    if not pipeline.findings:
        return
    yield pipeline.id
    for finding in pipeline.findings:
        yield from finding_lines(finding, width, verbose)


def finding_lines(finding: Mapping[str, Any], width: int, verbose: int = 0) -> Iterator[str]:
    """One finding: its code, culprit and configurations, what was seen, what to do."""
    label = "expected" if finding.get("expected") else finding["severity"]
    culprit = f" {finding['culprit']}" if finding["culprit"] else ""
    where = configuration_words(finding["configurations"])
    yield f"  {label} {finding['code']}:{culprit} [{where}]"
    body = width - 6
    yield from _wrapped(finding["message"], body)
    if finding["severity"] != "info" or verbose > 0:
        yield from _wrapped(f"To do: {finding['advice']}", body)


def _wrapped(text: str, width: int) -> Iterator[str]:
    for part in text.splitlines() or [""]:
        yield from textwrap.wrap(
            part,
            width,
            initial_indent="      ",
            subsequent_indent="      ",
            break_long_words=False,
            break_on_hyphens=False,
        )


def counts(report: Report) -> Iterator[str]:
    """How many checks ran, were skipped and why, were expected to fail, were not judged."""
    skipped = sum(report.platform_skips.values()) + sum(report.user_skips.values())
    not_judged = sum(report.not_judged.values())
    yield (
        f"checks: {report.ran} ran, {skipped} skipped, {report.expected} expected to fail, "
        f"{not_judged} not judged"
    )
    for kind, reasons in (
        ("skipped by platform", report.platform_skips),
        ("skipped by the tests", report.user_skips),
        ("not judged", report.not_judged),
    ):
        for reason, count in reasons.items():
            yield f"  {kind}: {count} x {reason}"
