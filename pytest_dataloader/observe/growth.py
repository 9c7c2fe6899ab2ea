"""Memory passes: several epochs in the same processes, with their memory at the end of each."""

from __future__ import annotations

import gc
import multiprocessing
import os
import warnings
from typing import Any

from pytest_dataloader.diagnose import world
from pytest_dataloader.diagnose.sizes import sizes
from pytest_dataloader.observe import clock, processes, worker
from pytest_dataloader.observe.bench import Bench
from pytest_dataloader.observe.epoch import EpochRecord, set_epoch
from pytest_dataloader.observe.facts import HUNG, GrowthFacts, RunFacts
from pytest_dataloader.observe.surroundings import only_new_garbage, recorded, seeded
from pytest_dataloader.observe.watchdog import RunInterrupted, Watchdog

_SIZES = dict[str, int]


class _Samples:
    """Unique memory of each process at the end of each epoch, and what this process holds."""

    def __init__(self) -> None:
        self.unique: dict[int, list[int | None]] = {}
        self.ends: list[float] = []
        self.held: list[_SIZES] = []
        self.batches = 0
        self.persistent = True

    def take(self, pids: list[int]) -> None:
        """An epoch has ended."""
        if os.getpid() in pids:
            gc.collect()
        self.ends.append(clock.now())
        for pid in pids:
            seen = processes.memory_of(pid)
            self.unique.setdefault(pid, []).append(seen.unique if seen else None)


def run_growth(bench: Bench) -> RunFacts:
    """Run the epochs, or as many of them as end within the request's seconds.

    Workers are persistent whatever the loader says: theirs is the memory of one long epoch.
    """
    context = bench.choose_start()
    bench.before = frozenset(multiprocessing.active_children())
    dog = bench.watchdog()
    samples = _Samples()
    caught: list[warnings.WarningMessage] = []
    with bench.tools.tap.during(), recorded(caught), seeded(bench.request.seed):
        try:
            with dog.watching(), only_new_garbage():
                bench.guarded(lambda: _epochs(bench, context, dog, samples))
        except RunInterrupted:
            bench.outcome = HUNG
        bench.close()
    return RunFacts(
        request=bench.request,
        start=bench.start,
        outcome=HUNG if dog.fired else bench.outcome,
        error=bench.error,
        growth=tuple(_growth(bench, samples)),
    )


def _epochs(bench: Bench, context: Any, dog: Watchdog, samples: _Samples) -> None:
    loader = bench.build(context).loader
    samples.persistent = not bench.request.config.has_workers or loader.persistent_workers
    riders = _ride_along(bench, loader)
    modules = world.modules_near([loader.dataset, *riders.values()])
    deadline = clock.now() + bench.request.seconds
    for epoch in range(bench.request.epochs):
        bench.records.append(EpochRecord(epoch=epoch))
        set_epoch(loader, epoch)
        dog.beat()
        for _batch in loader:
            dog.beat()
            samples.batches += 1
            if clock.now() > deadline:
                return
        bench.stage = "iterate"
        bench.workers_started = processes.new_children(bench.before)
        pids = [process.pid for process in bench.workers_started if process.pid]
        samples.take(pids or [os.getpid()])
        if not pids:
            samples.held.append(sizes({"dataset": loader.dataset, **riders}, modules))


def _ride_along(bench: Bench, loader: Any) -> dict[str, Any]:
    """Let the workers note what they hold; without workers this process looks for itself."""
    names = ("collate_fn", "worker_init_fn")
    found = {f"loader.{n}": getattr(loader, n) for n in names if getattr(loader, n) is not None}
    if bench.request.config.has_workers:
        loader.__dict__["persistent_workers"] = True
        loader.worker_init_fn = worker.StartNote(
            loader.worker_init_fn, bench.journal, str(bench.tools.tap.path)
        )
        loader.collate_fn = worker.SizesNote(loader.collate_fn, bench.journal, found)
    return found


def _growth(bench: Bench, samples: _Samples) -> list[GrowthFacts]:
    told = bench.told
    starts = {note["pid"]: note["worker"] for note in told if note["kind"] == "start"}
    found = []
    for pid, unique in samples.unique.items():
        notes = [n for n in told if n["kind"] == "sizes" and n["pid"] == pid]
        held = samples.held or [_last_before(notes, end) for end in samples.ends]
        made = notes[-1]["batches"] if notes else samples.batches
        found.append(
            GrowthFacts(
                worker_id=starts.get(pid),
                unique_bytes=tuple(unique),
                sizes=tuple(_changing(held)),
                batches_an_epoch=made / len(unique),
                lives_on=samples.persistent,
            )
        )
    return found


def _last_before(notes: list[dict[str, Any]], end: float) -> _SIZES:
    """What a worker held at its last look in or before an epoch; a note tells what changed."""
    held: _SIZES = {}
    for note in notes:
        if note["at"] <= end:
            held |= note["sizes"]
    return held


def _changing(held: list[_SIZES]) -> list[tuple[str, tuple[int, ...]]]:
    """What became more after the first epoch, by path, with its size at each epoch's end."""
    if not held:
        return []
    series = {path: tuple(sizes.get(path, 0) for sizes in held) for path in held[-1]}
    return [(path, series[path]) for path in series if series[path][-1] > series[path][0]]
