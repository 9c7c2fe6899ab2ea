"""What surrounds a run and is given back after it: random states and warnings."""

from __future__ import annotations

import contextlib
import functools
import gc
import random
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

_PICKLE_WARNING = "Got pickle error when attempting to start a worker Process"
_FORK_WARNING = r".*multi-threaded, use of fork\(\) may lead to deadlocks.*"


@contextlib.contextmanager
def recorded(caught: list[warnings.WarningMessage]) -> Iterator[None]:
    """Record the warnings of a run, then issue them again for whoever listens.

    Our watchdog is a thread; that alone makes Python 3.12 warn of every fork, so that warning
    is kept out.
    """
    with warnings.catch_warnings(record=True) as found:
        warnings.filterwarnings("ignore", message=_FORK_WARNING, category=DeprecationWarning)
        try:
            yield
        finally:
            caught += found
    for one in caught:
        if _PICKLE_WARNING in str(one.message):
            continue  # what it warns of is a finding, with its culprit
        warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


@contextlib.contextmanager
def only_new_garbage() -> Iterator[None]:
    """Let `gc.collect` look at what the body makes and not at the rest of the process.

    A test session's heap takes it 0.1 s each time, more than most runs take. A forked worker
    calls `gc.unfreeze` first of all, so that its memory behaves as it would. Where someone has
    frozen objects of their own, nothing is changed.
    """
    if _frozen_by_others():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@functools.cache
def _frozen_by_others() -> bool:
    """Whether objects were frozen before our first run; to count them takes as long as a run."""
    return gc.get_freeze_count() > 0


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed ``random``, ``numpy.random`` and ``torch`` for the body; restore their states after."""
    import torch

    numpy = sys.modules.get("numpy")
    states = random.getstate(), torch.get_rng_state(), numpy and numpy.random.get_state()
    random.seed(seed)
    torch.manual_seed(seed)
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(states[0])
        torch.set_rng_state(states[1])
        if numpy is not None:
            numpy.random.set_state(states[2])


@contextlib.contextmanager
def children_may_die() -> Iterator[None]:
    """Let no handler hear of children that end while the body runs.

    torch's handler raises in whatever the main thread is at, also where a worker's end is what
    we are writing down or waiting for (`torch.utils.data._utils.signal_handling`).
    """
    heard = getattr(signal, "SIGCHLD", None)
    if heard is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    handler: Any = signal.signal(heard, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(heard, handler if handler is not None else signal.SIG_DFL)
