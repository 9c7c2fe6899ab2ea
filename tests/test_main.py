"""The verbs on saved reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_dataloader.__main__ import main

if TYPE_CHECKING:
    import pytest


def saved(path: Path, system: str = "Linux", startup_s: float = 0.1) -> Path:
    run = {
        "start_method": None,
        "num_workers": 0,
        "outcome": "ok",
        "startup_s": startup_s,
        "start": "in-process",
    }
    finding = {
        "code": "slow",
        "severity": "error",
        "configurations": [],
        "culprit": None,
        "message": "m",
        "advice": "a",
    }
    report: dict[str, Any] = {
        "schema": "pytest-dataloader/1",
        "environment": {"os": system},
        "pipelines": [{"id": "check:data", "runs": [run], "findings": [finding]}],
    }
    path.write_text(json.dumps(report), encoding="utf-8")
    return path


def test_compare_says_what_is_worse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = saved(tmp_path / "old.json"), saved(tmp_path / "new.json", startup_s=5.0)
    assert main(["compare", str(old), str(old)]) == 0
    assert main(["compare", str(old), str(new)]) == 1
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "  worse slow-start: check:data [w0]",
        (
            "      expected the first batch within 1.1 s (the earlier 0.1 s, times 2 or 1 s more), "
            "got 5 s"
        ),
    ]


def test_merge_keeps_every_platform(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "all.json"
    files = [saved(tmp_path / f"{name}.json", name) for name in ("Linux", "Windows")]
    assert main(["merge", str(out), *map(str, files)]) == 0
    merged = json.loads(out.read_text(encoding="utf-8"))
    assert [one["os"] for one in merged["environments"]] == ["Linux", "Windows"]
    (pipeline,) = merged["pipelines"]
    assert [run["os"] for run in pipeline["runs"]] == ["Linux", "Windows"]
    assert capsys.readouterr().out == f"{out}: 1 pipelines of 2 reports\n"


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "hang"]) == 0
    assert "hang" in capsys.readouterr().out


def test_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "none.json"
    assert main(["compare", str(file), str(file)]) == 2
    assert capsys.readouterr().err == f"error: {file} cannot be read: No such file or directory\n"
