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

from pytest_dataloader.diagnose import machine, pickling, world
from pytest_dataloader.diagnose.sizes import many_objects
from pytest_dataloader.observe import (
    clock,
    errors,
    forking,
    insight,
    making,
    pinning,
    processes,
    ranks,
    worker,
)
from pytest_dataloader.observe.bench import Bench
from pytest_dataloader.observe.epoch import EpochRecord, Recording, drive, set_epoch
from pytest_dataloader.observe.facts import (
    DIED,
    HUNG,
    DifferenceFacts,
    EpochFacts,
    MakingFacts,
    PartFacts,
    RunFacts,
    StartupFacts,
    WorkerFacts,
)
from pytest_dataloader.observe.imports import modules_of
from pytest_dataloader.observe.outcome import dead_workers, last_task, outcome_of, stuck_at
from pytest_dataloader.observe.surroundings import only_new_garbage, recorded, seeded
from pytest_dataloader.observe.watchdog import RunInterrupted, Watchdog


def run_content(bench: Bench) -> RunFacts:
    """Run one epoch and write down what came, from whom, and how it ended."""
    context = bench.choose_start()
    before = processes.snapshot()
    bench.before = frozenset(multiprocessing.active_children())
    dog = bench.watchdog()
    caught: list[warnings.WarningMessage] = []
    with only_new_garbage():
        _run(bench, context, dog, caught)
    return _facts(bench, dog, before, caught)


def _run(bench: Bench, context: Any, dog: Watchdog, caught: list[warnings.WarningMessage]) -> None:
    with bench.tools.tap.during(), recorded(caught), seeded(bench.request.seed):
        try:
            with dog.watching():
                bench.guarded(lambda: _as_rank(bench, context, dog))
        except RunInterrupted:
            bench.outcome = HUNG
        bench.close()
        gc.collect()
        if dog.fired and bench.batch_lost():
            _look_for_what_is_not_sent(bench)


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


def _as_rank(bench: Bench, context: Any, dog: Watchdog) -> None:
    with ranks.as_rank(bench.request.rank, bench.request.world_size):
        _epoch(bench, context, dog)


def _epoch(bench: Bench, context: Any, dog: Watchdog) -> None:
    built = bench.build(context)
    bench.notes += built.notes
    bench.fresh = built.fresh
    loader = built.loader
    if bench.request.rank is not None:
        why = ranks.place(loader, bench.pipeline, bench.request.rank)
        bench.notes += [why] if why else []
    _look_at(bench, loader, context)
    insight.look_at_build(bench, loader, _riders(loader))
    collate = loader.collate_fn
    _send_notes_along(bench, loader)
    try:
        with making.noted_here(wanted=not bench.request.config.has_workers):
            for epoch in range(bench.request.epochs):
                _one_epoch(bench, loader, epoch, dog)
    except Exception:
        if bench.stage == "start":
            _say_what_does_not_travel(bench, loader, collate, context)
        raise
    if bench.request.epochs > 1:
        insight.after(bench, loader)
    bench.stage, bench.ended_at = "close", clock.now()


def _one_epoch(bench: Bench, loader: Any, epoch: int, dog: Watchdog) -> None:
    bench.stage, bench.starting = "start", True
    record = EpochRecord(epoch=epoch)
    bench.records.append(record)
    if not loader.persistent_workers:
        bench.workers_of_before = frozenset(bench.workers_started)
    if bench.request.epochs > 1:
        insight.tell_epoch(bench, loader, epoch)
    else:
        set_epoch(loader, epoch)
    _drive(bench, loader, record, dog)


