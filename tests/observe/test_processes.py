"""Processes: ended when they must be, and only those that are ours."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_dataloader.observe import processes
from pytest_dataloader.observe.facts import LeftBehind

SPAWN = multiprocessing.get_context("spawn")
needs_sigterm = pytest.mark.skipif(
    sys.platform == "win32", reason="terminate cannot be ignored on Windows"
)
IGNORE = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
SLEEP = "import time; print('ready', flush=True); time.sleep(60)\n"


def ignore_and_sleep(ready: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready.set()
    time.sleep(60)


def sleep(ready: Any) -> None:
    ready.set()
    time.sleep(60)


def started(target: Any) -> Any:
    ready = SPAWN.Event()
    process = SPAWN.Process(target=target, args=(ready,), daemon=True)
    process.start()
    assert ready.wait(30)
    return process


def run(code: str) -> Any:
    child = psutil.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    return child


@pytest.fixture
def children() -> Iterator[list[Any]]:
    """Processes of a test, which are killed whatever becomes of it."""
    found: list[Any] = []
    yield found
    for process in found:
        if isinstance(process, psutil.Popen):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
            process.communicate()
        elif process.is_alive():
            process.kill()


@needs_sigterm
def test_a_child_that_ignores_termination_is_killed(children: list[Any]) -> None:
    process = started(ignore_and_sleep)
    children.append(process)
    began = time.monotonic()

    processes.end([process], grace_s=0.3)

    assert process.exitcode == -signal.SIGKILL
    assert 0.3 <= time.monotonic() - began < 5


def test_a_child_that_obeys_is_not_waited_for(children: list[Any]) -> None:
    process = started(sleep)
    children.append(process)
    began = time.monotonic()

    processes.end([process], grace_s=20)

    assert not process.is_alive()
    assert process.exitcode == -signal.SIGTERM
    assert time.monotonic() - began < 10


def test_ended_and_closed_processes_are_passed_over() -> None:
    process = SPAWN.Process(target=os.getpid)
    process.start()
    process.join(30)

    processes.end([process])
    assert process.exitcode == 0
    process.close()
    processes.end([process])
    processes.join([process], 1.0)


def test_new_children_are_those_of_since(children: list[Any]) -> None:
    before = multiprocessing.active_children()
    process = started(sleep)
    children.append(process)

    assert processes.new_children(before) == [process]
    assert processes.new_children([*before, process]) == []


def test_trees_are_ended_with_all_that_they_started(children: list[Any]) -> None:
    parent = run(
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n" + SLEEP
    )
    other = run(SLEEP)
    children += [parent, other]
    (grandchild,) = processes.children_of(parent.pid)

    processes.end_trees([parent], grace_s=5)

    assert not parent.is_running()
    assert not grandchild.is_running() or grandchild.status() == psutil.STATUS_ZOMBIE
    assert other.is_running()


@needs_sigterm
def test_trees_that_ignore_termination_are_killed(children: list[Any]) -> None:
    root = run(IGNORE + SLEEP)
    children.append(root)

    processes.end_trees([root], grace_s=0.3)

    assert root.wait(5) == -signal.SIGKILL


def test_a_process_that_is_gone_has_no_children_and_no_memory(children: list[Any]) -> None:
    child = run("print('ready')")
    child.wait()
    child.communicate()

    assert processes.children_of(child.pid) == set()
    assert processes.children_of(None) == set()
    assert processes.memory_of(child.pid) is None
    processes.end_trees([child])


def test_the_memory_of_this_process() -> None:
    memory = processes.memory_of(os.getpid())

    assert memory is not None
    assert memory.unique is not None
    assert 0 < memory.unique <= memory.resident


def test_memory_that_the_system_keeps_secret_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(process: psutil.Process) -> None:
        raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(psutil.Process, "memory_full_info", refuse)
    memory = processes.memory_of(os.getpid())

    assert memory is not None
    assert memory.unique is None
    assert memory.resident > 0


# What is left behind -------------------------------------------------------------------------


def test_nothing_is_left_of_nothing() -> None:
    before = processes.snapshot()

    left = processes.left_since(before)

    assert (left.processes, left.threads, left.open_files) == ((), (), 0)


def test_a_process_is_left_until_it_ends(children: list[Any]) -> None:
    before = processes.snapshot()
    child = run(SLEEP)
    children.append(child)

    left = processes.left_since(before).processes
    assert left == (f"{child.name()} (pid {child.pid})",)
    assert processes.left_since(before, known=[child.pid]).processes == ()
    assert processes.left_since(processes.snapshot()).processes == ()

    child.kill()
    child.wait()
    assert processes.left_since(before).processes == ()


@pytest.mark.skipif(sys.platform == "win32", reason="no zombies on Windows")
def test_a_process_that_nobody_waited_for_is_not_left(children: list[Any]) -> None:
    before = processes.snapshot()
    child = run(SLEEP)
    children.append(child)
    child.kill()
    deadline = time.monotonic() + 5
    while child.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.01)

    assert processes.left_since(before).processes == ()


def test_pythons_own_helpers_are_not_left(children: list[Any]) -> None:
    before = processes.snapshot()
    child = run("resource_tracker = 1\n" + SLEEP)
    children.append(child)

    assert processes.is_helper(psutil.Process(child.pid))
    assert processes.left_since(before).processes == ()


def test_a_thread_is_left_but_not_our_own() -> None:
    before = processes.snapshot()
    stop = threading.Event()
    for name in ("of the user", "pytest-dataloader-watchdog"):
        threading.Thread(target=stop.wait, name=name, daemon=True).start()
    try:
        assert processes.left_since(before).threads == ("of the user",)
    finally:
        stop.set()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows counts handles of all kinds")
def test_open_files_are_counted(tmp_path: Path) -> None:
    before = processes.snapshot()
    with (tmp_path / "a").open("w"), (tmp_path / "b").open("w"):
        assert processes.left_since(before).open_files == 2

    assert processes.left_since(before).open_files == 0
    with (tmp_path / "a").open():
        fewer = processes.snapshot()
    assert processes.left_since(fewer).open_files == 0


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="shared memory has no folder here")
def test_shared_memory_is_named() -> None:
    before = processes.snapshot()
    block = shared_memory.SharedMemory(create=True, size=16)
    try:
        assert block.name.lstrip("/") in processes.left_since(before).shared_memory
    finally:
        block.close()
        block.unlink()

    assert block.name.lstrip("/") not in processes.left_since(before).shared_memory


def test_without_a_folder_of_shared_memory_there_is_no_data(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(processes, "_SHARED_MEMORY", tmp_path / "none")

    assert processes.snapshot().shared_memory == frozenset()
    assert LeftBehind().shared_memory == ()


def test_a_process_is_described_by_name_and_id(monkeypatch: pytest.MonkeyPatch) -> None:
    process = psutil.Process()
    assert processes.described(process) == f"{process.name()} (pid {process.pid})"

    def gone(process: psutil.Process) -> str:
        raise psutil.NoSuchProcess(process.pid)

    monkeypatch.setattr(psutil.Process, "name", gone)
    assert processes.described(process) == f"pid {process.pid}"
