"""Shared memory that workers have left is removed, and nobody else's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_dataloader.observe.shared import remove_left_by


@pytest.fixture
def gone() -> int:
    """The pid of a process of ours that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_only_what_torch_left_of_processes_that_are_gone(tmp_path: Path, gone: int) -> None:
    mine, others = f"torch_{gone}_1011183262_0", f"torch_{gone + 1}_7_0"
    in_use, named = f"torch_{os.getpid()}_7_0", f"torch_{gone}_of_the_user"
    for name in (mine, others, in_use, named, "sem.mp-abc"):
        (tmp_path / name).write_bytes(b"")

    assert remove_left_by([gone, os.getpid()], tmp_path) == [mine]
    assert {path.name for path in tmp_path.iterdir()} == {others, in_use, named, "sem.mp-abc"}


def test_without_workers_or_without_a_folder_nothing_is_looked_for(tmp_path: Path) -> None:
    assert remove_left_by([], tmp_path) == []
    assert remove_left_by([1], tmp_path / "missing") == []