def _look_at(bench: Bench, loader: Any, context: Any) -> None:
    """Note what a loader says of itself before it starts."""
    bench.in_order = getattr(loader, "in_order", True)
    bench.order = insight.order_of(loader)[0]
    bench.prefetch_factor = loader.prefetch_factor
    if bench.request.epochs == 1 and not bench.request.repeat:
        bench.storage = machine.storage_of({"dataset": loader.dataset})
    bench.expected = _length(loader)
    riders = _riders(loader)
    if bench.afresh:
        bench.travel = pickling.weigh({"dataset": loader.dataset, "loader": riders}, context)
        carried = {f"loader.{name}": value for name, value in riders.items()}
        roots = [loader.dataset, *riders.values()]
        near = world.modules_near(roots)
        bench.world = world.held({"dataset": loader.dataset, **carried}, near)
        bench.names_used = world.names_used(roots)
    if bench.request.config.start_method == "fork":
        forking.look(bench, loader, riders)
        carried = {f"loader.{name}": value for name, value in riders.items()}
        bench.many_objects = tuple(many_objects({"dataset": loader.dataset, **carried}))
    travelling = bench.travel.modules if bench.travel else ()
    known = bench.tools.modules.get(bench.pipeline.key, ())
    bench.tools.modules[bench.pipeline.key] = modules_of(loader, (*known, *travelling))


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
    if bench.afresh:
        carried = {f"loader.{name}": value for name, value in _riders(loader).items()}
        near = world.modules_near([loader.dataset, *carried.values()])
        look = worker.Look(near, carried)
        _time_the_start(bench, loader)
    ride = insight.prepare(bench, loader, _riders(loader)) if bench.request.epochs > 1 else None
    if ride is None and bench.expected is not None:
        name = "batch_sampler" if batched else "sampler"
        loader.__dict__[name] = Recording(getattr(loader, name), bench.records, whole=False)
    handles = None
    if bench.request.config.start_method == "fork":
        carried = {f"loader.{name}": value for name, value in _riders(loader).items()}
        handles = worker.Handles(carried, forking.modules_with_threads(bench))
    loader.worker_init_fn = worker.StartNote(
        loader.worker_init_fn, bench.journal, stderr_path, look=look, insight=ride, handles=handles
    )
    loader.collate_fn = worker.CollateNote(
        loader.collate_fn, bench.journal, batched=batched, insight=ride, handles=handles
    )


def _time_the_start(bench: Bench, loader: Any) -> None:
    """Let the first thing that a new interpreter unpickles of the loader note the time."""
    known = loader.__dict__.get("_dataset_kind")
    if type(known) is int:
        modules = bench.travel.modules if bench.travel is not None else ()
        wanted = tuple(name for name in modules if name not in ("__main__", "__mp_main__"))
        loader.__dict__["_dataset_kind"] = making.kind(known, wanted)


def _drive(bench: Bench, loader: Any, record: EpochRecord, dog: Watchdog) -> None:
    def begun(batches: Any) -> None:
        bench.take_workers(batches)
        bench.stage = "iterate"

    def taken(count: int) -> None:
        if count == bench.expected or count & (count - 1) == 0:
            _sample_memory(bench)

    def first(batch: Any) -> None:
        if bench.request.config.has_workers:
            _weigh_batch(bench, batch)
        if loader.pin_memory:
            bench.unpinnable = tuple(pinning.unpinnable(batch))

    drive(
        loader,
        record,
        beat=dog.beat,
        started=begun,
        taken=taken,
        first=first,
    )


def _weigh_batch(bench: Bench, batch: Any) -> None:
    """Pickle the first batch into nowhere, as a worker had to: CPU seconds and bytes."""
    began = time.thread_time()
    travel = pickling.weigh({"batch": batch}, None, parts=False)
    bench.pickle_s = time.thread_time() - began
    bench.pickle_bytes = travel.bytes if travel is not None else None
    bench.batch_bytes = machine.shared_bytes(batch)


