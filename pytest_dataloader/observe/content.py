"""Content passes: one epoch with every batch digested, under a true start the first time."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import multiprocessing
import statistics
import time
import warnings
from typing import Any

from pytest_dataloader.diagnose import pickling, world
from pytest_dataloader.observe import errors, forking, insight, processes, worker
from pytest_dataloader.observe.bench import Bench
from pytest_dataloader.observe.epoch import EpochRecord, Recording, drive, set_epoch
from pytest_dataloader.observe.facts import (
    DIED,
    HUNG,
    TRUE_START,
    DifferenceFacts,
    EpochFacts,
    RunFacts,
    WorkerFacts,
)
from pytest_dataloader.observe.imports import modules_of
from pytest_dataloader.observe.outcome import dead_workers, last_task, outcome_of, stuck_at
from pytest_dataloader.observe.surroundings import recorded, seeded
from pytest_dataloader.observe.watchdog import RunInterrupted, Watchdog


def run_content(bench: Bench) -> RunFacts:
    """Run one epoch and write down what came, from whom, and how it ended."""
    context = bench.choose_start()
    before = processes.snapshot()
    bench.before = frozenset(multiprocessing.active_children())
    dog = bench.watchdog()
    caught: list[warnings.WarningMessage] = []
    with bench.tools.tap.during(), recorded(caught), seeded(bench.request.seed):
        try:
            with dog.watching():
                bench.guarded(lambda: _epoch(bench, context, dog))
        except RunInterrupted:
            bench.outcome = HUNG
        bench.close()
        gc.collect()
        if dog.fired and bench.batch_lost():
            _look_for_what_is_not_sent(bench)
    return _facts(bench, dog, before, caught)


def _look_for_what_is_not_sent(bench: Bench) -> None:
    """Make the batches again in this process, up to one of which a part will not travel."""
    again = dataclasses.replace(bench.request, config=bench.request.config.without_workers())
    dog = bench.watchdog()

    def body() -> None:
        loader = dataclasses.replace(bench, request=again).build(None).loader
        try:
            for batch in loader:
                dog.beat()
                bench.unpicklable = pickling.find_unpicklable({"batch": batch}, None)
                if bench.unpicklable:
                    return
        except Exception as error:  # noqa: BLE001 - the user's own, which may be what was lost
            bench.unpicklable = pickling.find_unpicklable({"exception": type(error)}, None)
            bench.unsent = errors.from_exception(error, "send") if bench.unpicklable else None

    try:
        with dog.watching(), seeded(bench.request.seed):
            bench.guarded(body)
    except RunInterrupted:
        bench.notes.append("the batch that was lost could not be made again in the test process")


# The run -------------------------------------------------------------------------------------


def _epoch(bench: Bench, context: Any, dog: Watchdog) -> None:
    built = bench.build(context)
    bench.notes += built.notes
    bench.fresh = built.fresh
    loader = built.loader
    _look_at(bench, loader, context)
    insight.look_at_build(bench, loader, _riders(loader))
    collate = loader.collate_fn
    _send_notes_along(bench, loader)
    try:
        for epoch in range(bench.request.epochs):
            _one_epoch(bench, loader, epoch, dog)
    except Exception:
        if bench.stage == "start":
            _say_what_does_not_travel(bench, loader, collate, context)
        raise
    if bench.request.epochs > 1:
        insight.after(bench, loader)
    bench.stage = "close"


def _one_epoch(bench: Bench, loader: Any, epoch: int, dog: Watchdog) -> None:
    bench.stage = "start"
    record = EpochRecord(epoch=epoch)
    bench.records.append(record)
    if bench.request.epochs > 1:
        insight.tell_epoch(bench, loader, epoch)
    else:
        set_epoch(loader, epoch)
    _drive(bench, loader, record, dog)


def _look_at(bench: Bench, loader: Any, context: Any) -> None:
    """Note what a loader says of itself before it starts."""
    bench.in_order = getattr(loader, "in_order", True)
    bench.expected = _length(loader)
    riders = _riders(loader)
    if _starts_afresh(bench):
        bench.travel = pickling.weigh({"dataset": loader.dataset, "loader": riders}, context)
        carried = {f"loader.{name}": value for name, value in riders.items()}
        bench.world = world.held({"dataset": loader.dataset, **carried}, world.user_modules())
        bench.names_used = world.names_used([loader.dataset, *riders.values()])
    if bench.request.config.start_method == "fork":
        forking.look(bench, loader, riders)
    travelling = bench.travel.modules if bench.travel else ()
    known = bench.tools.modules.get(bench.pipeline.key, ())
    bench.tools.modules[bench.pipeline.key] = modules_of(loader, (*known, *travelling))


def _starts_afresh(bench: Bench) -> bool:
    """Whether workers begin as new interpreters, so that they may hold something else than we."""
    method = bench.request.config.start_method
    return bench.start == TRUE_START and method not in (None, "fork")


def _riders(loader: Any) -> dict[str, Any]:
    """What else travels to a worker: the user's functions."""
    names = ("collate_fn", "worker_init_fn")
    return {name: getattr(loader, name) for name in names if getattr(loader, name) is not None}


