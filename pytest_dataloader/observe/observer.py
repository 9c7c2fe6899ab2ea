"""Runs each thing once for all the checks that ask for it, and keeps the facts."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from pytest_dataloader.diagnose import pickling
from pytest_dataloader.matrix import LoaderConfig
from pytest_dataloader.observe import clock, errors, processes, rate, worker
from pytest_dataloader.observe.epoch import EpochRecord, drive
from pytest_dataloader.observe.facts import (
    CONTENT,
    DIED,
    HUNG,
    IMPORT,
    IN_PROCESS,
    OK,
    RAISED,
    SCRIPT,
    TIMED,
    EpochFacts,
    ErrorFacts,
    ImportFacts,
    RunFacts,
    RunRequest,
    WorkerFacts,
)
from pytest_dataloader.observe.script import run_script
from pytest_dataloader.observe.starting import Starter
from pytest_dataloader.observe.stderr import StderrTap
from pytest_dataloader.observe.watchdog import RunInterrupted, Watchdog, ask_for_stacks
from pytest_dataloader.pipeline import Pipeline, Script

_JOIN_S = 6.0
_DEATH_WORDS = ("exited unexpectedly", "killed by signal")
_FORK_WARNING = r".*multi-threaded, use of fork\(\) may lead to deadlocks.*"


class Observer:
    """Observes pipelines. Facts are kept by pipeline id and request, so nothing is run twice."""

    def __init__(
        self,
        *,
        timeout_s: float = 60.0,
        true_starts: bool = False,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self.timeout_s = timeout_s
        self.true_starts = true_starts
        self.folder = Path(tempfile.mkdtemp(prefix="pytest-dataloader-"))
        self.starter = Starter(true_starts=true_starts)
        self._tap = StderrTap(self.folder / "stderr")
        self._progress = progress or (lambda _text: None)
        self._facts: dict[tuple[Any, RunRequest], RunFacts] = {}
        self._truly_started: set[tuple[Any, LoaderConfig]] = set()
        self.modules: dict[Any, tuple[str, ...]] = {}
        self._runs = 0

    def close(self) -> None:
        """End the warm server and remove the observer's own files."""
        self.starter.close()
        self._tap.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def observe(self, pipeline: Pipeline | Script, request: RunRequest) -> RunFacts:
        """The facts of a request, from an earlier run if there was one."""
        key = (pipeline.key, request)
        if key not in self._facts:
            self._facts[key] = self._run(pipeline, request)
        return self._facts[key]

    def _run(self, pipeline: Pipeline | Script, request: RunRequest) -> RunFacts:
        self._runs += 1
        journal = worker.Journal(str(self.folder / f"run-{self._runs}"))
        began = clock.now()
        runners = {CONTENT: _content, TIMED: _timed, SCRIPT: _script, IMPORT: _imports}
        try:
            facts = runners[request.purpose](_Bench(self, pipeline, request, journal))
        finally:
            journal.close()
            Path(journal.path).unlink(missing_ok=True)
            self._progress("")
        return replace(facts, duration_s=clock.now() - began)

    def start_of(self, pipeline_key: Any, request: RunRequest) -> tuple[Any, str]:
        """The context for a run: a true start the first time, a warm one for repeats."""
        key = (pipeline_key, request.config)
        repeat = key in self._truly_started or request.purpose == TIMED
        if request.purpose == CONTENT:
            self._truly_started.add(key)
        return self.starter.context(request.config.start_method, repeat=repeat)