def _sample_memory(bench: Bench) -> None:
    for process in bench.workers_started:
        seen = processes.memory_of(process.pid or 0)
        if process.pid and seen:
            bench.memory[process.pid] = seen
            if seen.unique is not None:
                bench.first_unique.setdefault(process.pid, seen.unique)
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
        order=bench.order,
        world=_world(bench, told),
        randomness=insight.randomness(bench, told),
        drifted=bench.drifted,
        changed=bench.changed,
        epoch_fields=bench.epoch_fields,
        dataset=bench.dataset,
        built=bench.built,
        sources=bench.sources,
        pickle_s=bench.pickle_s,
        pickle_bytes=bench.pickle_bytes,
        batch_cpu_s=_batch_cpu_s(told),
        making=_making(told),
        startup=_startup(bench, workers, told),
        machine=machine.facts(),
        storage=bench.storage,
        batch_bytes=bench.batch_bytes,
        prefetch_factor=bench.prefetch_factor,
        handles=forking.shared_handles(told),
        held_locks=bench.held_locks,
        threads=bench.threads,
        live_threads=forking.gone_in_workers(bench, told),
        worker_threads=forking.worker_threads(told),
        many_objects=bench.many_objects,
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


def _making(told: list[dict[str, Any]]) -> MakingFacts | None:
    """What it took to make a batch; the first of each process pays for what comes only once."""
    made = [note for note in told if note["kind"] == "batch" and "fetch" in note]
    by_pid: dict[int, list[dict[str, Any]]] = {}
    for note in made:
        by_pid.setdefault(note["pid"], []).append(note)
    steady = [note for notes in by_pid.values() for note in (notes[1:] or notes)]
    if not steady:
        return None
    return MakingFacts(
        len(steady),
        fetch=_part([note["fetch"] for note in steady]),
        collate=_part([note["collate"] for note in steady]),
    )


def _part(spent: list[list[float]]) -> PartFacts:
    seconds, cpu_s, queued_s = (statistics.fmean(column) for column in zip(*spent, strict=True))
    # the system counts a wait for a CPU when it is over, also one that began before
    queued_s = min(queued_s, max(0.0, seconds - cpu_s))
    return PartFacts(seconds, cpu_s, queued_s, max(0.0, seconds - cpu_s - queued_s))


def _startup(
    bench: Bench, workers: tuple[WorkerFacts, ...], told: list[dict[str, Any]]
) -> StartupFacts | None:
    """How the first batch's worker spent the time, where it began as a new interpreter."""
    startup_s = _startup_s(bench)
    first = min(
        (w for w in workers if w.first_batch_s is not None),
        key=lambda w: w.worker_id or 0,
        default=None,
    )
    if startup_s is None or first is None or first.first_batch_s is None:
        return None
    notes = {n["kind"]: n for n in reversed(told) if n["pid"] == first.pid}
    arrival = notes["start"].get("arrival", {}) if "start" in notes else {}
    if not {"interpreter_at", "unpickled_at"} <= arrival.keys() or "fetch" not in notes["batch"]:
        return None
    return StartupFacts(
        interpreter_s=arrival["interpreter_at"] - bench.records[0].began,
        imports_s=arrival["imported_at"] - arrival["interpreter_at"],
        arrival_s=arrival["unpickled_at"] - arrival["imported_at"],
        init_s=notes["init"]["seconds"] if "init" in notes else 0.0,
        first_fetch_s=notes["batch"]["fetch"][0] + notes["batch"]["collate"][0],
        delivery_s=max(0.0, startup_s - first.first_batch_s),
        slowest=tuple(arrival["slowest"]) if "slowest" in arrival else None,
    )


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
        grown_bytes=_grown(bench, pid),
    )


def _grown(bench: Bench, pid: int) -> int | None:
    last = bench.memory.get(pid)
    if last is None or last.unique is None:
        return None
    return last.unique - bench.first_unique[pid]


def _all_delivered(workers: tuple[WorkerFacts, ...]) -> float | None:
    firsts = [w.first_batch_s for w in workers]
    known = [first for first in firsts if first is not None]
    return max(known) if known and len(known) == len(firsts) else None
