"""Runs in the worker process too: what a process holds at one moment."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

HELPERS = ("resource_tracker", "forkserver", "torch_shm_manager")
_FDS = Path("/proc/self/fd")
_OWN_THREAD = "pytest-dataloader"


@dataclass(frozen=True)
class Holdings:
    """Children as pid and time of creation, threads by what they belong to, open files."""

    children: frozenset[tuple[int, float]] = frozenset()
    threads: dict[int, str] = field(default_factory=dict)
    files: Counter[str] = field(default_factory=Counter)


def holdings() -> Holdings:
    """What this process holds now."""
    return Holdings(frozenset(children()), threads(), open_files())


def children() -> list[tuple[int, float]]:
    """The living descendants of this process, without the helpers of Python and PyTorch."""
    found = psutil.Process().children(recursive=True)
    return [(p.pid, p.create_time()) for p in found if lives(p)]


def lives(process: psutil.Process) -> bool:
    """Whether a process is there, has not ended, and is nobody's helper."""
    try:
        command = " ".join(process.cmdline())
        ended = process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
    return not ended and not any(helper in command for helper in HELPERS)


def threads() -> dict[int, str]:
    """The names of this process's threads; those of one executor count as one thread."""
    found: dict[int, str] = {}
    for thread in threading.enumerate():
        if thread.ident is not None and not thread.name.startswith(_OWN_THREAD):
            found.setdefault(_group(thread), thread.name)
    return found


def _group(thread: Any) -> int:
    """A number for a thread; for one of a pool that for its `concurrent.futures` executor."""
    if getattr(getattr(thread, "_target", None), "__module__", "") == "concurrent.futures.thread":
        executor = thread._args[0]()  # a weak reference
        if executor is not None:
            return id(executor)
    return int(thread.ident)


def open_files() -> Counter[str]:
    """The files that this process has open, by path; no pipes, sockets, devices, shared memory."""
    if not _FDS.is_dir():
        return Counter(file.path for file in psutil.Process().open_files())
    found: Counter[str] = Counter()
    for fd in os.listdir(_FDS):
        with contextlib.suppress(OSError):  # closed since, such as the listing itself
            path = str((_FDS / fd).readlink())
            if path.startswith("/") and not path.startswith(("/dev/", "/proc/", "/memfd:")):
                found[path.removesuffix(" (deleted)")] += 1
    return found
