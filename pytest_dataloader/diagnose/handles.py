"""Live handles and locks that a fork would share or copy as they are."""

from __future__ import annotations

import concurrent.futures
import contextlib
import io
import multiprocessing.pool
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pytest_dataloader.diagnose.world import fields, module_globals
from pytest_dataloader.observe.errors import belongs_to_user

_LOCKS = (type(threading.Lock()), type(threading.RLock()))
# Held for as long as the thread lives; Python lets go of it after a fork.
_A_THREADS_OWN = "._tstate_lock"
_KINDS = (
    ("h5py.", "an open HDF5 object"),
    ("sqlite3.Connection", "an SQLite connection"),
    ("socket.socket", "a socket"),
    ("zipfile.ZipFile", "an open zip archive"),
    ("tarfile.TarFile", "an open tar archive"),
    ("lmdb.", "an LMDB environment"),
    ("builtins.Environment", "an LMDB environment"),
)


def kind_of_handle(value: Any) -> str | None:
    """What kind of handle a value is, or None. Standard streams and closed files are none."""
    if isinstance(value, io.IOBase):
        return "an open file" if _offset(value) is not None else None
    for kind in type(value).__mro__:
        name = f"{kind.__module__}.{kind.__qualname__}"
        for start, words in _KINDS:
            if name == start or (start.endswith(".") and name.startswith(start)):
                return words
    return None


def handles(roots: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The handles that objects hold, by path: identity, kind, and the offset of a file.

    The offset is that of the descriptor, which forked processes share (POSIX, open file
    descriptions).
    """
    found: dict[str, list[Any]] = {}
    for root, value in roots.items():
        for path, item in fields(root, value, lambda v: kind_of_handle(v) is not None):
            kind = kind_of_handle(item)
            if kind is not None:
                found[path] = [id(item), kind, _offset(item)]
    return found


def _offset(value: Any) -> int | None:
    file = getattr(value, "fp", value)
    with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
        fd = file.fileno()
        return os.lseek(fd, 0, os.SEEK_CUR) if fd > 2 else None
    return None


def held_locks(roots: Mapping[str, Any], modules: Iterable[str]) -> tuple[str, ...]:
    """Locks in the user's modules and objects that somebody holds at this moment, by path."""
    return tuple(path for path, lock in _locks(roots, modules) if _is_held(lock))


def _locks(roots: Mapping[str, Any], modules: Iterable[str]) -> Iterator[tuple[str, Any]]:
    for path, value in module_globals(modules):
        if isinstance(value, _LOCKS):
            yield path, value
    for root, value in roots.items():
        for path, item in fields(root, value, lambda v: isinstance(v, _LOCKS)):
            if isinstance(item, _LOCKS) and not path.endswith(_A_THREADS_OWN):
                yield path, item


# Threads -------------------------------------------------------------------------------------


def held_threads(
    roots: Mapping[str, Any], modules: Iterable[str]
) -> Iterator[tuple[str, str, list[threading.Thread]]]:
    """What holds threads in the user's objects and modules: the path, what it is, its threads."""
    for path, value in module_globals(modules):
        threads = _threads_of(value)
        if threads is not None:
            yield path, *threads
    for root, value in roots.items():
        for path, item in fields(root, value, lambda v: _threads_of(v) is not None):
            threads = _threads_of(item)
            if threads is not None:
                yield path, *threads


def _threads_of(value: Any) -> tuple[str, list[threading.Thread]] | None:
    """The threads of a thread or of a pool of them, with words for what it is; else None."""
    if isinstance(value, threading.Thread):
        return "a thread", [value]
    if isinstance(value, concurrent.futures.ThreadPoolExecutor):
        return "a ThreadPoolExecutor", list(value._threads)
    if isinstance(value, multiprocessing.pool.ThreadPool):
        return "a ThreadPool", list(vars(value).get("_pool") or ())
    return None


def dead_threads(roots: Mapping[str, Any], modules: Iterable[str]) -> dict[str, int]:
    """What holds only threads that are not alive, by path, with its identity."""
    return {
        path: id(threads[0])
        for path, _, threads in held_threads(roots, modules)
        if threads and not any(thread.is_alive() for thread in threads)
    }


def path_of_target(thread: threading.Thread, roots: Mapping[str, Any]) -> str | None:
    """The path of the method that a thread runs, where it is one of the user's objects."""
    target: Any = getattr(thread, "_target", None)
    owner = getattr(target, "__self__", None)
    for root, value in roots.items() if owner is not None else ():
        for path, item in fields(root, value, lambda v: v is owner):
            if item is owner:
                return f"{path}.{target.__name__}"
    return None


def runs_of(thread: threading.Thread) -> str:
    """What a thread runs: the user's ``file:line``, or a library's function by its dotted name."""
    target: Any = getattr(thread, "_target", None) or type(thread).run
    code = getattr(target, "__code__", None)
    if code is not None and belongs_to_user(code.co_filename):
        return f"{code.co_filename}:{code.co_firstlineno}"
    name = getattr(target, "__qualname__", type(target).__qualname__)
    return f"{getattr(target, '__module__', None) or 'builtins'}.{name}"


def _is_held(lock: Any) -> bool:
    """Whether a lock is held; an RLock tells so by refusing another thread."""
    if hasattr(lock, "locked"):
        return bool(lock.locked())
    return "locked" in repr(lock) and "unlocked" not in repr(lock)
