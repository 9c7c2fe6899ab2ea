from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from pytest_dataloader.observe.observer import Observer


@pytest.fixture(scope="module")
def observer() -> Iterator[Observer]:
    """One observer for the tests of a module."""
    found = Observer(timeout_s=30)
    gc.freeze()  # each run collects garbage: without torch and Hypothesis that takes no time
    yield found
    gc.unfreeze()
    found.close()
