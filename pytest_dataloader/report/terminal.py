"""The terminal section: an iterator of lines that a unit test reads without pytest."""

from __future__ import annotations

import re
import statistics
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pytest_dataloader.checks.finding import SEVERITIES
from pytest_dataloader.matrix import START_METHODS
from pytest_dataloader.observe.facts import WARM_START
from pytest_dataloader.report.schema import Report, config_of, configuration_words

_NO_DATA = "-"
_METHODS = ("w0", *START_METHODS)
_WORDS = ("code", "severity", "culprit", "message")


def printable(text: str) -> str:
    """A text with what steers a terminal escaped: words of the user's may hold anything."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def lines(report: Report, *, width: int = 88, verbose: int = 0) -> Iterator[str]:
    """The whole section: the table, the findings by pipelines, the counts."""
    return map(printable, _lines(report, width, verbose))


def _lines(report: Report, width: int, verbose: int) -> Iterator[str]:
    if not report.rows:
        yield "no data: no test of this session used a pipeline"
        return
    yield from table(report)
    yield ""
    found = list(_findings(report, width, verbose))
    if found:
        yield from found
        yield ""
    yield from recommendations(report)
    yield from counts(report)


def recommendations(report: Report) -> Iterator[str]:
    """What --dl-tune has measured, and what it recommends."""
    for pipeline in report.pipelines.values():
        if pipeline.recommendation:
            yield f"{pipeline.id}: measured by --dl-tune"
            yield from (f"  {line}" for line in pipeline.recommendation["lines"])
            yield ""


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
        cells = [
            row[0].ljust(widths[0]),
            *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)),
        ]
        yield "  ".join(cells).rstrip()


def _order(name: str) -> tuple[int, list[str | int]]:
    """Start methods in their own order; within one, numbers by size."""
    method = name.split("-", maxsplit=1)[0]
    place = _METHODS.index(method) if method in _METHODS else len(_METHODS)
    return place, [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _row(report: Report, name: str) -> tuple[str, ...]:
    row = report.rows[name]
    runs = [run for p in report.pipelines.values() for run in p.runs if config_of(run).id == name]
    base = [run for run in runs if run.get("repeat") == 0 and run["outcome"] == "ok"]
    started = [run for run in base if run.get("start") != WARM_START]
    return (
        name,
        str(row.passed),
        str(row.failed),
        str(row.skipped),
        _median(started, "startup_s", lambda v: f"{_number(v, 3)} s"),
        _median(base, "batches_per_s", lambda v: f"{_number(v, 4)} batches/s"),
        _median(started, "worker_unique_bytes", lambda v: f"{v / 2**20:,.0f} MiB"),
        _speedup(report, name),
    )


def _number(value: float, digits: int) -> str:
    """A whole number with thousands separators, or a smaller one with a few digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.{digits}g}"


def _median(runs: Iterable[Mapping[str, Any]], key: str, shown: Callable[[Any], str]) -> str:
    values = [run[key] for run in runs if run.get(key) is not None]
    return shown(statistics.median(values)) if values else _NO_DATA


def _speedup(report: Report, name: str) -> str:
    """The median over pipelines of the rate over that pipeline's rate with 0 workers."""
    ratios = []
    for pipeline in report.pipelines.values():
        rates = {config_of(r): r["batches_per_s"] for r in pipeline.runs if r.get("batches_per_s")}
        for config, rate in rates.items():
            alone = rates.get(config.without_workers())
            if config.id == name and config.has_workers and alone:
                ratios.append(rate / alone)
    if not ratios:
        return _NO_DATA
    median = statistics.median(ratios)
    return f"{median:,.0f}x" if median >= 10 else f"{median:.2g}x"


def _findings(report: Report, width: int, verbose: int) -> Iterator[str]:
    for pipelines, findings in _by_pipelines(report).items():
        yield from pipelines
        for finding in sorted(findings, key=lambda f: SEVERITIES.index(f["severity"])):
            yield from finding_lines(finding, width, verbose)


def _by_pipelines(report: Report) -> dict[tuple[str, ...], list[dict[str, Any]]]:
    """Findings by the pipelines that share them: many tests share one pipeline, told once."""
    told: dict[tuple[Any, ...], dict[str, Any]] = {}
    owners: dict[tuple[Any, ...], dict[str, None]] = {}
    for pipeline in report.pipelines.values():
        for finding in pipeline.findings:
            key = (*(finding[n] for n in _WORDS), bool(finding.get("expected")))
            known = told.setdefault(key, {**finding, "configurations": []})["configurations"]
            known += [c for c in finding["configurations"] if c not in known]
            owners.setdefault(key, {})[pipeline.id] = None
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for key, finding in told.items():
        groups.setdefault(tuple(owners[key]), []).append(finding)
    return groups


def finding_lines(finding: Mapping[str, Any], width: int, verbose: int = 0) -> Iterator[str]:
    """One finding: its code, culprit and configurations, what was seen, what to do."""
    label = "expected" if finding.get("expected") else finding["severity"]
    culprit = f" {finding['culprit']}" if finding["culprit"] else ""
    where = configuration_words(finding["configurations"])
    yield printable(f"  {label} {finding['code']}:{culprit} [{where}]".replace("\n", "\\n"))
    body = width - 6
    yield from _wrapped(finding["message"], body)
    if finding["severity"] != "info" or verbose > 0:
        yield from _wrapped(f"To do: {finding['advice']}", body)


def _wrapped(text: str, width: int) -> Iterator[str]:
    for part in map(printable, text.splitlines() or [""]):
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
