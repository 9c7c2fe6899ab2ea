"""The report as data: what an item tells, what a session gathers, and the JSON shape."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_dataloader.checks.bottleneck import bound
from pytest_dataloader.checks.finding import Finding
from pytest_dataloader.diagnose import machine
from pytest_dataloader.matrix import LoaderConfig, default_start_method
from pytest_dataloader.observe.facts import CONTENT, SKIPPED, TIMED, RunFacts

if TYPE_CHECKING:
    from pytest_dataloader.judge import Verdict

SCHEMA = "pytest-dataloader/1"
_STDERR_CHARACTERS = 2000
_CONFIG_FIELDS = tuple(one.name for one in fields(LoaderConfig))


def config_to_dict(config: LoaderConfig) -> dict[str, Any]:
    """A configuration; axes that say nothing are left out."""
    told = {"start_method": config.start_method, "num_workers": config.num_workers}
    axes = ("persistent_workers", "prefetch_factor", "pin_memory")
    return told | {a: getattr(config, a) for a in axes if getattr(config, a) is not None}


def finding_to_dict(finding: Finding) -> dict[str, Any]:
    """A finding in the shape of the JSON report."""
    return {
        "code": finding.code,
        "severity": finding.severity,
        "configurations": [config_to_dict(c) for c in finding.configurations],
        "culprit": finding.culprit,
        "message": finding.message,
        "advice": finding.advice,
    }


def run_to_dict(
    run: RunFacts, timed: RunFacts | None = None, stalled: RunFacts | None = None
) -> dict[str, Any]:
    """A run in the shape of the JSON report; the rate is that of the timed pass, if any, the time
    waited that of the pass with a busy consumer."""
    rate = timed.rate if timed is not None else run.rate
    told = config_to_dict(run.config) | {
        "outcome": run.outcome,
        "reason": run.reason,
        "purpose": run.request.purpose,
        "script": run.request.script,
        "start": run.start,
        "seed": run.request.seed,
        "repeat": run.request.repeat,
        "epochs": len(run.epochs),
        "samples": run.samples,
        "batches": run.batches,
        "digest": run.digest,
        "startup_s": run.startup_s,
        "all_workers_s": run.all_workers_s,
        "close_s": run.close_s,
        "duration_s": run.duration_s,
        "batches_per_s": rate.batches_per_s if rate else None,
        "batches_per_s_low": rate.low if rate else None,
        "batches_per_s_high": rate.high if rate else None,
        "samples_per_s": rate.samples_per_s if rate else None,
        "wait_p50_s": rate.wait_p50_s if rate else None,
        "wait_p95_s": rate.wait_p95_s if rate else None,
        "wait_p99_s": rate.wait_p99_s if rate else None,
        "headspace": rate.headspace if rate else None,
        "reference_s": rate.reference_s if rate else None,
        "stall": _plain(stalled.stall) if stalled is not None else None,
        "no_stall_reason": stalled.no_rate_reason if stalled is not None else None,
        "making": _making(run),
        "startup": _plain(run.startup),
        "storage": [asdict(place) for place in run.storage],
        "batch_bytes": run.batch_bytes,
        "no_rate_reason": timed.no_rate_reason if timed is not None else None,
        "worker_unique_bytes": run.worker_unique_bytes,
        "travel_bytes": run.travel_bytes,
        "exit_code": run.exit_code,
        "workers": [_worker(w) for w in run.workers],
        "not_compared": sorted({kind for e in run.epochs for kind in e.not_compared}),
        "warnings": list(run.warnings),
        "notes": list(run.notes),
        "left_behind": {
            "processes": list(run.left_behind.processes),
            "threads": list(run.left_behind.threads),
            "shared_memory": list(run.left_behind.shared_memory),
            "open_files": run.left_behind.open_files,
        },
    }
    if run.outcome != "ok":
        told["stderr_tail"] = run.stderr_tail[-_STDERR_CHARACTERS:]
    return told


def _plain(facts: Any) -> dict[str, Any] | None:
    return asdict(facts) if facts is not None else None


def _making(run: RunFacts) -> dict[str, Any] | None:
    """What it takes to make a batch, and whether each part computes or waits."""
    if run.making is None:
        return None
    parts = {"fetch": run.making.fetch, "collate": run.making.collate}
    told = {name: asdict(part) | {"bound": bound(part)} for name, part in parts.items()}
    return {"batches": run.making.batches, **told, "pickle_s": run.pickle_s}


def _worker(worker: Any) -> dict[str, Any]:
    names = ["worker_id", "pid", "exit_code", "batches", "samples", "cpu_s", "ready_s"]
    names += ["first_batch_s", "unique_bytes", "peak_rss_bytes"]
    return {name: getattr(worker, name) for name in names}


def skipped_run(config: LoaderConfig, reason: str) -> dict[str, Any]:
    """A configuration that this platform lacks."""
    return config_to_dict(config) | {"outcome": SKIPPED, "reason": reason}


def environment() -> dict[str, Any]:
    """What this session runs on."""
    import multiprocessing

    return {
        "os": platform.system(),
        "os_release": platform.release(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "cpus": _cpus(),
        "default_start_method": default_start_method(),
        "start_methods": multiprocessing.get_all_start_methods(),
        "machine": asdict(machine.facts()),
    }


def _version(distribution: str) -> str | None:
    """What is installed, also where it is not imported, as in the controller of xdist."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _cpus() -> int | None:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def told(
    pipeline_id: str,
    config: LoaderConfig,
    verdict: Verdict | None,
    *,
    expected: Sequence[Finding] = (),
    lacking: str | None = None,
    recommendation: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """What one judgement tells the report, as plain data."""
    findings = [
        finding_to_dict(f) | ({"expected": True} if f in expected else {})
        for f in (verdict.findings if verdict else ())
    ]
    runs = list(_runs(verdict)) if verdict else []
    return {
        "pipeline": pipeline_id,
        "config": config.id,
        "families": list(verdict.asked) if verdict else [],
        "runs": [skipped_run(config, lacking)] if lacking else runs,
        "findings": findings,
        "not_judged": list(verdict.not_judged) if verdict else [],
        "judged": verdict is not None,
        "lacking": lacking,
    } | ({"recommendation": recommendation} if recommendation else {})


