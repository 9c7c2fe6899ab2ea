"""What surrounds a run: random states and warnings, and that they are given back."""

from __future__ import annotations

import gc
import random
import signal
import subprocess
import sys
import warnings
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from pytest_dataloader.observe.surroundings import (
    _frozen_by_others,
    children_may_die,
    only_new_garbage,
    recorded,
    seeded,
)

FORK_WARNING = (
    "This process (pid=1) is multi-threaded, use of fork() may lead to deadlocks in the child."
)


def drawn() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(1))


# Seeds -------------------------------------------------------------------------------------------


def test_the_three_global_generators_are_seeded() -> None:
    with seeded(7):
        first = drawn()
    with seeded(7):
        assert drawn() == first
    with seeded(8):
        assert not set(drawn()) & set(first)


def test_their_states_are_given_back() -> None:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    expected = drawn()
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    with seeded(7):
        drawn()
    assert drawn() == expected


def test_a_seed_that_is_too_large_for_numpy_is_folded() -> None:
    with seeded(2**32 + 5):
        first = float(np.random.rand())
    with seeded(5):
        assert float(np.random.rand()) == first


# Warnings ----------------------------------------------------------------------------------------


def test_warnings_are_recorded_and_issued_again() -> None:
    caught: list[warnings.WarningMessage] = []
    with warnings.catch_warnings(record=True) as heard, recorded(caught):
        warnings.warn("old file", UserWarning, stacklevel=1)
        warnings.warn("going away", DeprecationWarning, stacklevel=1)
        assert heard == []
    assert [str(w.message) for w in caught] == ["old file", "going away"]
    assert [(w.category, str(w.message), w.filename) for w in heard] == [
        (UserWarning, "old file", __file__),
        (DeprecationWarning, "going away", __file__),
    ]


def warn_and_raise() -> None:
    warnings.warn("old file", UserWarning, stacklevel=1)
    random.random()
    raise ValueError("bad record")


def test_after_an_error_too() -> None:
    caught: list[warnings.WarningMessage] = []
    before = random.getstate()
    with pytest.raises(ValueError, match="bad record"), recorded(caught), seeded(7):
        warn_and_raise()
    assert [str(w.message) for w in caught] == ["old file"]
    assert random.getstate() == before


def test_a_warning_of_our_own_thread_is_kept_out() -> None:
    caught: list[warnings.WarningMessage] = []
    with recorded(caught):
        warnings.warn(FORK_WARNING, DeprecationWarning, stacklevel=1)
    assert caught == []


# Garbage -----------------------------------------------------------------------------------------


@pytest.fixture
def nothing_frozen() -> Iterator[None]:
    """No object is set aside, and no collection comes by itself."""
    frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    gc.disable()
    _frozen_by_others.cache_clear()
    yield
    _frozen_by_others.cache_clear()
    gc.enable()
    gc.unfreeze()
    if frozen:
        gc.freeze()


class Node:
    """In a cycle: only a collection frees it."""

    def __init__(self) -> None:
        self.self = self


@pytest.mark.usefixtures("nothing_frozen")
def test_what_was_there_before_is_set_aside_and_given_back() -> None:
    old = weakref.ref(Node())
    with only_new_garbage():
        assert gc.get_freeze_count() > 0
        new = weakref.ref(Node())
        gc.collect()
        assert new() is None
        assert old() is not None
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert old() is None


@pytest.mark.usefixtures("nothing_frozen")
def test_what_others_have_frozen_stays_frozen() -> None:
    gc.freeze()
    with only_new_garbage():
        pass
    assert gc.get_freeze_count() > 0


# Children that end -------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(signal, "SIGCHLD"), reason="nobody hears of children here")
def test_nobody_hears_of_a_child_that_ends() -> None:
    def raises(_signum: int, _frame: object) -> None:
        raise RuntimeError("a worker has died")

    before = signal.signal(signal.SIGCHLD, raises)
    try:
        with children_may_die():
            subprocess.run([sys.executable, "-S", "-c", ""], check=True)
        assert signal.getsignal(signal.SIGCHLD) is raises
    finally:
        signal.signal(signal.SIGCHLD, before)
