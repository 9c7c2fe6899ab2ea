"""Headspace: the rate of a loader whose batches are in memory already, so that only it counts."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from pytest_dataloader.observe import rate

SECONDS = 0.5
_LENGTH = 1 << 20


class Held:
    """Gives copies of one batch, as a worker that has nothing to read or compute would."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def __getitem__(self, index: int) -> Any:
        return copy.deepcopy(self.batch)

    def __len__(self) -> int:
        return _LENGTH


def _as_it_is(batch: Any) -> Any:
    return batch


def headspace(loader: Any, batch: Any, now: Callable[[], float], beat: Callable[[], None]) -> float:
    """Batches per second of ``loader``'s workers and arguments where the batch is in memory.

    Each batch is copied once and sent as any other: to shared memory if it is made of tensors,
    else pickled. Raises what `pytest_dataloader.observe.rate.measure` does.
    """
    from torch.utils.data import DataLoader

    held: Any = DataLoader(
        Held(batch),  # type: ignore[arg-type]  # any object with these two methods will do
        batch_size=None,
        collate_fn=_as_it_is,
        num_workers=loader.num_workers,
        multiprocessing_context=loader.multiprocessing_context,
        prefetch_factor=loader.prefetch_factor,
        pin_memory=loader.pin_memory,
    )
    return rate.measure(held, SECONDS, now, beat).batches_per_s
