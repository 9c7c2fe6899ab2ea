"""Torch's own temporary files: removed where the death of a worker left one, and no others."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch.utils.data.dataloader

from pytest_dataloader.observe import probes


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def asks(make: Any) -> None:
    """Call ``make`` as the function does in which torch makes its files."""
    source = "def _try_get_data(make):\n    return make()\n"
    module: dict[str, Any] = {}
    exec(compile(source, torch.utils.data.dataloader.__file__, "exec"), module)
    module["_try_get_data"](make)


def dies() -> None:
    """A worker's death is told between the making of a file and of what would remove it."""
    tempfile.mkstemp()
    raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")


def test_a_file_that_a_workers_death_left_is_removed(folder: Path) -> None:
    paths: set[str] = set()
    with probes.noted(paths), pytest.raises(RuntimeError, match="killed by signal"):
        asks(dies)
    assert {Path(path).parent for path in paths} == {folder}
    probes.remove(paths)
    assert (list(folder.iterdir()), paths) == ([], set())


def test_a_file_of_the_users_stays(folder: Path) -> None:
    paths: set[str] = set()
    with probes.noted(paths):
        _, users = tempfile.mkstemp()
    asks(tempfile.mkstemp)
    probes.remove(paths)
    assert len(list(folder.iterdir())) == 2
    assert Path(users).exists()


def test_what_torch_has_removed_itself_is_no_fault(folder: Path) -> None:
    paths: set[str] = set()
    with probes.noted(paths):
        asks(lambda: tempfile.NamedTemporaryFile().close())
    assert len(paths) == 1
    probes.remove(paths)
    assert list(folder.iterdir()) == []
