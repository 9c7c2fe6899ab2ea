"""Runs in the worker process: where the time of a batch, and of a worker's start, goes.

Imports nothing heavy and nothing else of the package, as `worker`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

Spent = tuple[float, float, float]

_FETCHERS = ("_MapDatasetFetcher", "_IterableDatasetFetcher")
_SCHEDSTAT = "/proc/thread-self/schedstat"


class _Queued:
    """Seconds that this thread was ready to run but had no CPU; 0 where the system tells none."""

    def __init__(self) -> None:
        self._fd = -1
        self._pid = 0

    def seconds(self) -> float:
        """So far. Costs a few microseconds."""
        if self._pid != os.getpid():
            self._open()
        if sys.platform != "win32" and self._fd >= 0:
            return int(os.pread(self._fd, 64, 0).split()[1]) / 1e9
        return 0.0

    def _open(self) -> None:
        self._pid, self._fd = os.getpid(), -1
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                self._fd = os.open(_SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Close this process's descriptor; the next look opens it anew."""
        if self._fd >= 0 and self._pid == os.getpid():
            os.close(self._fd)
        self._fd, self._pid = -1, 0


class _Fetch:
    """When the fetch that goes on began, by each of the three clocks; None outside of one."""

    began: Spent | None = None


_queued = _Queued()
# When this process had come so far, by the steady clock; filled while it unpickles.
_arrival: dict[str, Any] = {}


def moment() -> Spent:
    """Now, by three clocks: the wall's, this process's CPU time, this thread's time in the queue
    for a CPU."""
    return time.monotonic(), time.process_time(), _queued.seconds()


def since(began: Spent) -> list[float]:
    """What each clock has gone on by."""
    return [now - then for now, then in zip(moment(), began, strict=True)]


def fetched() -> list[float] | None:
    """What the fetch that ends here took; None where it was not noted."""
    began, _Fetch.began = _Fetch.began, None
    return since(began) if began is not None else None


def note_fetches() -> Callable[[], None]:
    """Let torch's fetchers note when a fetch begins; what is returned undoes it."""
    from torch.utils.data._utils import fetch

    known = {name: vars(getattr(fetch, name))["fetch"] for name in _FETCHERS}
    for name, inner in known.items():
        getattr(fetch, name).fetch = _noting(inner)

    def undo() -> None:
        for name, inner in known.items():
            getattr(fetch, name).fetch = inner
        _queued.close()

    return undo


def _noting(inner: Any) -> Any:
    @functools.wraps(inner)
    def noted(self: Any, index: Any) -> Any:
        _Fetch.began = moment()
        return inner(self, index)

    return noted


@contextlib.contextmanager
def noted_here(*, wanted: bool) -> Iterator[None]:
    """Note fetches of this process, for a loader without workers."""
    if not wanted:
        yield
        return
    undo = note_fetches()
    try:
        yield
    finally:
        undo()


# The start -----------------------------------------------------------------------------------


class Kind(int):
    """A loader's kind of dataset, which travels ahead of the dataset and arrives as it was.

    It brings the names of the modules that the rest needs, to time their import by itself.
    """

    modules: tuple[str, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (int(self), self.modules)


def kind(value: int, modules: tuple[str, ...]) -> Kind:
    """A kind that brings these modules."""
    made = Kind(value)
    made.modules = modules
    return made


def _arrived(value: int, modules: tuple[str, ...]) -> int:
    """Import what the dataset and its functions need; they follow in the same pickle."""
    _arrival["interpreter_at"] = time.monotonic()
    seconds: dict[str, float] = {}
    with contextlib.suppress(ImportError):  # what is really needed fails again, in its own words
        for name in modules:
            began = time.monotonic()
            importlib.import_module(name)
            seconds[name] = time.monotonic() - began
    _arrival["imported_at"] = time.monotonic()
    if seconds:
        _arrival["slowest"] = max(seconds.items(), key=lambda item: item[1])
    return value


def unpickled() -> None:
    """Note that the dataset and the functions up to the collate function have arrived."""
    _arrival["unpickled_at"] = time.monotonic()


def arrival() -> dict[str, Any]:
    """When this process had come how far, as far as it was noted."""
    return dict(_arrival)
