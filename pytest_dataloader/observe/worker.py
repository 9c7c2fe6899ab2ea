"""Runs in the worker process: notes that ride on worker_init_fn and collate_fn.

Imports nothing heavy and of the package only `making`: a spawned worker pays for every import.
Notes are JSON lines appended to a journal file: one write each, so that a worker that is
killed in the middle of its work leaves what it had noted, and locks nobody out.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing import util
from typing import Any

from pytest_dataloader.observe import making

STACK_SIGNAL: Any = getattr(signal, "SIGUSR2", None)


class Journal:
    """Appends notes to a file; opens it anew in each process. Picklable."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = -1
        self._pid = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_fd": -1, "_pid": 0}

    def note(self, kind: str, **facts: Any) -> None:
        """Append one note. Costs a few microseconds."""
        if self._pid != os.getpid():
            self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            self._pid = os.getpid()
        line = json.dumps({"kind": kind, "pid": self._pid, **facts}, ensure_ascii=True)
        os.write(self._fd, line.encode() + b"\n")

    def close(self) -> None:
        """Close this process's descriptor."""
        if self._pid == os.getpid() and self._fd >= 0:
            os.close(self._fd)
        self._fd, self._pid = -1, 0


def read_journal(path: str) -> list[dict[str, Any]]:
    """All complete notes; a line cut short by the end of its writer is left out."""
    with contextlib.suppress(FileNotFoundError), open(path, encoding="ascii") as lines:
        return [json.loads(line) for line in lines if line.endswith("\n")]
    return []


class StartNote:
    """A ``worker_init_fn`` that notes the worker's start, then calls the user's own.

    It also points standard error at ``stderr_path`` where the process did not inherit it, and
    lets the watchdog ask for the Python stacks of all threads.
    """

    def __init__(
        self,
        inner: Callable[[int], None] | None,
        journal: Journal,
        stderr_path: str,
        *,
        look: Look | None = None,
        insight: Any = None,
        handles: Any = None,
    ) -> None:
        self.inner = inner
        self.journal = journal
        self.stderr_path = stderr_path
        self.look = look
        self.insight = insight
        self.handles = handles

    def __call__(self, worker_id: int) -> None:
        gc.unfreeze()  # a fork inherits what the test process set aside for the run
        join_stderr(self.stderr_path)
        _speak_on_stderr()
        stacks = _offer_stacks()
        if multiprocessing.parent_process() is not None:
            _show_faults()
            util.Finalize(None, _note_leaving, args=(self.journal,), exitpriority=_FIRST_OF_ALL)
            making.note_fetches()
        at, arrival = time.monotonic(), making.arrival()
        self.journal.note("start", worker=worker_id, at=at, stacks=stacks, arrival=arrival)
        if self.look is not None and worker_id == 0:
            self._look()
        if self.handles is not None:
            self.journal.note("handles", **self.handles.take())
        if self.inner is not None:
            began = time.monotonic()
            self.inner(worker_id)
            self.journal.note("init", seconds=time.monotonic() - began)
        if self.insight is not None:
            self.journal.note("states", at=time.monotonic(), states=self.insight.states())

    def _look(self) -> None:
        """Note what this worker holds; one that fails is told as such, not as the user's error."""
        assert self.look is not None
        try:
            self.journal.note("world", held=self.look.take())
        except Exception as error:  # noqa: BLE001 - objects of the user's may refuse any look
            self.journal.note("no-world", error=f"{type(error).__name__}: {error}")


class Look:
    """Looks at what a worker holds when it has just started, for the parent to compare."""

    def __init__(self, modules: list[str], riders: dict[str, Any]) -> None:
        self.modules = modules
        self.riders = riders

    def take(self) -> dict[str, list[str]]:
        """What this worker holds, by path; imported late, for only some workers look."""
        from torch.utils.data import get_worker_info

        from pytest_dataloader.diagnose.world import held

        info = get_worker_info()
        assert info is not None
        return held({"dataset": info.dataset, **self.riders}, self.modules)


