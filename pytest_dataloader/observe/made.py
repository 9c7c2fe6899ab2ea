"""Runs in the worker process too: what the user's code makes that may outlive its use.

Notes programs, temporary files, shared memory and threads with the line of the user's that made
them, and what a worker holds at each batch. Imports nothing heavy and, but for the telling of the
user's files from others, nothing else of the package.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import multiprocessing.process
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import util
from pathlib import Path
from typing import Any

from pytest_dataloader.observe.errors import belongs_to_user
from pytest_dataloader.observe.worker import Journal

PROGRAM, THREAD, TEMPORARY, MEMORY, OPENED = "program", "thread", "temporary", "memory", "opened"
SHARED_MEMORY_FOLDER = "/dev/shm"  # noqa: S108 - the POSIX place of shared memory

_PATHS = (str, bytes, os.PathLike)
_MOST_NOTES = 5_000
_LAST = -1_000  # the priority of what is to be done at a process's end after all else
_OUR_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_THIS_FILE = os.path.abspath(__file__)


class _Process:
    """What of this process is ours: the recorder that notes at present, and the one audit hook.

    Hooks cannot be removed; ours does nothing without a recorder.
    """

    recorder: Recorder | None = None
    is_hooked = False


class PlannedError(Exception):
    """Raised in the place of an error of the user's, to see what it would leave behind."""


class Recorder:
    """Notes what the user's code makes in this process, from `start` on. Picklable."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._noted: set[tuple[str, str, str]] = set()
        self._busy = threading.local()
        self._users: dict[str, bool] = {}
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self.temporary_folder = os.path.realpath(tempfile.gettempdir())

    def __getstate__(self) -> dict[str, Any]:
        return {"journal": self.journal}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def start(self) -> None:
        """Note from now on; a forked worker goes on with what its parent has started."""
        if _Process.recorder is not None:
            return
        if not _Process.is_hooked:
            sys.addaudithook(_audit)
            _Process.is_hooked = True
        for owner, name, make in _DOORS:
            if owner is not None:
                real = getattr(owner, name)
                setattr(owner, name, make(real))
                self._replaced.append((owner, name, real, getattr(owner, name)))
        _Process.recorder = self

    def stop(self) -> None:
        """Note no more, and give back what was replaced."""
        _Process.recorder = None
        for owner, name, real, ours in self._replaced:
            if getattr(owner, name) is ours:
                setattr(owner, name, real)
        self._replaced.clear()

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Note while the body runs."""
        self.start()
        try:
            yield
        finally:
            self.stop()

    def note(self, what: str, name: str, more: Callable[[], bool] = lambda: True) -> None:
        """Note that something is made, if a line of the user's makes it and ``more`` holds."""
        if getattr(self._busy, "now", False) or len(self._noted) >= _MOST_NOTES:
            return
        self._busy.now = True
        try:
            where = self._users_line()
            if where is not None and more() and (what, name, where) not in self._noted:
                self._noted.add((what, name, where))
                with contextlib.suppress(OSError):  # no descriptors left: that is the user's to see
                    self.journal.note("made", what=what, name=name, where=where)
        finally:
            self._busy.now = False

    def _users_line(self) -> str | None:
        """The innermost ``file:line`` of the user's that our own call has led to."""
        frame: Any = sys._getframe(2)
        while frame is not None:
            file = frame.f_code.co_filename
            if self._is_users(file):
                return f"{file}:{frame.f_lineno}"
            if file.startswith(_OUR_FOLDER) and file != _THIS_FILE:
                return None
            frame = frame.f_back
        return None

    def _is_users(self, file: str) -> bool:
        known = self._users.get(file)
        if known is None:
            known = self._users[file] = belongs_to_user(file)
        return known

    def hear_open(self, path: str, flags: Any) -> None:
        """Note which line opens a file, and whether it makes one where temporary ones lie."""
        self.note(OPENED, os.path.abspath(path))
        if isinstance(flags, int) and flags & os.O_CREAT:
            self.hear_new(path)

    def hear_new(self, path: str) -> None:
        """Note what is made right in the temporary folder or in that of shared memory."""
        folder = os.path.dirname(os.path.abspath(path))
        if folder == SHARED_MEMORY_FOLDER:
            self.note(MEMORY, path, lambda: not Path(path).exists())
        elif os.path.realpath(folder) == self.temporary_folder:
            self.note(TEMPORARY, path, lambda: not Path(path).exists())


# What is heard -------------------------------------------------------------------------------


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    recorder = _Process.recorder
    if recorder is None:
        return
    hear = _EVENTS.get(event)
    if hear is not None:
        hear(recorder, arguments)


