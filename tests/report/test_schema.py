"""The report as data: the shape of the JSON, what is merged and what is counted."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from importlib import metadata
from pathlib import Path

import pytest

from pytest_dataloader.checks.finding import Finding
from pytest_dataloader.judge import Verdict
from pytest_dataloader.matrix import LoaderConfig
from pytest_dataloader.observe.facts import (
    TIMED,
    EpochFacts,
    LeftBehind,
    MakingFacts,
    PartFacts,
    RateFacts,
    RunFacts,
    RunRequest,
    StallFacts,
    WorkerFacts,
)
from pytest_dataloader.report import schema
from pytest_dataloader.report.schema import PipelineReport, Report, Row

SPAWN = LoaderConfig("spawn", 2)
FORK = LoaderConfig("fork", 2)
LACKING = "fork is not available on Windows"

EPOCH = EpochFacts(0, 4, 16, "d1", "m1", (), (), (), not_compared=("words.Token",))
WORKER = WorkerFacts(0, 4711, 0, 2, 8, 0.5, 2.5, 3.0, 2**20, 2**21)
RATE = RateFacts(100, 400, 2.0, 50.0, 45.0, math.inf, 200.0, 10)
BASE = RunFacts(
    RunRequest(SPAWN, seed=7),
    "true",
    "ok",
    epochs=(EPOCH, EPOCH),
    workers=(WORKER,),
    startup_s=3.0,
    all_workers_s=3.5,
    close_s=0.1,
    travel_bytes=500,
    warnings=("a warning",),
    notes=("a note",),
    left_behind=LeftBehind(("python (4711)",), ("pin",), ("psm_1",), 2),
    exit_code=0,
    duration_s=4.0,
    stderr_tail="noise",
)
PASS = RunFacts(RunRequest(SPAWN, seed=7, purpose=TIMED), "warm", "ok", rate=RATE)
FINDING = Finding("raises", "error", (SPAWN,), "words.py:3", "It raised.", "Mend it.")

FINDING_TOLD = {
    "code": "raises",
    "severity": "error",
    "configurations": [{"start_method": "spawn", "num_workers": 2}],
    "culprit": "words.py:3",
    "message": "It raised.",
    "advice": "Mend it.",
}
RUN_TOLD = {
    "start_method": "spawn",
    "num_workers": 2,
    "outcome": "ok",
    "reason": None,
    "purpose": "content",
    "script": None,
    "start": "true",
    "seed": 7,
    "repeat": 0,
    "epochs": 2,
    "samples": 32,
    "batches": 8,
    "digest": "d1-d1",
    "startup_s": 3.0,
    "all_workers_s": 3.5,
    "close_s": 0.1,
    "duration_s": 4.0,
    "batches_per_s": 50.0,
    "batches_per_s_low": 45.0,
    "batches_per_s_high": math.inf,
    "samples_per_s": 200.0,
    "wait_p50_s": None,
    "wait_p95_s": None,
    "wait_p99_s": None,
    "headspace": None,
    "reference_s": None,
    "stall": None,
    "no_stall_reason": None,
    "making": None,
    "startup": None,
    "storage": [],
    "batch_bytes": None,
    "no_rate_reason": None,
    "worker_unique_bytes": 2**20,
    "travel_bytes": 500,
    "exit_code": 0,
    "workers": [
        {
            "worker_id": 0,
            "pid": 4711,
            "exit_code": 0,
            "batches": 2,
            "samples": 8,
            "cpu_s": 0.5,
            "ready_s": 2.5,
            "first_batch_s": 3.0,
            "unique_bytes": 2**20,
            "peak_rss_bytes": 2**21,
        }
    ],
    "not_compared": ["words.Token"],
    "warnings": ["a warning"],
    "notes": ["a note"],
    "left_behind": {
        "processes": ["python (4711)"],
        "threads": ["pin"],
        "shared_memory": ["psm_1"],
        "open_files": 2,
    },
}


def verdict(*findings, runs=(BASE, PASS), not_judged=()):
    return Verdict(findings, not_judged, runs, ("runs", "determinism"))


def telling(**more):
    """What an item tells, by hand."""
    return {
        "pipeline": "test_words",
        "config": "spawn-w2",
        "runs": [],
        "findings": [],
        "not_judged": [],
        "judged": True,
        "lacking": None,
        **more,
    }


# What an item tells ------------------------------------------------------------------------------


def test_a_finding_as_data() -> None:
    assert schema.finding_to_dict(FINDING) == FINDING_TOLD


def test_axes_that_say_nothing_are_left_out() -> None:
    assert schema.config_to_dict(SPAWN) == {"start_method": "spawn", "num_workers": 2}
    every = LoaderConfig("spawn", 2, persistent_workers=False, prefetch_factor=4, pin_memory=True)
    assert schema.config_to_dict(every) == {
        "start_method": "spawn",
        "num_workers": 2,
        "persistent_workers": False,
        "prefetch_factor": 4,
        "pin_memory": True,
    }


def test_a_run_as_data_with_the_rate_of_its_timed_pass() -> None:
    assert schema.run_to_dict(BASE, PASS) == RUN_TOLD


def test_a_run_without_a_timed_pass_has_no_rate() -> None:
    told = schema.run_to_dict(BASE)
    assert {name: told[name] for name in told if "_per_s" in name} == {
        "batches_per_s": None,
        "batches_per_s_low": None,
        "batches_per_s_high": None,
        "samples_per_s": None,
    }


def test_a_timed_pass_without_a_rate_says_why() -> None:
    why = RunFacts(PASS.request, "warm", "ok", no_rate_reason="a rate needs 3 batches")
    told = schema.run_to_dict(BASE, why)
    assert (told["batches_per_s"], told["no_rate_reason"]) == (None, "a rate needs 3 batches")


def test_a_run_that_failed_quotes_the_end_of_its_standard_error() -> None:
    failed = RunFacts(BASE.request, "true", "died", "a worker died", stderr_tail=5000 * "x" + "end")
    told = schema.run_to_dict(failed)
    assert (told["outcome"], told["reason"]) == ("died", "a worker died")
    assert told["stderr_tail"] == 1997 * "x" + "end"


def test_what_an_item_tells() -> None:
    hang = Finding("hang", "error", (SPAWN,), None, "It hung.", "Mend it.")
    repeat = RunFacts(RunRequest(SPAWN, seed=7, repeat=1), "warm", "ok", epochs=(EPOCH,))
    found = verdict(FINDING, hang, runs=(BASE, PASS, repeat), not_judged=("no rate",))
    told = schema.told("test_words", SPAWN, found, expected=[hang])
    runs = told.pop("runs")
    assert told == {
        "pipeline": "test_words",
        "config": "spawn-w2",
        "families": ["runs", "determinism"],
        "findings": [
            FINDING_TOLD,
            {
                "code": "hang",
                "severity": "error",
                "configurations": [{"start_method": "spawn", "num_workers": 2}],
                "culprit": None,
                "message": "It hung.",
                "advice": "Mend it.",
                "expected": True,
            },
        ],
        "not_judged": ["no rate"],
        "judged": True,
        "lacking": None,
    }
    assert runs[0] == RUN_TOLD
    assert [(run["repeat"], run["batches_per_s"]) for run in runs] == [(0, 50.0), (1, None)]


def test_what_it_takes_to_make_a_batch_and_what_a_busy_loop_waits() -> None:
    waits = PartFacts(0.1, 0.01, 0.0, 0.09)
    making = MakingFacts(4, waits, PartFacts(0.1, 0.1, 0.0, 0.0))
    run = dataclasses.replace(BASE, making=making, pickle_s=0.5)
    stall = StallFacts(20, 0.5, 0.4, 0.6, 100, 3.0, 10, 0.01, 0.02)
    told = schema.run_to_dict(run, None, dataclasses.replace(PASS, rate=None, stall=stall))
    assert told["making"] == {
        "batches": 4,
        "fetch": {**dataclasses.asdict(waits), "bound": "I/O-bound"},
        "collate": {"seconds": 0.1, "cpu_s": 0.1, "queued_s": 0.0, "blocked_s": 0.0}
        | {"bound": "CPU-bound"},
        "pickle_s": 0.5,
    }
    assert told["stall"] == dataclasses.asdict(stall)


def test_what_an_item_tells_whose_start_method_the_platform_lacks() -> None:
    assert schema.told("test_words", FORK, None, lacking=LACKING) == {
        "pipeline": "test_words",
        "config": "fork-w2",
        "families": [],
        "runs": [
            {"start_method": "fork", "num_workers": 2, "outcome": "skipped", "reason": LACKING}
        ],
        "findings": [],
        "not_judged": [],
        "judged": False,
        "lacking": LACKING,
    }


# What a session gathers --------------------------------------------------------------------------


@pytest.mark.parametrize("rate_first", [True, False])
def test_a_run_told_twice_is_kept_once_with_its_rate(rate_first) -> None:
    tellings = [schema.run_to_dict(BASE, PASS), schema.run_to_dict(BASE)]
    report = Report()
    for run in tellings if rate_first else reversed(tellings):
        report.add(telling(runs=[run]), "passed", None)
    assert report.pipelines["test_words"].runs == [RUN_TOLD]


@pytest.mark.parametrize(
    "other",
    [
        {"start_method": "fork"},
        {"num_workers": 4},
        {"persistent_workers": True},
        {"prefetch_factor": 4},
        {"pin_memory": True},
        {"seed": 8},
        {"repeat": 1},
        {"purpose": "script"},
    ],
)
def test_another_run_is_kept_too(other) -> None:
    pipeline = PipelineReport("test_words")
    pipeline.add_run(RUN_TOLD)
    pipeline.add_run(RUN_TOLD | other)
    assert pipeline.runs == [RUN_TOLD, RUN_TOLD | other]


def test_runs_of_several_pipelines_stay_apart() -> None:
    report = Report()
    report.add(telling(pipeline="test_a", runs=[RUN_TOLD]), "passed", None)
    report.add(telling(pipeline="test_b", runs=[RUN_TOLD]), "passed", None)
    assert {name: len(one.runs) for name, one in report.pipelines.items()} == {
        "test_a": 1,
        "test_b": 1,
    }


def test_the_first_recommendation_for_a_pipeline_is_kept() -> None:
    report = Report()
    report.add(telling(), "passed", None)
    assert report.to_dict()["pipelines"] == [{"id": "test_words", "runs": [], "findings": []}]
    report.add(telling(recommendation={"lines": ["a"]}), "passed", None)
    report.add(telling(recommendation={"lines": ["b"]}), "passed", None)
    assert report.to_dict()["pipelines"][0]["recommendation"] == {"lines": ["a"]}


def test_findings_of_several_configurations_merge() -> None:
    fork = {"start_method": "fork", "num_workers": 2}
    spawn = {"start_method": "spawn", "num_workers": 2}
    report = Report()
    for configurations in ([spawn], [fork, spawn]):
        told = FINDING_TOLD | {"configurations": configurations, "message": f"{configurations}"}
        report.add(telling(findings=[told]), "failed", None)
    assert list(report.findings) == [
        FINDING_TOLD | {"configurations": [spawn, fork], "message": f"{[spawn]}"}
    ]


def test_merging_leaves_what_was_told_as_it_was() -> None:
    told = telling(findings=[schema.finding_to_dict(FINDING)])
    report = Report()
    report.add(told, "failed", None)
    other = FINDING_TOLD | {"configurations": [{"start_method": "fork", "num_workers": 2}]}
    report.add(telling(findings=[other]), "failed", None)
    assert told["findings"] == [FINDING_TOLD]


@pytest.mark.parametrize(
    "other",
    [{"code": "hang"}, {"severity": "warning"}, {"culprit": "words.py:4"}, {"expected": True}],
)
def test_another_finding_is_kept_too(other) -> None:
    report = Report()
    report.add(telling(findings=[FINDING_TOLD, FINDING_TOLD | other]), "failed", None)
    assert len(list(report.findings)) == 2


def counted(*outcomes):
    report = Report()
    for told, outcome, *reason in outcomes:
        report.add(told, outcome, *(reason or [None]))
    return report


def test_outcomes_are_counted() -> None:
    report = counted(
        (telling(), "passed"),
        (telling(), "failed"),
        (telling(), "xfailed"),
        (telling(not_judged=["no rate"]), "skipped", "not judged: no rate"),
        (telling(judged=False), "skipped", "no data here"),
        (telling(judged=False), "skipped"),
        (telling(judged=False), "passed"),
        (telling(judged=False, lacking=LACKING, config="fork-w2"), "skipped", "whatever"),
        (telling(not_judged=["no rate", "no samples"]), "passed"),
    )
    assert report.rows == {"spawn-w2": Row(3, 1, 3), "fork-w2": Row(0, 0, 1)}
    assert report.to_dict()["checks"] == {
        "ran": 6,
        "expected_to_fail": 1,
        "not_judged": {"no rate": 2, "no samples": 1},
        "skipped_by_platform": {LACKING: 1},
        "skipped_by_user": {"no data here": 1, "no reason given": 1},
    }


# The file ----------------------------------------------------------------------------------------


def whole_report():
    report = Report(environment={"os": "Linux", "torch": None})
    told = schema.told("test_words", SPAWN, verdict(FINDING))
    report.add(told, "failed", None)
    return report


def test_the_json_is_read_back_as_it_was_with_null_for_infinities(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    whole_report().write(path)
    assert json.loads(path.read_text(encoding="utf-8")) == {
        "schema": "pytest-dataloader/1",
        "environment": {"os": "Linux", "torch": None},
        "pipelines": [
            {
                "id": "test_words",
                "runs": [RUN_TOLD | {"batches_per_s_high": None}],
                "findings": [FINDING_TOLD],
            }
        ],
        "checks": {
            "ran": 1,
            "expected_to_fail": 0,
            "not_judged": {},
            "skipped_by_platform": {},
            "skipped_by_user": {},
        },
    }


def test_a_report_replaces_the_one_before_and_leaves_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("old", encoding="utf-8")
    whole_report().write(path)
    assert json.loads(path.read_text(encoding="utf-8"))["schema"] == "pytest-dataloader/1"
    assert list(tmp_path.iterdir()) == [path]


def test_a_report_that_cannot_be_written_leaves_the_one_before_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.json"
    path.write_text("old", encoding="utf-8")

    def full_disk(self: Path, _target: Path) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(OSError, match="No space left"):
        whole_report().write(path)
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_report_of_other_than_plain_data_is_not_begun(tmp_path: Path) -> None:
    report = Report(environment={"os": object()})
    with pytest.raises(TypeError):
        report.write(tmp_path / "report.json")
    assert list(tmp_path.iterdir()) == []


def test_infinities_and_nan_become_none_at_any_depth() -> None:
    value = {"a": [math.inf, -math.inf, 1.5], "b": (math.nan, {"c": math.inf}), "d": "inf", "e": 3}
    assert schema.finite(value) == {
        "a": [None, None, 1.5],
        "b": [None, {"c": None}],
        "d": "inf",
        "e": 3,
    }


def test_configurations_in_words() -> None:
    configurations = [schema.config_to_dict(one) for one in (SPAWN, FORK, LoaderConfig(None, 0))]
    assert schema.configuration_words(configurations) == "spawn-w2, fork-w2, w0"
    assert schema.configuration_words([]) == ""


# The environment ---------------------------------------------------------------------------------


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "default_start_method", lambda: "forkserver")
    told = schema.environment()
    assert list(told) == [
        "os",
        "os_release",
        "architecture",
        "python",
        "torch",
        "cpus",
        "default_start_method",
        "start_methods",
        "machine",
    ]
    assert told["python"].startswith(".".join(map(str, sys.version_info[:3])))
    assert told["default_start_method"] == "forkserver"
    assert told["cpus"] >= 1
    json.dumps(told)


def test_the_version_of_torch_is_told_where_it_is_not_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert schema.environment()["torch"] == metadata.version("torch")


def test_without_torch_its_version_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert schema.environment()["torch"] is None