class CollateNote:
    """A ``collate_fn`` that calls the user's own and notes who made a batch, and of how many."""

    def __init__(
        self,
        inner: Callable[[Any], Any],
        journal: Journal,
        *,
        batched: bool,
        insight: Any = None,
        handles: Any = None,
    ) -> None:
        self.inner = inner
        self.journal = journal
        self.batched = batched
        self.insight = insight
        self.handles = handles

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        making.unpickled()

    def __call__(self, samples: Any) -> Any:
        fetch = making.fetched()
        count = len(samples) if self.batched and hasattr(samples, "__len__") else 1
        seen: dict[str, Any] = {}
        threads = _lasting_threads()
        if threads:
            seen["threads"] = threads
        if self.handles is not None:
            self.journal.note("handles", **self.handles.take())
        if self.insight is not None:
            seen = self.insight.of_batch(samples, batched=self.batched)
        began = making.moment() if fetch is not None else None
        batch = self.inner(samples)
        if began is not None:
            seen |= {"fetch": fetch, "collate": making.since(began)}
        cpu, at = time.process_time(), time.monotonic()
        self.journal.note("batch", samples=count, cpu=cpu, at=at, **seen)
        return batch


_QUICK_S = 0.01


class SizesNote:
    """A ``collate_fn`` that calls the user's own and notes how much the worker holds.

    The dataset and what travels with it are looked at by themselves, and the modules, whose
    globals may be very many, by themselves. A look that is not quick takes at most a third of the
    time; a note tells what has changed since the last one.
    """

    def __init__(self, inner: Callable[[Any], Any], journal: Journal, riders: dict[str, Any]):
        self.inner = inner
        self.journal = journal
        self.riders = riders
        self._known: dict[str, int] = {}
        self._looks: tuple[_PacedLook, ...] = ()
        self._batches = 0

    def __call__(self, samples: Any) -> Any:
        batch = self.inner(samples)
        self._batches += 1
        self._looks = self._looks or self._looks_here()
        held: dict[str, int] = {}
        for look in self._looks:
            held |= look.take()
        changed = {path: size for path, size in held.items() if self._known.get(path) != size}
        self._known |= held
        self.journal.note("sizes", at=time.monotonic(), batches=self._batches, sizes=changed)
        return batch

    def _looks_here(self) -> tuple[_PacedLook, ...]:
        """Look at what this worker holds; what is imported here is imported once, untimed."""
        from torch.utils.data import get_worker_info

        from pytest_dataloader.diagnose.sizes import sizes
        from pytest_dataloader.diagnose.world import modules_near

        info = get_worker_info()
        assert info is not None
        roots = {"dataset": info.dataset, **self.riders}
        modules = modules_near(roots.values())
        return _PacedLook(lambda: sizes(roots)), _PacedLook(lambda: sizes({}, modules))


class _PacedLook:
    """A look at sizes by path that takes at most a third of the time, where it is not quick."""

    def __init__(self, look: Callable[[], dict[str, int]]) -> None:
        self._look = look
        self._not_before = 0.0
        self._cost_s = float("inf")

    def take(self) -> dict[str, int]:
        """What is held, or nothing where it is too early for another look."""
        began = time.monotonic()
        if began < self._not_before:
            return {}
        held = self._look()
        ended = time.monotonic()
        self._cost_s = min(self._cost_s, ended - began)
        self._not_before = ended + (2 * self._cost_s if self._cost_s > _QUICK_S else 0)
        return held


