"""Where a pipeline keeps its files: a folder that lasts as long as the process that asks for it."""

import shutil
import tempfile
from atexit import register
from collections.abc import Callable
from functools import cache
from pathlib import Path


@cache
def written(write: Callable[[Path], None]) -> Path:
    """The folder that `write` has filled, once a process."""
    folder = Path(tempfile.mkdtemp(prefix="real-"))
    register(shutil.rmtree, folder, ignore_errors=True)
    write(folder)
    return folder
