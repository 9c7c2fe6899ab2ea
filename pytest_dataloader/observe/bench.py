"""One run's bench: the tools that the run works with, and what it has noted so far."""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from pytest_dataloader.diagnose import pickling
from pytest_dataloader.observe import clock, errors, probes, processes, shared, worker
from pytest_dataloader.observe.epoch import EpochRecord
from pytest_dataloader.observe.facts import (
    IN_PROCESS,
    OK,
    RAISED,
    TRUE_START,
    DatasetFacts,
    DifferenceFacts,
    ErrorFacts,
    FieldFacts,
    RunRequest,
    SourceFacts,
    StorageFacts,
    ThreadFacts,
)
from pytest_dataloader.observe.starting import Starter
from pytest_dataloader.observe.stderr import StderrTap
from pytest_dataloader.observe.surroundings import children_may_die
from pytest_dataloader.observe.watchdog import RunInterrupted, Watchdog, ask_for_stacks

_JOIN_S = 6.0


@dataclass(frozen=True)
class Tools:
    """What all runs of one observer share."""

    starter: Starter
    tap: StderrTap
    folder: Path
    timeout_s: float
    progress: Callable[[str], None]
    start_of: Callable[[Any, RunRequest], tuple[Any, str]]
    shares_a_start: Callable[[Any, RunRequest], bool]
    # The modules that a pipeline's workers import, by pipeline key; filled by content passes.
    modules: dict[Any, tuple[str, ...]]