def _runs(verdict: Verdict) -> Iterator[dict[str, Any]]:
    """The runs of a verdict; the rate of the timed pass is told with the base run."""
    passes = [run for run in verdict.runs if run.request.purpose == TIMED]
    timed = next((run for run in passes if run.request.step_ms is None), None)
    stalled = next((run for run in passes if run.request.step_ms is not None), None)
    base = next((run for run in verdict.runs if run.request.purpose == CONTENT), None)
    for run in verdict.runs:
        if run.request.purpose != TIMED:
            with_passes = (timed, stalled) if run is base else (None, None)
            yield run_to_dict(run, *with_passes)


# The session ---------------------------------------------------------------------------------


@dataclass
class PipelineReport:
    """One pipeline: its runs and its findings, as plain dicts."""

    id: str
    runs: list[dict[str, Any]] = field(default_factory=list)
    findings: list[dict[str, Any]] = field(default_factory=list)
    recommendation: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The pipeline in the shape of the JSON report."""
        told = {"id": self.id, "runs": self.runs, "findings": self.findings}
        return told | ({"recommendation": self.recommendation} if self.recommendation else {})

    def add_run(self, run: dict[str, Any]) -> None:
        """Take in a run once; of two tellings of one run the one with a rate is kept."""
        for index, known in enumerate(self.runs):
            if _run_key(known) == _run_key(run):
                if known.get("batches_per_s") is None:
                    self.runs[index] = run
                return
        self.runs.append(run)

    def add_finding(self, finding: dict[str, Any]) -> None:
        """Take in a finding; the same of another configuration is the same finding."""
        for known in self.findings:
            if _finding_key(known) == _finding_key(finding):
                known["configurations"] += [
                    c for c in finding["configurations"] if c not in known["configurations"]
                ]
                return
        self.findings.append({**finding, "configurations": list(finding["configurations"])})


def _run_key(run: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(run.get(n) for n in (*_CONFIG_FIELDS, "seed", "repeat", "purpose", "script"))


def _finding_key(finding: Mapping[str, Any]) -> tuple[Any, ...]:
    return finding["code"], finding["severity"], finding["culprit"], bool(finding.get("expected"))


@dataclass
class Row:
    """How many tests of one configuration passed, failed and were skipped."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0