class Handles:
    """Looks at the handles and threads that a forked worker has from its parent, at its first
    batches; for threads also in the modules that held one."""

    def __init__(self, riders: dict[str, Any], modules: list[str] | None = None) -> None:
        self.riders = riders
        self.modules = modules or []
        self._looks = 0

    def take(self) -> dict[str, Any]:
        """The handles by path, at the start and the 1st, 2nd, 4th, ... batch; else none. Of
        threads only the paths of those that are not alive here."""
        from torch.utils.data import get_worker_info

        from pytest_dataloader.diagnose.handles import dead_threads, handles, runs_of

        self._looks += 1
        info = get_worker_info()
        if info is None or (self._looks - 1) & (self._looks - 2) > 0:
            return {"handles": {}}
        roots = {"dataset": info.dataset, **self.riders}
        return {
            "handles": handles(roots),
            "dead_threads": dead_threads(roots, self.modules),
            "alive": [runs_of(thread) for thread in threading.enumerate()],
        }


def _lasting_threads() -> list[str]:
    """Threads that a process's end waits for, by what they run."""
    lasting = [t for t in threading.enumerate() if not t.daemon]
    return [_thread_words(t) for t in lasting if t is not threading.main_thread()]


def _thread_words(thread: threading.Thread) -> str:
    target: Any = getattr(thread, "_target", None) or type(thread).run
    code = getattr(target, "__code__", None)
    where = f" at {code.co_filename}:{code.co_firstlineno}" if code is not None else ""
    return f"{thread.name} ({getattr(target, '__qualname__', 'its target')}{where})"


def join_stderr(path: str) -> None:
    """Send this process's standard error to ``path``, unless it goes there already."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(fd), os.fstat(2)):
                return
        os.dup2(fd, 2)
    finally:
        os.close(fd)


def _speak_on_stderr() -> None:
    """Let ``sys.stderr`` write to descriptor 2: a forked worker has the test process's capture."""
    try:
        same = sys.stderr is not None and sys.stderr.fileno() == 2
    except (OSError, ValueError):  # io.UnsupportedOperation is both
        same = False
    if not same:
        sys.stderr = open(  # noqa: SIM115 - it lives as long as the worker
            2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
        )


def _offer_stacks() -> bool:
    """Print all threads' stacks on a signal, if the signal is free; says whether it is offered."""
    free = STACK_SIGNAL is not None and signal.getsignal(STACK_SIGNAL) is signal.SIG_DFL
    if sys.platform != "win32" and free:
        faulthandler.register(STACK_SIGNAL, file=2, all_threads=True, chain=False)
        return True
    return False


def _show_faults() -> None:
    """Print the Python stack where native code crashes, before torch's own words.

    torch's signal handlers have taken the place of those that faulthandler had; it only installs
    its own anew when it was disabled, and that puts back what stood there before either.
    """
    faulthandler.disable()
    handlers = getattr(sys.modules.get("torch._C"), "_set_worker_signal_handlers", None)
    if handlers is not None:
        handlers()
    faulthandler.enable(file=2)


# Finalizers run in the order of their priorities, from the highest; multiprocessing's own are
# below this.
_FIRST_OF_ALL = 1_000


def _note_leaving(journal: Journal) -> None:
    """Note what a worker leaves through: torch lets pass what is no `Exception`, and Python ends
    the process of a `SystemExit` without a word."""
    error = sys.exc_info()[1]
    if error is not None:
        journal.note("leaving", error="".join(traceback.format_exception(error)))


def restore_state(
    environ: Mapping[str, str], streams: Mapping[int, int], data: dict[str, Any]
) -> dict[str, Any]:
    """Give a warm-started process the environment and streams that a spawned one would inherit.

    ``streams`` maps the place of a descriptor among those passed on to its number, 1 or 2.
    """
    from multiprocessing.forkserver import get_inherited_fds

    inherited: Any = get_inherited_fds()
    for place, fd in streams.items():
        os.dup2(inherited[place], fd)
    os.environ.clear()
    os.environ.update(environ)
    return data


def new_object(kind: Any) -> Any:
    """A bare object of a class, for its state to be set."""
    return kind.__new__(kind)