@dataclass
class Bench:
    """One run's tools and what it has noted so far."""

    tools: Tools
    pipeline: Any
    request: RunRequest
    journal: worker.Journal
    stage: str = "build"
    start: str = IN_PROCESS
    # Whether its workers are the pipeline's first new interpreters of this configuration.
    afresh: bool = False
    error: ErrorFacts | None = None
    outcome: str = OK
    # Processes that are no workers of this run: of before, and those that the user's code starts.
    before: frozenset[BaseProcess] = frozenset()
    # Whether workers may be on their way that `take_workers` has not noted.
    starting: bool = True
    workers_started: list[BaseProcess] = field(default_factory=list)
    # The temporary files by which torch asks for descriptors.
    probes: set[str] = field(default_factory=set)
    # Those of epochs that are over, where each epoch starts its own.
    workers_of_before: frozenset[BaseProcess] = frozenset()
    memory: dict[int, processes.Memory] = field(default_factory=dict)
    peak: dict[int, int] = field(default_factory=dict)
    first_unique: dict[int, int] = field(default_factory=dict)
    many_objects: tuple[tuple[str, str, int, int], ...] = ()
    notes: list[str] = field(default_factory=list)
    records: list[EpochRecord] = field(default_factory=list)
    stacks_text: str = ""
    dead_before: frozenset[int] = frozenset()
    close_s: float | None = None
    # When the last epoch had come: persistent workers end as the loader is let go, before `close`.
    ended_at: float | None = None
    unpicklable: tuple[Any, ...] = ()
    expected: int | None = None
    in_order: bool = True
    order: str = "loader.sampler"
    fresh: bool = True
    travel: pickling.Travel | None = None
    # What this process held when the workers were started; empty where nobody compares.
    world: dict[str, list[str]] = field(default_factory=dict)
    names_used: dict[str, int] = field(default_factory=dict)
    dataset: DatasetFacts | None = None
    held_before: dict[str, list[str]] = field(default_factory=dict)
    drifted: tuple[DifferenceFacts, ...] = ()
    changed: tuple[DifferenceFacts, ...] = ()
    epoch_fields: tuple[str, ...] = ()
    built: tuple[FieldFacts, ...] = ()
    sources: tuple[SourceFacts, ...] = ()
    pickle_s: float | None = None
    pickle_bytes: int | None = None
    held_locks: tuple[str, ...] = ()
    threads: tuple[str, ...] = ()
    live_threads: tuple[ThreadFacts, ...] = ()
    # Where the data lies that the dataset names, and what a batch takes of shared memory.
    storage: tuple[StorageFacts, ...] = ()
    batch_bytes: int | None = None
    prefetch_factor: int | None = None
    # The exception that could not be sent, made again in this process.
    unsent: ErrorFacts | None = None
    unpinnable: tuple[tuple[str, str, str], ...] = ()

    @property
    def told(self) -> list[dict[str, Any]]:
        """What the workers have noted in the journal."""
        return worker.read_journal(self.journal.path)

    @property
    def working(self) -> list[BaseProcess]:
        """The workers of the epoch that goes on, dead or alive."""
        return [p for p in self._started() if p not in self.workers_of_before]

    def _started(self) -> list[BaseProcess]:
        may_be_more = self.starting and self.request.config.has_workers
        more = processes.new_children(self.before) if may_be_more else []
        return list(dict.fromkeys([*self.workers_started, *more]))

    def take_workers(self, iterator: Any) -> None:
        """Note the workers of a loader's iterator; what else has been started is the user's."""
        new = processes.new_children(self.before)
        own = getattr(iterator, "_workers", None)
        if self.request.config.has_workers and own:
            new = [process for process in own if isinstance(process, BaseProcess)]
        self.workers_started += [p for p in new if p not in self.workers_started]
        self.starting = False

    def choose_start(self) -> Any:
        """Note the kind of start; the context for it."""
        shares = self.tools.shares_a_start(self.pipeline.key, self.request)
        context, self.start = self.tools.start_of(self.pipeline.key, self.request)
        new = self.request.config.start_method not in (None, "fork")
        self.afresh = new and (shares or self.start == TRUE_START)
        return context

    def build(self, context: Any) -> Any:
        """The pipeline built for this run, as `Pipeline.build` gives it."""
        config = self.request.config
        keep = config.has_workers or self.pipeline.rebuilds
        built = self.pipeline.build(config, context, keep=keep)
        children = frozenset(multiprocessing.active_children())
        self.before |= children - frozenset(self.workers_started)
        return built

    def guarded(self, body: Callable[[], None]) -> None:
        """Call the body; what it raises is an outcome."""
        try:
            self._guarded(body)
        except RuntimeError as late:  # of torch's handler, while another was written down
            self._write_down(late)

    def _guarded(self, body: Callable[[], None]) -> None:
        try:
            with probes.noted(self.probes):
                body()
        except BaseException as error:
            if _is_for_others(error):
                self._abandon()
                raise
            self._write_down(error)

    def _abandon(self) -> None:
        """End the workers now: the exception's frames hold the loader's iterator, and that waits
        five seconds for each worker in turn when they are let go."""
        with children_may_die():
            self._end_all()

    def _end_all(self) -> None:
        """End every worker of this run, and remove what it left in shared memory."""
        ours = self._started()
        processes.end(ours)
        shared.remove_left_by([process.pid or 0 for process in ours])

    def _write_down(self, error: BaseException) -> None:
        with children_may_die():
            self.outcome = RAISED
            self.error = errors.from_exception(error, self.stage)
        # the frames hold the iterator, and the iterator holds the workers
        error.__traceback__ = None
        error.__context__ = error.__cause__ = None

    def close(self) -> None:
        """Wait for the workers to end, now that nothing holds the loader; end the rest."""
        began = self.ended_at if self.ended_at is not None else clock.now()
        with children_may_die():
            gc.collect()
            probes.remove(self.probes)
            processes.join(self.workers_started, _JOIN_S)
            self.close_s = clock.now() - began
            self._end_all()

    def watchdog(self) -> Watchdog:
        """A watchdog that ends this run's workers, and says how the run goes."""
        began = clock.now()

        def tick() -> None:
            self._say_progress(clock.now() - began)

        return Watchdog(self.tools.timeout_s, self.end_workers, lost=self.batch_lost, tick=tick)

    def _say_progress(self, waited_s: float) -> None:
        if waited_s < 1.0:
            return
        done = sum(record.batches for record in self.records)
        name = f"{self.pipeline.id} {self.request.config.id}"
        self.tools.progress(f"{name}: {self.stage}, {done} batches, {waited_s:.0f} s")

    def batch_lost(self) -> bool:
        """Whether a worker has said on standard error that a batch could not be sent."""
        return lost_batch(self.tools.tap.text()) is not None

    def end_workers(self) -> None:
        """Ask the stuck workers where they stand, then end them."""
        ready = {n["pid"] for n in self.told if n["kind"] == "start" and n["stacks"]}
        ours = self.working
        alive = [process for process in ours if process.is_alive()]
        self.dead_before = frozenset(process.pid or 0 for process in ours if process not in alive)
        pids = [process.pid for process in alive if process.pid is not None]
        ask_for_stacks([pid for pid in pids if pid in ready], worker.STACK_SIGNAL)
        time.sleep(0.3 if ready else 0)
        self.stacks_text = self.tools.tap.text()
        processes.end(alive)


def _is_for_others(error: BaseException) -> bool:
    """Whether an exception is meant for whoever runs us: an interrupt, or pytest's own outcomes."""
    if isinstance(error, (KeyboardInterrupt, GeneratorExit, RunInterrupted)):
        return True
    # pytest gives its outcomes the module "builtins"; the class that they derive from tells.
    kinds = type(error).__mro__
    return any(kind.__module__.partition(".")[0] in ("pytest", "_pytest") for kind in kinds)


def lost_batch(text: str) -> str | None:
    """The traceback of a queue's feeder thread that could not pickle a batch, if there is one."""
    header = "Traceback (most recent call last):"
    parts = text.split(header)
    for index, part in enumerate(parts[1:], start=1):
        if ", in _feed" in part and "queues.py" in part:
            told = header + part
            # another worker's lines may stand between this header and its exception
            return told if errors.from_text(told, "send") else header + header.join(parts[index:])
    return None
