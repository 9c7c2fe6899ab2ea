"""Live handles and locks that a fork would share or copy as they are."""

from __future__ import annotations

import contextlib
import io
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pytest_dataloader.diagnose.world import fields, module_globals

_LOCKS = (type(threading.Lock()), type(threading.RLock()))
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
            if isinstance(item, _LOCKS):
                yield path, item


def _is_held(lock: Any) -> bool:
    """Whether a lock is held; an RLock tells so by refusing another thread."""
    if hasattr(lock, "locked"):
        return bool(lock.locked())
    return "locked" in repr(lock) and "unlocked" not in repr(lock)
