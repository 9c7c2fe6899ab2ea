"""Deadlines: notices that no batch comes, says where workers stand, and unblocks the run."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

_POLL_S = 0.2
_A_STACK_S = 0.1
_MOST_STACKS = 16
# SIGURG does nothing by default: one that arrives late, after our handler is gone, is harmless.
_INTERRUPT = getattr(signal, "SIGURG", None) or getattr(signal, "SIGBREAK", None)


class RunInterrupted(BaseException):
    """Raised in the main thread when a run is ended from outside; no user code should catch it."""


class Watchdog:
    """Watches one run. ``beat()`` says that it lives; silence of ``timeout_s`` ends it.

    Ending is ``on_silence()``, which ends the workers: a parent that waits for a batch then gets
    torch's own error. A parent that still stands after ``grace_s`` is interrupted by a signal.
    """

    def __init__(
        self,
        timeout_s: float,
        on_silence: Callable[[], None],
        *,
        lost: Callable[[], bool] = lambda: False,
        tick: Callable[[], None] = lambda: None,
        grace_s: float = 3.0,
    ) -> None:
        self.timeout_s = timeout_s
        self.grace_s = grace_s
        self.fired = False
        self.parent_stack = ""
        self._on_silence = on_silence
        self._lost = lost
        self._tick = tick
        self._last = time.monotonic()
        self._stop = threading.Event()

    def beat(self) -> None:
        """A sign of life."""
        self._last = time.monotonic()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch while the body runs. The main thread is interrupted only if the body is in it."""
        self._main = threading.current_thread()
        self.beat()
        thread = threading.Thread(target=self._run, name="pytest-dataloader-watchdog", daemon=True)
        with _interruptible(), _terminable():
            thread.start()
            try:
                yield
            finally:
                self._stop.set()
                thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_POLL_S):
            self._tick()
            silent_s = time.monotonic() - self._last
            if silent_s >= self.timeout_s or (silent_s >= 1.0 and self._lost()):
                self._end()
                return

    def _end(self) -> None:
        self.fired = True
        self.parent_stack = _stack_of(self._main)
        self._on_silence()
        while not self._stop.wait(self.grace_s):
            _interrupt(self._main)


def _stack_of(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    return "".join(traceback.format_stack(frame)) if frame is not None else ""


def _raise_interrupted(_signum: int, _frame: FrameType | None) -> None:
    raise RunInterrupted


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    if _INTERRUPT is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    previous: Any = signal.signal(_INTERRUPT, _raise_interrupted)
    try:
        yield
    finally:
        signal.signal(_INTERRUPT, previous if previous is not None else signal.SIG_DFL)


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Let a request to end the process (SIGTERM) go through as Ctrl-C does, which ends the
    workers, while nobody else handles it. A process forked meanwhile ends as by default."""
    free = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not free or threading.current_thread() is not threading.main_thread():
        yield
        return
    owner = os.getpid()

    def terminate(signum: int, _frame: FrameType | None) -> None:
        if os.getpid() == owner:
            raise KeyboardInterrupt("the process was asked to end (SIGTERM)")
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _interrupt(thread: threading.Thread) -> None:
    """Raise `RunInterrupted` in the main thread, also out of a blocking call where signals can."""
    if _INTERRUPT is None or thread is not threading.main_thread():
        return
    if hasattr(signal, "pthread_kill") and thread.ident is not None:
        signal.pthread_kill(thread.ident, _INTERRUPT)
    else:
        signal.raise_signal(_INTERRUPT)


def ask_for_stacks(pids: list[int], signum: int | None) -> None:
    """Ask workers that offered it to print their stacks on standard error, one after the other."""
    if signum is None or not hasattr(os, "kill"):
        return
    for pid in pids[:_MOST_STACKS]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)
        time.sleep(_A_STACK_S)
