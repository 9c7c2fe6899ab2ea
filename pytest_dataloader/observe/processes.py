"""Processes: memory, children, what is left behind; ends what it must end, and only that."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil

from pytest_dataloader.observe.facts import LeftBehind
from pytest_dataloader.observe.holdings import HELPERS

_OWN_THREAD = "pytest-dataloader"
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the POSIX place of shared memory, only listed


@dataclass(frozen=True)
class Memory:
    """Bytes of one process: unique (USS, what its end would free) and resident (RSS)."""

    unique: int | None
    resident: int


def memory_of(pid: int) -> Memory | None:
    """Memory of a process, or None if it is gone. USS is None where the OS keeps it secret."""
    try:
        process = psutil.Process(pid)
        resident = process.memory_info().rss
    except psutil.Error:
        return None
    try:
        return Memory(process.memory_full_info().uss, resident)
    except psutil.Error:
        return Memory(None, resident)


@dataclass(frozen=True)
class Snapshot:
    """What this process holds at one moment."""

    children: frozenset[tuple[int, float]]
    threads: frozenset[int]
    shared_memory: frozenset[str]
    open_files: int


def snapshot() -> Snapshot:
    """Take a snapshot of this process's descendants, threads, shared memory and descriptors."""
    return Snapshot(
        frozenset((p.pid, _created(p)) for p in _descendants()),
        frozenset(t.ident for t in threading.enumerate() if t.ident is not None),
        _shared_memory(),
        _open_files(),
    )


def left_since(before: Snapshot, known: Collection[int] = ()) -> LeftBehind:
    """What is here now and was not before, without Python's own helper processes."""
    processes = [
        described(process)
        for process in _descendants()
        if (process.pid, _created(process)) not in before.children
        and process.pid not in known
        and not is_helper(process)
    ]
    threads = [
        thread.name
        for thread in threading.enumerate()
        if thread.ident not in before.threads and not thread.name.startswith(_OWN_THREAD)
    ]
    memory = sorted(_shared_memory() - before.shared_memory)
    more_files = max(0, _open_files() - before.open_files)
    return LeftBehind(tuple(processes), tuple(threads), tuple(memory), more_files)


def new_children(before: Collection[BaseProcess]) -> list[BaseProcess]:
    """Processes that multiprocessing has started in this process since ``before``."""
    return [child for child in multiprocessing.active_children() if child not in before]


def end(processes: Iterable[BaseProcess], grace_s: float = 2.0) -> None:
    """End processes of ours: terminate, wait, kill, wait."""
    alive = [process for process in processes if _is_alive(process)]
    for process in alive:
        with contextlib.suppress(OSError):
            process.terminate()
    join(alive, grace_s)
    for process in alive:
        if _is_alive(process):
            with contextlib.suppress(OSError):
                process.kill()
    join(alive, grace_s)


def _is_alive(process: BaseProcess) -> bool:
    try:
        return process.is_alive()
    except ValueError:  # closed already
        return False


def join(processes: Iterable[BaseProcess], grace_s: float) -> None:
    """Wait for processes to end, ``grace_s`` for all of them together."""
    deadline = time.monotonic() + grace_s
    for process in processes:
        with contextlib.suppress(ValueError):
            process.join(max(0.0, deadline - time.monotonic()))


def end_trees(roots: Iterable[psutil.Process], grace_s: float = 2.0) -> None:
    """End processes that we started, with all that they started: terminate, wait, kill, wait."""
    found = list(_with_descendants(roots))
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(found, timeout=grace_s)
    alive += [p for p in _with_descendants(roots) if p not in alive]
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=grace_s)


def _with_descendants(roots: Iterable[psutil.Process]) -> Iterator[psutil.Process]:
    for root in roots:
        yield root
        with contextlib.suppress(psutil.Error):
            yield from root.children(recursive=True)


def children_of(pid: int | None) -> set[psutil.Process]:
    """The living children of a process, at any depth; none if the process is gone."""
    if pid is None:
        return set()
    try:
        return set(psutil.Process(pid).children(recursive=True))
    except psutil.Error:
        return set()


def _descendants() -> list[psutil.Process]:
    return list(children_of(os.getpid()))


def _created(process: psutil.Process) -> float:
    """Creation time: with the pid, it names a process even after the pid was used again."""
    try:
        return process.create_time()
    except psutil.Error:
        return 0.0


def is_helper(process: psutil.Process) -> bool:
    """Whether a process is one of Python's own, or has ended and is only not yet waited for."""
    try:
        command = " ".join(process.cmdline())
        return process.status() == psutil.STATUS_ZOMBIE or any(h in command for h in HELPERS)
    except psutil.Error:
        return True


def described(process: psutil.Process) -> str:
    """A process by its name and id, as people look for it."""
    with contextlib.suppress(psutil.Error):
        return f"{process.name()} (pid {process.pid})"
    return f"pid {process.pid}"


def _shared_memory() -> frozenset[str]:
    try:
        return frozenset(os.listdir(_SHARED_MEMORY))
    except OSError:
        return frozenset()


def _open_files() -> int:
    process = psutil.Process()
    if sys.platform == "win32":
        count = process.num_handles()
    else:
        count = process.num_fds()
    return count
