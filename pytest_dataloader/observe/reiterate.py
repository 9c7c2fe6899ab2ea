"""Passes over one loader again: after an early break, and with two iterators at once."""

from __future__ import annotations

import itertools
import multiprocessing
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from pytest_dataloader.diagnose import pickling, stateful, world
from pytest_dataloader.observe import clock, processes, worker
from pytest_dataloader.observe.bench import Bench
from pytest_dataloader.observe.epoch import set_epoch
from pytest_dataloader.observe.facts import HUNG, AgainFacts, ReiterateFacts, RunFacts
from pytest_dataloader.observe.ride import Insight
from pytest_dataloader.observe.surroundings import only_new_garbage, recorded, seeded
from pytest_dataloader.observe.watchdog import RunInterrupted, Watchdog

#: An epoch of more batches, or of more seconds, is not gone through again and again.
_MOST_BATCHES = 1_000
_MOST_SECONDS = 3.0
_SAMPLES_TAKEN = 3

_Samples = Counter[Any]


class _TooLong(Exception):
    """An epoch that is not gone through."""


def run_reiterate(bench: Bench) -> RunFacts:
    """Run two epochs, then break one off and run it again, then run two at once."""
    context = bench.choose_start()
    bench.before = frozenset(multiprocessing.active_children())
    dog = bench.watchdog()
    passes = _Passes(bench, context, dog)
    caught: list[warnings.WarningMessage] = []
    with only_new_garbage(), bench.tools.tap.during(), recorded(caught):
        try:
            with dog.watching():
                bench.guarded(passes.all)
        except RunInterrupted:
            bench.outcome = HUNG
        bench.close()
    error = bench.error
    return RunFacts(
        request=bench.request,
        start=bench.start,
        outcome=HUNG if dog.fired else bench.outcome,
        reason=f"{error.type}: {error.message}" if error is not None else None,
        error=error,
        reiterated=passes.found,
    )


