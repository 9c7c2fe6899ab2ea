"""What a worker has left in shared memory: torch keeps the file that it could not enlarge."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

import psutil

FOLDER = Path("/dev/shm")  # noqa: S108 - the POSIX place of shared memory
# torch_<pid of the maker>_<random>_<counter>, by torch's NewProcessWideShmHandle.
_NAME = re.compile(r"torch_(\d+)_\d+_\d+")


def remove_left_by(pids: Collection[int], folder: Path = FOLDER) -> list[str]:
    """Remove what torch has left of processes of ours that are gone; the names of it.

    Of a pid that lives again nothing is touched: it may be another process, with memory in use.
    """
    if not pids or not folder.is_dir():
        return []
    removed = []
    for path in folder.iterdir():
        match = _NAME.fullmatch(path.name)
        if match and int(match[1]) in pids and not psutil.pid_exists(int(match[1])):
            path.unlink(missing_ok=True)
            removed.append(path.name)
    return removed