@dataclass
class Report:
    """What a session gathered, from the plain dicts that its items told."""

    environment: dict[str, Any] = field(default_factory=dict)
    pipelines: dict[str, PipelineReport] = field(default_factory=dict)
    rows: dict[str, Row] = field(default_factory=dict)
    ran: int = 0
    expected: int = 0
    not_judged: dict[str, int] = field(default_factory=dict)
    platform_skips: dict[str, int] = field(default_factory=dict)
    user_skips: dict[str, int] = field(default_factory=dict)

    def add(self, told: Mapping[str, Any], outcome: str, skip_reason: str | None) -> None:
        """Take in what one item told, with its outcome: passed, failed, skipped or xfailed."""
        pipeline = self.pipelines.setdefault(told["pipeline"], PipelineReport(told["pipeline"]))
        for run in told["runs"]:
            pipeline.add_run(run)
        for finding in told["findings"]:
            pipeline.add_finding(finding)
        pipeline.recommendation = pipeline.recommendation or told.get("recommendation")
        self._count(told, outcome, skip_reason)

    def _count(self, told: Mapping[str, Any], outcome: str, skip_reason: str | None) -> None:
        row = self.rows.setdefault(told["config"], Row())
        for reason in told["not_judged"]:
            self.not_judged[reason] = self.not_judged.get(reason, 0) + 1
        if outcome == "skipped" and not told["judged"]:
            row.skipped += 1
            skips = self.platform_skips if told["lacking"] else self.user_skips
            reason = told["lacking"] or skip_reason or "no reason given"
            skips[reason] = skips.get(reason, 0) + 1
            return
        self.ran += 1
        if outcome == "xfailed":
            self.expected += 1
        elif outcome == "skipped":
            row.skipped += 1
        elif outcome == "failed":
            row.failed += 1
        else:
            row.passed += 1

    @property
    def findings(self) -> Iterator[dict[str, Any]]:
        """All findings of all pipelines."""
        return (f for p in self.pipelines.values() for f in p.findings)

    def to_dict(self) -> dict[str, Any]:
        """The JSON report."""
        return {
            "schema": SCHEMA,
            "environment": self.environment,
            "pipelines": [p.to_dict() for p in self.pipelines.values()],
            "checks": {
                "ran": self.ran,
                "expected_to_fail": self.expected,
                "not_judged": self.not_judged,
                "skipped_by_platform": self.platform_skips,
                "skipped_by_user": self.user_skips,
            },
        }

    def write(self, path: Path) -> None:
        """Write the JSON report in one step: a reader sees the old file or the new one."""
        text = json.dumps(finite(self.to_dict()), indent=1, allow_nan=False)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            draft.write_text(text + "\n", encoding="utf-8")
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)


def finite(value: Any) -> Any:
    """The same plain data with None in the place of infinities and NaN, which JSON lacks."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def config_of(told: Mapping[str, Any]) -> LoaderConfig:
    """The configuration of a run, or of a finding, as it was told."""
    return LoaderConfig(**{name: told.get(name) for name in _CONFIG_FIELDS})


def configuration_words(configurations: Iterable[Mapping[str, Any]]) -> str:
    """Configurations as their ids, such as ``spawn-w2, forkserver-w2``."""
    return ", ".join(config_of(c).id for c in configurations)


def merged(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One report of several, such as those of three platforms; each run says its ``os``.

    The environment is that of the first; all of them are under ``environments``.
    """
    pipelines: dict[str, dict[str, Any]] = {}
    for report in reports:
        system = report["environment"].get("os")
        for one in report["pipelines"]:
            whole = pipelines.setdefault(one["id"], {"id": one["id"], "runs": [], "findings": []})
            whole["runs"] += [{**run, "os": system} for run in one["runs"]]
            whole["findings"] += [{**finding, "os": system} for finding in one["findings"]]
    return {
        "schema": SCHEMA,
        "environment": reports[0]["environment"],
        "environments": [report["environment"] for report in reports],
        "pipelines": list(pipelines.values()),
    }