def _hear_open(recorder: Recorder, arguments: tuple[Any, ...]) -> None:
    path, _, flags = arguments
    if isinstance(path, _PATHS):
        recorder.hear_open(os.fsdecode(path), flags)


def _hear_folder(recorder: Recorder, arguments: tuple[Any, ...]) -> None:
    if isinstance(arguments[0], _PATHS):
        recorder.hear_new(os.fsdecode(arguments[0]))


def _hear_temporary(recorder: Recorder, arguments: tuple[Any, ...]) -> None:
    recorder.note(TEMPORARY, os.fsdecode(arguments[0]))


def _hear_program(recorder: Recorder, arguments: tuple[Any, ...]) -> None:
    command = arguments[1]
    words = command if isinstance(command, (list, tuple)) else [command]
    if all(isinstance(word, _PATHS) for word in words):  # else it is about to fail
        recorder.note(PROGRAM, subprocess.list2cmdline(map(os.fsdecode, words)))


_EVENTS: dict[str, Callable[[Recorder, tuple[Any, ...]], None]] = {
    "open": _hear_open,
    "os.mkdir": _hear_folder,
    "tempfile.mkstemp": _hear_temporary,
    "tempfile.mkdtemp": _hear_temporary,
    "subprocess.Popen": _hear_program,
    "os.fork": lambda recorder, _: recorder.note(PROGRAM, ""),
    "os.posix_spawn": _hear_program,
}


# Doors that raise no audit event --------------------------------------------------------------


def _heard(before: Callable[[Recorder, Any], None]) -> Callable[[Any], Any]:
    """What makes of a function one that is heard first."""

    def wrap(real: Any) -> Any:
        def heard(*arguments: Any, **keywords: Any) -> Any:
            if _Process.recorder is not None:
                before(_Process.recorder, arguments)
            return real(*arguments, **keywords)

        return functools.wraps(real)(heard)

    return wrap


def _hear_memory(recorder: Recorder, arguments: Any) -> None:
    name, flags = arguments[:2]
    if flags & os.O_CREAT:
        recorder.note(MEMORY, f"{SHARED_MEMORY_FOLDER}/{name.lstrip('/')}")


def posix_shared_memory() -> Any:
    """The module through which `multiprocessing.shared_memory` opens blocks; None on Windows."""
    return importlib.import_module("_posixshmem") if os.name == "posix" else None


_DOORS: tuple[tuple[Any, str, Callable[[Any], Any]], ...] = (
    (multiprocessing.process.BaseProcess, "start", _heard(lambda r, _: r.note(PROGRAM, ""))),
    (threading.Thread, "start", _heard(lambda r, a: r.note(THREAD, a[0].name))),
    (posix_shared_memory(), "shm_open", _heard(_hear_memory)),
)


# The riders ----------------------------------------------------------------------------------


class AtStart:
    """A ``worker_init_fn`` that starts the recorder, then calls the user's own.

    With ``as_spawned`` a process that was forked from a server ends as a spawned one does.
    """

    def __init__(
        self,
        inner: Callable[[int], None] | None,
        recorder: Recorder,
        *,
        as_spawned: bool = False,
    ) -> None:
        self.inner = inner
        self.recorder = recorder
        self.as_spawned = as_spawned

    def __call__(self, worker_id: int) -> None:
        self.recorder.start()
        if self.as_spawned:
            util.Finalize(None, _end_as_spawned, exitpriority=_LAST)
        if self.inner is not None:
            self.inner(worker_id)


def _end_as_spawned() -> None:
    """Do what the end of an interpreter does and `os._exit`, the end of a forked process, does
    not: call the functions that are registered for it, and let go of the dataset."""
    from torch.utils.data._utils import worker as torch_worker

    at_exit: Any = util
    atexit.unregister(at_exit._exit_function)  # it is running
    atexit._run_exitfuncs()
    torch_worker._worker_info = None


class AtBatch:
    """A ``collate_fn`` that calls the user's own and notes what its worker holds.

    With ``fails`` it then raises, as a faulty sample would.
    """

    def __init__(
        self, inner: Callable[[Any], Any], recorder: Recorder, *, fails: bool = False
    ) -> None:
        self.inner = inner
        self.recorder = recorder
        self.fails = fails

    def __call__(self, samples: Any) -> Any:
        from torch.utils.data import get_worker_info

        batch = self.inner(samples)
        if get_worker_info() is not None:
            _note_holdings(self.recorder.journal)
        if self.fails:
            raise PlannedError
        return batch


def _note_holdings(journal: Journal) -> None:
    from pytest_dataloader.observe import holdings

    children = [[pid, created] for pid, created in holdings.children()]
    files = list(holdings.open_files().elements())
    journal.note("holds", at=time.monotonic(), children=children, files=files)
