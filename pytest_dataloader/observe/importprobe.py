"""Runs in a fresh process: imports modules and notes what that does besides defining things.

Like a spawned worker, but one in which every start, write, connection, thread, print and look at
the command line is written down with the user's line that led to it. Starts of processes by
multiprocessing are refused: a probe must not become what it looks for.
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import importlib
import multiprocessing.process
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from pytest_dataloader.observe.worker import Journal, join_stderr

_STARTS = frozenset(
    {"os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.spawn", "os.system"}
    | {"os.startfile", "subprocess.Popen", "_winapi.CreateProcess", "pty.spawn"}
)
_CHANGES = frozenset(
    {"os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink"}
    | {"shutil.rmtree", "shutil.move", "shutil.copyfile"}
)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_NOTED_S = 0.02


class StartRefused(RuntimeError):
    """Raised in the place of a process's start while the modules are imported."""


def probe(modules: tuple[str, ...], journal_path: str, stderr_path: str) -> None:
    """Import modules one by one and note what each did; raises nothing."""
    join_stderr(stderr_path)
    journal = Journal(journal_path)
    effects: list[dict[str, str]] = []
    with _watching(effects), _timing() as times:
        for module in modules:
            effects.clear()
            times.clear()
            error, seconds, own = _imported(module, times)
            noted = [entry for entry in times if entry["seconds"] >= _NOTED_S]
            journal.note(
                "import",
                module=module,
                seconds=seconds,
                own=own,
                effects=effects[:50],
                imports=noted[:200],
                error=error,
            )


def _imported(module: str, times: _Times) -> tuple[list[str] | None, float, float]:
    """The error's lines if there was one, the seconds in all, and those of the module alone."""
    error = None
    began = time.perf_counter()
    times.inner.append(0.0)
    try:
        importlib.import_module(module)
    except BaseException as raised:  # noqa: BLE001 - SystemExit at import is what may be found
        error = traceback.format_exception(raised)
    seconds = time.perf_counter() - began
    return error, seconds, seconds - times.inner.pop()


# What the imports do -------------------------------------------------------------------------


@contextlib.contextmanager
def _watching(effects: list[dict[str, str]]) -> Iterator[None]:
    def note(kind: str, detail: str) -> None:
        where = _users_line()
        if where is not None:
            effects.append({"kind": kind, "detail": detail, "where": where})

    sys.addaudithook(_auditor(note))
    with (
        _refusing_starts(note),
        _noticing_threads(note),
        _noticing_prints(note),
        _noticing_arguments(note),
    ):
        yield


def _auditor(note: Callable[[str, str], None]) -> Callable[[str, tuple[Any, ...]], None]:
    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _STARTS:
            note("starts a process", event)
        elif event == "open":
            _note_open(note, *arguments)
        elif event in _CHANGES:
            note("changes files", f"{event} {arguments[0]}")
        elif event == "socket.connect":
            note("opens a network connection", str(arguments[-1]))

    return audit


def _note_open(note: Callable[[str, str], None], path: Any, mode: Any, flags: Any) -> None:
    if not isinstance(path, (str, bytes)):
        return
    text = os.fsdecode(path)
    harmless = text.endswith((".pyc", os.devnull)) or "__pycache__" in text
    writes = any(c in mode for c in "wax+") if isinstance(mode, str) else bool(flags & _WRITING)
    if writes and not harmless:
        note("writes to a file", text)


def _users_line() -> str | None:
    """``file:line`` of the top-level line that is being executed, if it is source code."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "<module>" and not code.co_filename.startswith("<"):
            return f"{code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return None


@contextlib.contextmanager
def _refusing_starts(note: Callable[[str, str], None]) -> Iterator[None]:
    """Starts by multiprocessing raise no audit event under spawn: they are caught at the door."""

    def start(process: Any) -> None:
        note("starts a process", f"multiprocessing {type(process).__name__}")
        raise StartRefused("a process may not be started while a module is imported")

    with _replaced(multiprocessing.process.BaseProcess, "start", start):
        yield


@contextlib.contextmanager
def _noticing_threads(note: Callable[[str, str], None]) -> Iterator[None]:
    """Starts of threads raise an audit event from Python 3.12 on only."""
    real = threading.Thread.start

    def noticed(thread: Any) -> None:
        target = getattr(thread, "_target", None)
        note("starts a thread", getattr(target, "__qualname__", type(thread).__qualname__))
        real(thread)

    with _replaced(threading.Thread, "start", noticed):
        yield


@contextlib.contextmanager
def _noticing_prints(note: Callable[[str, str], None]) -> Iterator[None]:
    real = builtins.print

    def noticed(*values: Any, **keywords: Any) -> None:
        if keywords.get("file") in (None, sys.stdout):
            note("prints", " ".join(map(str, values))[:60])
        real(*values, **keywords)

    with _replaced(builtins, "print", noticed):
        yield


@contextlib.contextmanager
def _noticing_arguments(note: Callable[[str, str], None]) -> Iterator[None]:
    real = argparse.ArgumentParser.parse_known_args

    def noticed(parser: Any, args: Any = None, namespace: Any = None) -> Any:
        if args is None:
            note("parses sys.argv", "argparse")
        return real(parser, args, namespace)

    with _replaced(argparse.ArgumentParser, "parse_known_args", noticed):
        yield


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    real = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, real)


# How long they take --------------------------------------------------------------------------


class _Times(list[dict[str, Any]]):
    """For each first import its seconds in all, and its own without what it imports."""

    inner: list[float]


@contextlib.contextmanager
def _timing() -> Iterator[_Times]:
    times = _Times()
    times.inner = [0.0]
    real = builtins.__import__

    def timed(name: str, *arguments: Any, **keywords: Any) -> Any:
        began = time.perf_counter()
        times.inner.append(0.0)
        try:
            return real(name, *arguments, **keywords)
        finally:
            seconds = time.perf_counter() - began
            own = seconds - times.inner.pop()
            times.inner[-1] += seconds
            times.append({"module": name, "seconds": seconds, "own": own})

    with _replaced(builtins, "__import__", timed):
        yield times