def _length(loader: Any) -> int | None:
    """``len(loader)``, as a progress bar asks for it, or None where there is none.

    An iterable dataset is not asked: torch would warn from then on of every mismatch.
    """
    from torch.utils.data import IterableDataset

    if isinstance(loader.dataset, IterableDataset):
        return None
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def _send_notes_along(bench: Bench, loader: Any) -> None:
    """Let the user's functions carry ours, which note what the workers do."""
    batched = loader.batch_sampler is not None
    stderr_path = str(bench.tools.tap.path)
    look = None
    if _starts_afresh(bench):
        carried = {f"loader.{name}": value for name, value in _riders(loader).items()}
        look = worker.Look(world.user_modules(), carried)
    ride = insight.prepare(bench, loader, _riders(loader)) if bench.request.epochs > 1 else None
    if ride is None and bench.expected is not None and bench.request.config.has_workers:
        name = "batch_sampler" if batched else "sampler"
        loader.__dict__[name] = Recording(getattr(loader, name), bench.records, whole=False)
    handles = None
    if bench.request.config.start_method == "fork":
        handles = worker.Handles({f"loader.{n}": v for n, v in _riders(loader).items()})
    loader.worker_init_fn = worker.StartNote(
        loader.worker_init_fn, bench.journal, stderr_path, look=look, insight=ride, handles=handles
    )
    loader.collate_fn = worker.CollateNote(
        loader.collate_fn, bench.journal, batched=batched, insight=ride, handles=handles
    )


def _drive(bench: Bench, loader: Any, record: EpochRecord, dog: Watchdog) -> None:
    def begun() -> None:
        known = set(bench.workers_started)
        started = [p for p in processes.new_children(bench.before) if p not in known]
        bench.workers_started += started
        bench.stage = "iterate"

    def taken(count: int) -> None:
        if count == bench.expected or count & (count - 1) == 0:
            _sample_memory(bench)

    weigh = _weigh_batch if bench.request.config.has_workers else None
    drive(
        loader,
        record,
        beat=dog.beat,
        started=begun,
        taken=taken,
        first=lambda batch: weigh(bench, batch) if weigh is not None else None,
    )


def _weigh_batch(bench: Bench, batch: Any) -> None:
    """Pickle the first batch into nowhere, as a worker had to: CPU seconds and bytes."""
    began = time.thread_time()
    travel = pickling.weigh({"batch": batch}, None, parts=False)
    bench.pickle_s = time.thread_time() - began
    bench.pickle_bytes = travel.bytes if travel is not None else None


def _sample_memory(bench: Bench) -> None:
    for process in bench.workers_started:
        seen = processes.memory_of(process.pid or 0)
        if process.pid and seen:
            bench.memory[process.pid] = seen
            bench.peak[process.pid] = max(bench.peak.get(process.pid, 0), seen.resident)


def _say_what_does_not_travel(bench: Bench, loader: Any, collate: Any, context: Any) -> None:
    init = loader.worker_init_fn.inner
    riders = {"collate_fn": collate} | ({"worker_init_fn": init} if init is not None else {})
    roots = {"dataset": loader.dataset, "loader": riders}
    bench.unpicklable = pickling.find_unpicklable(roots, context)


# The facts -----------------------------------------------------------------------------------


