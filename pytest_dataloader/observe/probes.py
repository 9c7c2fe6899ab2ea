"""The temporary files by which torch asks whether descriptors are left.

When the queue of batches breaks, torch opens ten files (``_try_get_data`` in
``torch/utils/data/dataloader.py``). Its handler of a worker's death may raise just as it makes
one of them, and nobody removes that file then.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

_MAKER = "_try_get_data"
_FILE = ("torch", "utils", "data", "dataloader.py")
_DEPTH = 8


class _Process:
    """Where this process's one audit hook writes at present; hooks cannot be removed."""

    paths: set[str] | None = None
    is_hooked = False


@contextlib.contextmanager
def noted(paths: set[str]) -> Iterator[None]:
    """Add to ``paths`` each such file that is made in this process while the body runs."""
    if not _Process.is_hooked:
        sys.addaudithook(_audit)
        _Process.is_hooked = True
    _Process.paths = paths
    try:
        yield
    finally:
        _Process.paths = None


def remove(paths: set[str]) -> None:
    """Remove those that are still there, once nothing holds what would remove them."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            Path(path).unlink()
    paths.clear()


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "tempfile.mkstemp" and _Process.paths is not None and _is_torch_asking():
        _Process.paths.add(os.fsdecode(arguments[0]))


def _is_torch_asking() -> bool:
    frame: Any = sys._getframe(2)
    for _ in range(_DEPTH):
        if frame is None:
            return False
        if frame.f_code.co_name == _MAKER:
            return PurePath(frame.f_code.co_filename).parts[-len(_FILE) :] == _FILE
        frame = frame.f_back
    return False