@dataclass
class _Bench:
    """One run's tools and what it has noted so far."""

    observer: Observer
    pipeline: Any
    request: RunRequest
    journal: worker.Journal
    stage: str = "build"
    start: str = IN_PROCESS
    error: ErrorFacts | None = None
    outcome: str = OK
    processes: list[BaseProcess] = field(default_factory=list)
    memory: dict[int, processes.Memory] = field(default_factory=dict)
    peak: dict[int, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    records: list[EpochRecord] = field(default_factory=list)
    stacks_text: str = ""
    close_s: float | None = None
    unpicklable: tuple[Any, ...] = ()
    expected: int | None = None
    in_order: bool = True
    fresh: bool = True
    travel: pickling.Travel | None = None

    @property
    def tap(self) -> StderrTap:
        return self.observer._tap

    @property
    def told(self) -> list[dict[str, Any]]:
        return worker.read_journal(self.journal.path)

    def watchdog(self) -> Watchdog:
        began = clock.now()
        config = self.request.config

        def tick() -> None:
            done = sum(record.batches for record in self.records)
            waited = clock.now() - began
            if waited >= 1.0:
                self.observer._progress(
                    f"{self.pipeline.id} {config.id}: {self.stage}, {done} batches, {waited:.0f} s"
                )

        return Watchdog(self.observer.timeout_s, self.end_workers, lost=self.batch_lost, tick=tick)

    def batch_lost(self) -> bool:
        """Whether a worker has said on standard error that a batch could not be sent."""
        return lost_batch(self.tap.text()) is not None

    def end_workers(self) -> None:
        """Ask the stuck workers where they stand, then end them."""
        ready = [n["pid"] for n in self.told if n["kind"] == "start" and n["stacks"]]
        alive = [p for p in self.processes or processes.new_children(self.before) if p.is_alive()]
        ask_for_stacks([p.pid for p in alive if p.pid in ready], worker.STACK_SIGNAL)
        time.sleep(0.3 if ready else 0)
        self.stacks_text = self.tap.text()
        processes.end(alive)

    before: frozenset[BaseProcess] = frozenset()


def lost_batch(text: str) -> str | None:
    """The traceback of a queue's feeder thread that could not pickle a batch, if there is one."""
    for part in text.split("Traceback (most recent call last):")[1:]:
        if ", in _feed" in part and "queues.py" in part:
            return "Traceback (most recent call last):" + part
    return None


# Content passes ------------------------------------------------------------------------------


def _content(bench: _Bench) -> RunFacts:
    """One epoch with every batch digested, under a true start the first time."""
    context, bench.start = bench.observer.start_of(bench.pipeline.key, bench.request)
    before = processes.snapshot()
    bench.before = frozenset(multiprocessing.active_children())
    dog = bench.watchdog()
    caught: list[warnings.WarningMessage] = []
    with bench.tap.during(), _recorded(caught), seeded(bench.request.seed):
        try:
            with dog.watching():
                _guarded(bench, lambda: _epochs(bench, context, dog))
        except RunInterrupted:
            bench.outcome = HUNG
        _close(bench)
        gc.collect()
    return _content_facts(bench, dog, before, caught)


def _guarded(bench: _Bench, body: Callable[[], None]) -> None:
    try:
        body()
    except (Exception, SystemExit) as error:
        bench.outcome = RAISED
        bench.error = errors.from_exception(error, bench.stage)
        # the frames hold the iterator, and the iterator holds the workers
        error.__traceback__ = None
        error.__context__ = error.__cause__ = None


def _epochs(bench: _Bench, context: Any, dog: Watchdog) -> None:
    config = bench.request.config
    keep = config.has_workers or bench.pipeline.rebuilds
    built = bench.pipeline.build(config, context, keep=keep)
    loader = built.loader
    bench.notes += built.notes
    bench.fresh = built.fresh
    bench.observer.modules[bench.pipeline.key] = modules_of(loader)
    bench.in_order = getattr(loader, "in_order", True)
    bench.expected = _length(loader)
    if config.has_workers and bench.start == "true" and config.start_method != "fork":
        bench.travel = pickling.weigh({"dataset": loader.dataset, "loader": _riders(loader)}, context)
    inner = loader.collate_fn
    batched = loader.batch_sampler is not None
    loader.worker_init_fn = worker.StartNote(
        loader.worker_init_fn, bench.journal, str(bench.tap.path)
    )
    loader.collate_fn = worker.CollateNote(inner, bench.journal, batched=batched)
    bench.stage = "start"
    record = EpochRecord(epoch=0)
    bench.records.append(record)

    def started() -> None:
        bench.processes = processes.new_children(bench.before)
        bench.stage = "iterate"

    def taken(count: int) -> None:
        if count == bench.expected or count & (count - 1) == 0:
            _sample_memory(bench)

    try:
        drive(loader, record, beat=dog.beat, started=started, taken=taken)
    except Exception:
        if bench.stage == "start":
            _say_what_does_not_travel(bench, loader, inner, context)
        raise
    bench.stage = "close"


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


def _say_what_does_not_travel(bench: _Bench, loader: Any, collate: Any, context: Any) -> None:
    init = loader.worker_init_fn.inner
    riders = {"collate_fn": collate} | ({"worker_init_fn": init} if init is not None else {})
    bench.unpicklable = pickling.find_unpicklable(
        {"dataset": loader.dataset, "loader": riders}, context
    )


def _sample_memory(bench: _Bench) -> None:
    for process in bench.processes:
        seen = processes.memory_of(process.pid or 0)
        if process.pid and seen:
            bench.memory[process.pid] = seen
            bench.peak[process.pid] = max(bench.peak.get(process.pid, 0), seen.resident)


def _close(bench: _Bench) -> None:
    """Wait for the workers to end, as the last reference to the loader is gone; end the rest."""
    began = clock.now()
    gc.collect()
    processes._join(bench.processes, _JOIN_S)
    bench.close_s = clock.now() - began
    processes.end(bench.processes + processes.new_children(bench.before))


def _content_facts(
    bench: _Bench,
    dog: Watchdog,
    before: processes.Snapshot,
    caught: list[warnings.WarningMessage],
) -> RunFacts:
    told = bench.told
    workers = _workers(bench, told)
    stderr = bench.stacks_text if dog.fired else bench.tap.text()
    outcome, reason, error = _outcome(bench, dog, workers, stderr)
    waits = [n["at"] for n in told if n["kind"] == "start"]
    record = bench.records[0] if bench.records else None
    counted = sum(n["samples"] for n in told if n["kind"] == "batch")
    epochs: tuple[EpochFacts, ...] = ()
    if record is not None and record.batches:
        epochs = (record.facts(counted),)
    elif record is not None:
        epochs = (record.facts(0),)
    known = [p.pid for p in bench.processes if p.pid] + [bench.observer.starter.server_pid or 0]
    travel = bench.travel
    return RunFacts(
        request=bench.request,
        start=bench.start,
        outcome=outcome,
        reason=reason,
        error=error,
        epochs=epochs,
        workers=workers,
        startup_s=record.arrivals[0] if record is not None and record.batches else None,
        all_workers_s=_all_delivered(workers) if waits else None,
        close_s=bench.close_s,
        expected_batches=bench.expected,
        travel_bytes=travel.bytes if travel else None,
        heaviest=travel.heaviest if travel else (),
        unpicklable=bench.unpicklable,
        warnings=tuple(f"{w.category.__name__}: {w.message}" for w in caught),
        stderr_tail=stderr[-8000:],
        stuck=_stuck(dog, stderr),
        left_behind=processes.left_since(before, known),
        notes=tuple(bench.notes) + (() if bench.fresh else ("the dataset is not built afresh",)),
        in_order=bench.in_order,
    )


def _workers(bench: _Bench, told: list[dict[str, Any]]) -> tuple[WorkerFacts, ...]:
    began = bench.records[0].began if bench.records else 0.0
    facts = []
    for process in bench.processes:
        pid = process.pid or 0
        starts = [n for n in told if n["pid"] == pid and n["kind"] == "start"]
        made = [n for n in told if n["pid"] == pid and n["kind"] == "batch"]
        memory = bench.memory.get(pid)
        facts.append(
            WorkerFacts(
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
        )
    return tuple(facts)


def _all_delivered(workers: tuple[WorkerFacts, ...]) -> float | None:
    firsts = [w.first_batch_s for w in workers]
    known = [first for first in firsts if first is not None]
    return max(known) if known and len(known) == len(firsts) else None


def _outcome(
    bench: _Bench, dog: Watchdog, workers: tuple[WorkerFacts, ...], stderr: str
) -> tuple[str, str | None, ErrorFacts | None]:
    """The outcome in the order of certainty: a hang that we ended, a death, an exception."""
    told = errors.from_text(stderr, _stage_in_worker(stderr))
    if dog.fired:
        lost = lost_batch(stderr)
        if lost:
            return HUNG, "a batch could not be sent", errors.from_text(lost, "send")
        return HUNG, f"no batch for {dog.timeout_s:g} s", None
    if bench.error is None:
        return bench.outcome, None, None
    message = bench.error.message
    if bench.stage != "build" and _somebody_died(bench, workers, message):
        return DIED, _manner_of_death(workers, message), told or bench.error
    return RAISED, f"{bench.error.type}: {message}", bench.error


def _somebody_died(bench: _Bench, workers: tuple[WorkerFacts, ...], message: str) -> bool:
    if any(words in message for words in _DEATH_WORDS):
        return True
    if bench.error is None or bench.error.type not in ("ConnectionResetError", "EOFError", "BrokenPipeError"):
        return False
    return any(w.exit_code not in (0, None, -signal.SIGTERM) for w in workers)


def _manner_of_death(workers: tuple[WorkerFacts, ...], message: str) -> str:
    codes = [w.exit_code for w in workers if w.exit_code not in (0, None, -signal.SIGTERM)]
    if not codes:
        return "a worker ended without a word" if "exited" in message else message
    code = codes[0]
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"a worker was ended by {signal.Signals(-code).name} (signal {-code})"
    return f"a worker ended with exit code {code}"


def _stage_in_worker(stderr: str) -> str:
    if "pickle.load(from_parent)" in stderr:
        return "unpickle"
    if "in prepare" in stderr and "_fixup_main" in stderr:
        return "import"
    return "worker"


def _stuck(dog: Watchdog, stderr: str) -> str:
    if not dog.fired:
        return ""
    start = stderr.find("Thread 0x")
    current = stderr.find("Current thread 0x")
    places = [place for place in (start, current) if place >= 0]
    workers = stderr[min(places) :][:6000] if places else ""
    return f"{workers}\n--- parent ---\n{dog.parent_stack[-3000:]}" if workers else dog.parent_stack


@contextlib.contextmanager
def _recorded(caught: list[warnings.WarningMessage]) -> Iterator[None]:
    """Record the warnings of a run, then issue them again for whoever listens.

    Our watchdog is a thread; that alone makes Python 3.12 warn of every fork, so that warning
    is kept out.
    """
    with warnings.catch_warnings(record=True) as recorded:
        warnings.filterwarnings("ignore", message=_FORK_WARNING, category=DeprecationWarning)
        try:
            yield
        finally:
            caught += recorded
    for one in caught:
        warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed ``random``, ``numpy.random`` and ``torch`` for the body; give back their states after."""
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


# Timed passes --------------------------------------------------------------------------------


def _timed(bench: _Bench) -> RunFacts:
    """A pass with nothing but the clock, alone on the machine."""
    context, bench.start = bench.observer.start_of(bench.pipeline.key, bench.request)
    bench.before = frozenset(multiprocessing.active_children())
    dog = bench.watchdog()
    found: list[Any] = []

    def body() -> None:
        keep = bench.request.config.has_workers or bench.pipeline.rebuilds
        loader = bench.pipeline.build(bench.request.config, context, keep=keep).loader
        bench.stage = "iterate"
        found.append(rate.measure(loader, bench.request.seconds, clock.now, dog.beat))

    caught: list[warnings.WarningMessage] = []
    reason = None
    with bench.tap.during(), _recorded(caught), seeded(bench.request.seed):
        try:
            with rate.alone_on_this_machine(), dog.watching():
                _guarded(bench, body)
        except RunInterrupted:
            bench.outcome = HUNG
        gc.collect()
        bench.processes = processes.new_children(bench.before)
        _close(bench)
    if not found:
        reason = "the timed pass hung" if dog.fired else _no_rate(bench)
    return RunFacts(
        request=bench.request,
        start=bench.start,
        outcome=HUNG if dog.fired else bench.outcome,
        error=bench.error,
        rate=found[0] if found else None,
        no_rate_reason=reason,
    )


def _no_rate(bench: _Bench) -> str:
    if bench.error is None:
        return "the timed pass was interrupted"
    if bench.error.type == rate.NoRate.__name__:
        return bench.error.message
    return f"the timed pass raised {bench.error.type}: {bench.error.message}"


# Scripts and imports -------------------------------------------------------------------------


def _script(bench: _Bench) -> RunFacts:
    """A user's script, run as ``__main__``."""
    began = clock.now()

    def tick() -> None:
        bench.observer._progress(
            f"{bench.pipeline.id} {bench.request.config.id}: {clock.now() - began:.0f} s"
        )

    return run_script(
        bench.request,
        bench.observer.starter,
        folder=bench.observer.folder,
        timeout_s=bench.observer.timeout_s,
        tick=tick,
    )


def _imports(bench: _Bench) -> RunFacts:
    """What importing the modules that a worker imports does, in a fresh process."""
    modules = bench.observer.modules.get(bench.pipeline.key, ())
    context = bench.observer.starter.fresh_process()
    process = context.Process(
        target=worker.probe_imports,
        args=(modules, bench.journal.path, str(bench.tap.path)),
        name="import-probe",
    )
    with bench.tap.during():
        process.start()
        process.join(bench.observer.timeout_s)
        hung = process.is_alive()
        with contextlib.suppress(ProcessLookupError):
            _end_with_children(process)
        stderr = bench.tap.text()
    found = tuple(_import_facts(note) for note in bench.told if note["kind"] == "import")
    reason = f"importing takes longer than {bench.observer.timeout_s:g} s" if hung else None
    return RunFacts(
        request=bench.request,
        start=IN_PROCESS,
        outcome=HUNG if hung else OK,
        reason=reason,
        imports=found,
        stderr_tail=stderr[-8000:],
        error=errors.from_text(stderr, "import"),
    )


def _end_with_children(process: Any) -> None:
    import psutil

    roots = set()
    with contextlib.suppress(psutil.Error):
        roots = processes.children_of(process.pid)
    processes.end([process])
    processes.end_trees(roots)


def _import_facts(note: dict[str, Any]) -> ImportFacts:
    error = None
    if note["error"]:
        error = errors.from_text("".join(note["error"]), "import")
    return ImportFacts(note["module"], note["seconds"], tuple(note["starts"]), error)


def modules_of(loader: Any) -> tuple[str, ...]:
    """The user's modules that a worker must import to unpickle what travels to it."""
    found: dict[str, None] = {}
    values = [loader.dataset, loader.collate_fn, loader.worker_init_fn]
    values += [getattr(loader.dataset, name, None) for name in ("dataset", "transform")]
    for value in values:
        kind = value if hasattr(value, "__module__") else type(value)
        name = getattr(kind, "__module__", None) or ""
        file = getattr(sys.modules.get(name), "__file__", None)
        if name != "__main__" and file and errors.belongs_to_user(os.fspath(file)):
            found[name] = None
    return tuple(found)