class _Passes:
    """The epochs of one loader, and what became of them."""

    def __init__(self, bench: Bench, context: Any, dog: Watchdog) -> None:
        self.bench = bench
        self.context = context
        self.dog = dog
        self.found: ReiterateFacts | None = None

    def all(self) -> None:
        """All passes; none where workers begin with a fresh copy of the dataset each time."""
        try:
            with seeded(self.bench.request.seed):
                self._compare(self._loader())
        except _TooLong:
            return

    def _compare(self, loader: Any) -> None:
        if self.bench.request.config.has_workers and not loader.persistent_workers:
            return
        usual = [self._epoch(loader, number) for number in range(2)]
        if not usual[0] or _size(usual[0]) != _size(usual[1]):
            return
        by_content = usual[0] == usual[1] and None not in usual[0]
        told = [self._after_a_break(loader, usual[0])]
        if not self.bench.request.config.has_workers:
            told += self._two_at_once(loader)
        again = tuple(_against(usual[0], how, got, by_content) for how, got in told)
        if any(one.lost or one.more for one in again) and not self._is_steady(usual[0], by_content):
            return
        broken = any(one.lost or one.more for one in again)
        kept = tuple(self._kept()) if broken else ()
        places = stateful.described(loader)["places"]
        self.found = ReiterateFacts(_size(usual[0]), again, kept, places)

    def _is_steady(self, usual: _Samples, by_content: bool) -> bool:
        """Whether as many epochs in a row, none broken off, are all alike."""
        with seeded(self.bench.request.seed):
            loader = self._loader()
            epochs = [self._epoch(loader, number) for number in range(6)]
        sizes = {_size(epoch) for epoch in epochs}
        return all(epoch == usual for epoch in epochs) if by_content else len(sizes) == 1

    # The epochs ------------------------------------------------------------------------------

    def _loader(self) -> Any:
        bench = self.bench
        self.dog.beat()
        config, rebuilds = bench.request.config, bench.pipeline.rebuilds
        loader = bench.pipeline.build(config, self.context, keep=rebuilds).loader
        riders = {
            f"loader.{name}": getattr(loader, name)
            for name in ("collate_fn", "worker_init_fn")
            if getattr(loader, name) is not None
        }
        ride = Insight(self._key(), riders)
        batched = loader.batch_sampler is not None
        loader.collate_fn = NamedCollate(loader.collate_fn, ride, batched=batched)
        loader.worker_init_fn = worker.StartNote(
            loader.worker_init_fn, bench.journal, str(bench.tools.tap.path)
        )
        return loader

    def _key(self) -> Any:
        """The user's function from a sample to its identity, where it travels to the workers."""
        key = self.bench.pipeline.sample_key
        if key is None or self.bench.request.config.start_method in (None, "fork"):
            return key
        return None if pickling.find_unpicklable({"dl_sample_key": key}, None) else key

    def _epoch(self, loader: Any, number: int) -> _Samples:
        set_epoch(loader, number)
        return self._rest(iter(loader))

    def _rest(self, batches: Iterator[Any]) -> _Samples:
        samples: _Samples = Counter()
        for _number, ids in self._beating(batches):
            samples.update(ids)
        return samples

    def _beating(self, batches: Iterator[Any]) -> Iterator[tuple[int, Any]]:
        ends = float("inf")  # the start of the workers does not count
        for number, ids in enumerate(batches):
            self.dog.beat()
            ends = ends if number else clock.now() + _MOST_SECONDS
            self.bench.stage = "iterate"
            self.bench.workers_started = processes.new_children(self.bench.before)
            if number == _MOST_BATCHES or clock.now() > ends:
                raise _TooLong
            yield number, ids
        self.dog.beat()

    def _after_a_break(self, loader: Any, usual: _Samples) -> tuple[str, _Samples]:
        set_epoch(loader, 2)
        taken = 0
        for _number, ids in self._beating(iter(loader)):
            taken += len(ids)
            if 2 * taken >= _size(usual):
                break
        return f"after an epoch that was left at {taken} samples", self._epoch(loader, 3)

    def _two_at_once(self, loader: Any) -> list[tuple[str, _Samples]]:
        set_epoch(loader, 4)
        one, other = iter(loader), iter(loader)
        first: _Samples = Counter(next(one, ()))
        second = self._rest(other)
        first += self._rest(one)
        return [
            ("from the first of two iterators at once", first),
            ("from the second of two iterators at once", second),
        ]

    # Why -------------------------------------------------------------------------------------

    def _kept(self) -> Iterator[str]:
        """What an iterator that is half used leaves in the dataset, or in a sampler."""
        config = self.bench.request.config.without_workers()
        with seeded(self.bench.request.seed):
            loader = self.bench.pipeline.build(config, None, keep=False).loader
            part, path = _source(loader)
            before = world.held_fields({path: part})
            going = iter(part)
            for _sample in itertools.islice(going, _SAMPLES_TAKEN):
                pass
            after = world.held_fields({path: part})
            for inner, value in world.fields(path, part):
                if hasattr(type(value), "__next__") and value is not part:
                    yield inner
            for inner in after:
                if after[inner][0] != before.get(inner, [""])[0] and after[inner][2] != "opaque":
                    yield inner


def _source(loader: Any) -> tuple[Any, str]:
    """Who decides what comes: an iterable dataset, or a sampler."""
    from torch.utils.data import IterableDataset

    if isinstance(loader.dataset, IterableDataset):
        return loader.dataset, "dataset"
    batched = loader.batch_sampler
    if batched is not None and type(batched).__module__.partition(".")[0] != "torch":
        return batched, "loader.batch_sampler"
    return loader.sampler, "loader.sampler"


def _size(samples: _Samples) -> int:
    return sum(samples.values())


def _against(usual: _Samples, how: str, got: _Samples, by_content: bool) -> AgainFacts:
    """What is missing and what is too many, by the samples or by their number alone."""
    if by_content and None not in got and set(got) <= set(usual):
        return AgainFacts(how, _size(got), _size(usual - got), _size(got - usual))
    change = _size(got) - _size(usual)
    return AgainFacts(how, _size(got), max(0, -change), max(0, change))


class NamedCollate:
    """A ``collate_fn`` that calls the user's own, and gives the identities of its samples.

    Runs in the worker process.
    """

    def __init__(self, inner: Callable[[Any], Any], ride: Insight, *, batched: bool) -> None:
        self.inner = inner
        self.ride = ride
        self.batched = batched

    def __call__(self, samples: Any) -> tuple[str | None, ...]:
        ids = self.ride.of_batch(samples, batched=self.batched)["ids"]
        self.inner(samples)
        return tuple(ids)
