"""Drives one loader through its epochs, times it and digests it."""

from __future__ import annotations

import array
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pytest_dataloader.observe import clock
from pytest_dataloader.observe.digest import RunningDigest, digest, leaves, oversized
from pytest_dataloader.observe.facts import BatchFacts, EpochFacts

_BATCHES_WITH_LEAVES = 64
_LEAVES_A_BATCH = 32
_BATCHES_WITH_DIGEST = 10_000
# More than any loader has under way: workers times prefetch_factor.
_RECENT = 1_024


@dataclass
class EpochRecord:
    """What is known of an epoch while it goes on; `facts` freezes it, also half-way."""

    epoch: int
    began: float = field(default_factory=clock.now)
    running: RunningDigest = field(default_factory=RunningDigest)
    batches: int = 0
    batch_facts: list[BatchFacts] = field(default_factory=list)
    arrivals: array.array[float] = field(default_factory=lambda: array.array("d"))
    waits: array.array[float] = field(default_factory=lambda: array.array("d"))
    not_compared: set[str] = field(default_factory=set)
    indices: list[Any] | None = None
    recent: deque[tuple[int, Any]] = field(default_factory=lambda: deque(maxlen=_RECENT))
    end_s: float | None = None
    oversized: dict[str, tuple[int, int]] = field(default_factory=dict)
    asked: int | None = None

    def facts(
        self,
        samples: int | None,
        sample_ids: tuple[str | None, ...] | None = None,
        worker_samples: tuple[int, ...] = (),
    ) -> EpochFacts:
        """The epoch as facts; ``samples`` were counted where batches are collated."""
        return EpochFacts(
            epoch=self.epoch,
            batches=self.batches,
            samples=samples,
            digest=self.running.ordered,
            batch_multiset=self.running.multiset,
            batch_facts=tuple(self.batch_facts),
            arrivals_s=tuple(self.arrivals),
            waits_s=tuple(self.waits),
            not_compared=tuple(sorted(self.not_compared)),
            sample_ids=sample_ids,
            indices=_flat(self.indices),
            worker_samples=worker_samples,
            end_s=self.end_s,
            oversized=tuple((path, *sizes) for path, sizes in self.oversized.items()),
            asked=self.asked,
        )

    def take(self, batch: Any, asked: float) -> None:
        """Write down one batch that was asked for at ``asked`` and has just come."""
        came = clock.now()
        self.arrivals.append(came - self.began)
        self.waits.append(came - asked)
        content = digest(batch)
        self.running.add(content.hex)
        self.not_compared.update(content.not_compared)
        if self.batches < _BATCHES_WITH_LEAVES:
            for path, *sizes in oversized(batch):
                self.oversized.setdefault(path, (sizes[0], sizes[1]))
            self.batch_facts.append(BatchFacts(content.hex, leaves(batch, limit=_LEAVES_A_BATCH)))
        elif self.batches < _BATCHES_WITH_DIGEST:
            self.batch_facts.append(BatchFacts(content.hex))
        self.batches += 1


def batch_facts(batch: Any, number: int) -> BatchFacts:
    """What a batch holds, with its parts where it is among the first."""
    parts = leaves(batch, limit=_LEAVES_A_BATCH) if number < _BATCHES_WITH_LEAVES else ()
    return BatchFacts(digest(batch).hex, parts)


def _flat(indices: list[Any] | None) -> tuple[int, ...] | None:
    """Indices of all batches in one row, or None where they are not whole numbers."""
    if indices is None:
        return None
    flat = [i for item in indices for i in (item if isinstance(item, (list, tuple)) else [item])]
    return tuple(int(i) for i in flat) if all(isinstance(i, int) for i in flat) else None


class Recording:
    """A sampler that notes what the user's own gives, in the record of the epoch that goes on.

    ``whole`` keeps all of it; else only what was given last, by its number.
    """

    def __init__(self, inner: Any, records: list[EpochRecord], *, whole: bool = True) -> None:
        self.inner = inner
        self.records = records
        self.whole = whole

    def __iter__(self) -> Iterator[Any]:
        # the user's own begins here and now: it may draw random numbers
        return self._noting(iter(self.inner), self.records[-1])

    def _noting(self, items: Iterator[Any], record: EpochRecord) -> Iterator[Any]:
        indices = record.indices = [] if self.whole else None
        count = 0
        for item in items:
            if indices is None:
                record.recent.append((count, item))
            else:
                indices.append(item)
            count += 1
            yield item
        record.asked = count

    def __len__(self) -> int:
        return len(self.inner)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("inner", "records", "whole"):
            raise AttributeError(name)
        return getattr(self.inner, name)


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell the dataset the epoch, as a training loop would. The sampler is not told."""
    tell = getattr(loader.dataset, "set_epoch", None)
    if callable(tell):
        tell(epoch)


def drive(
    loader: Any,
    record: EpochRecord,
    *,
    beat: Callable[[], None],
    started: Callable[[Iterator[Any]], None],
    taken: Callable[[int], None],
    first: Callable[[Any], None] = lambda _batch: None,
) -> None:
    """Run one epoch into ``record``; the dataset has been told of it.

    ``started`` is called with what ``iter(loader)`` has returned, ``taken`` after each batch with
    the number of batches so far, ``first`` with the first batch. Raises what the loader raises.
    """
    record.began = clock.now()
    beat()
    batches: Iterator[Any] = iter(loader)
    started(batches)
    while True:
        beat()
        asked = clock.now()
        try:
            batch = next(batches)
        except StopIteration:
            record.end_s = clock.now() - asked
            return
        record.take(batch, asked)
        if record.batches == 1:
            first(batch)
        del batch
        taken(record.batches)