def _facts(
    bench: Bench,
    dog: Watchdog,
    before: processes.Snapshot,
    caught: list[warnings.WarningMessage],
) -> RunFacts:
    told = bench.told
    workers = _workers(bench, told)
    stderr = bench.stacks_text if dog.fired else bench.tools.tap.text()
    outcome, reason, error = outcome_of(bench, dog, workers, stderr)
    travel = bench.travel
    return RunFacts(
        request=bench.request,
        start=bench.start,
        outcome=outcome,
        reason=reason,
        error=error,
        epochs=_epochs(bench, told),
        workers=workers,
        startup_s=_startup_s(bench),
        all_workers_s=_all_delivered(workers),
        close_s=bench.close_s,
        expected_batches=bench.expected,
        travel_bytes=travel.bytes if travel else None,
        heaviest=travel.heaviest if travel else (),
        unpicklable=bench.unpicklable,
        warnings=tuple(f"{w.category.__name__}: {w.message}" for w in caught),
        stderr_tail=stderr[-8000:],
        stuck=stuck_at(dog, stderr),
        left_behind=processes.left_since(before, _known(bench)),
        notes=_notes(bench, told),
        in_order=bench.in_order,
        world=_world(bench, told),
        randomness=insight.randomness(bench, told),
        drifted=bench.drifted,
        epoch_fields=bench.epoch_fields,
        dataset=bench.dataset,
        built=bench.built,
        sources=bench.sources,
        pickle_s=bench.pickle_s,
        pickle_bytes=bench.pickle_bytes,
        batch_cpu_s=_batch_cpu_s(told),
        handles=forking.shared_handles(told),
        held_locks=bench.held_locks,
        threads=bench.threads,
        worker_threads=forking.worker_threads(told),
        last_task=last_task(bench, dead_workers(bench, dog, workers)) if outcome == DIED else None,
        unpinnable=bench.unpinnable,
    )


def _notes(bench: Bench, told: list[dict[str, Any]]) -> tuple[str, ...]:
    notes = list(bench.notes)
    if not bench.fresh:
        notes.append("the dataset is not built afresh")
    failed = [note["error"] for note in told if note["kind"] == "no-world"]
    return (*notes, *(f"what a worker held could not be read: {error}" for error in failed))


def _world(bench: Bench, told: list[dict[str, Any]]) -> tuple[DifferenceFacts, ...]:
    """Where a worker held something else than this process when it had started."""
    looks = [note["held"] for note in told if note["kind"] == "world"]
    return world.differences(bench.world, looks[0], bench.names_used) if looks else ()


def _batch_cpu_s(told: list[dict[str, Any]]) -> float | None:
    """The median over workers' batches of the CPU seconds since the worker's batch before."""
    spent: list[float] = []
    made = [note for note in told if note["kind"] == "batch"]
    for pid in dict.fromkeys(note["pid"] for note in made):
        cpu = [note["cpu"] for note in made if note["pid"] == pid]
        spent += [after - before for before, after in itertools.pairwise(cpu)]
    return statistics.median(spent) if spent else None


def _epochs(bench: Bench, told: list[dict[str, Any]]) -> tuple[EpochFacts, ...]:
    """The epochs that began; samples are counted where batches are collated."""
    if bench.request.epochs > 1:
        return insight.epochs(bench, told)
    samples = sum(note["samples"] for note in told if note["kind"] == "batch")
    return tuple(record.facts(samples if record.batches else 0) for record in bench.records)


def _startup_s(bench: Bench) -> float | None:
    return next((record.arrivals[0] for record in bench.records if record.batches), None)


def _known(bench: Bench) -> list[int]:
    """Processes that are told of elsewhere, or are ours."""
    pids = [process.pid for process in bench.workers_started if process.pid]
    return [*pids, bench.tools.starter.server_pid or 0]


def _workers(bench: Bench, told: list[dict[str, Any]]) -> tuple[WorkerFacts, ...]:
    began = bench.records[0].began if bench.records else 0.0
    return tuple(_worker(bench, process, told, began) for process in bench.workers_started)


def _worker(bench: Bench, process: Any, told: list[dict[str, Any]], began: float) -> WorkerFacts:
    pid = process.pid or 0
    starts = [n for n in told if n["pid"] == pid and n["kind"] == "start"]
    made = [n for n in told if n["pid"] == pid and n["kind"] == "batch"]
    memory = bench.memory.get(pid)
    return WorkerFacts(
        worker_id=starts[0]["worker"] if starts else None,
        pid=pid,
        exit_code=process.exitcode,
        batches=len(made),
        samples=sum(n["samples"] for n in made),
        cpu_s=made[-1]["cpu"] if made else None,
        ready_s=starts[0]["at"] - began if starts else None,
        first_batch_s=made[0]["at"] - began if made else None,
        unique_bytes=memory.unique if memory else None,
        peak_rss_bytes=bench.peak.get(pid),
    )


def _all_delivered(workers: tuple[WorkerFacts, ...]) -> float | None:
    firsts = [w.first_batch_s for w in workers]
    known = [first for first in firsts if first is not None]
    return max(known) if known and len(known) == len(firsts) else None
