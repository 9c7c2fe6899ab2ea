"""Runs each thing once for all the checks that ask for it, and keeps the facts."""

from __future__ import annotations

import contextlib
import multiprocessing
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import util
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from pytest_dataloader.matrix import LoaderConfig
from pytest_dataloader.observe import clock, processes, ranks, worker
from pytest_dataloader.observe.bench import Bench, Tools
from pytest_dataloader.observe.content import run_content
from pytest_dataloader.observe.facts import (
    CONTENT,
    GROWTH,
    HUNG,
    IMPORT,
    LEAKS,
    PERTURBED,
    REITERATE,
    RESUME,
    SCRIPT,
    TIMED,
    TRUE_START,
    RunFacts,
    RunRequest,
)
from pytest_dataloader.observe.growth import run_growth
from pytest_dataloader.observe.imports import run_imports
from pytest_dataloader.observe.leaks import run_leaks
from pytest_dataloader.observe.perturbed import run_perturbed
from pytest_dataloader.observe.reiterate import run_reiterate
from pytest_dataloader.observe.resume import run_resume
from pytest_dataloader.observe.script import run_script
from pytest_dataloader.observe.starting import Starter
from pytest_dataloader.observe.stderr import StderrTap
from pytest_dataloader.observe.timed import run_timed
from pytest_dataloader.pipeline import Pipeline, Script


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
        # Workers then make no temporary folders of their own, which one that is killed would leave.
        util.get_temp_dir()
        self.folder = Path(tempfile.mkdtemp(prefix="pytest-dataloader-"))
        self.starter = Starter(true_starts=true_starts)
        self._tap = StderrTap(self.folder / "stderr")
        self._progress = progress or (lambda _text: None)
        self._facts: dict[tuple[Any, RunRequest], RunFacts] = {}
        self._truly_started: set[tuple[Any, LoaderConfig]] = set()
        # The sets of modules that a sound true start of a configuration has imported.
        self._imported: dict[LoaderConfig, list[frozenset[str]]] = {}
        # Pipelines whose first run began warm, because of those, and that run.
        self._sharing: dict[tuple[Any, LoaderConfig], RunRequest] = {}
        self._must_start_truly: set[tuple[Any, LoaderConfig]] = set()
        self.modules: dict[Any, tuple[str, ...]] = {}
        # The pipelines for which arguments were recommended.
        self.tuned: set[Any] = set()
        self._runs = 0
        # Processes that the user's own code has started in this one during our runs.
        self._strays: set[BaseProcess] = set()

    def close(self) -> None:
        """End the warm server, and what the user's code has started in our runs and not ended;
        remove the observer's own files."""
        processes.end(self._strays)
        self.starter.close()
        self._tap.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def observe(
        self, pipeline: Pipeline | Script, request: RunRequest, *, at_most_s: float | None = None
    ) -> RunFacts:
        """The facts of a request, from an earlier run if there was one.

        With ``at_most_s`` a run that gives no batch for so long, if that is less than the timeout,
        is taken to hang; those facts are not kept.
        """
        key = (pipeline.key, request)
        if key not in self._facts:
            if at_most_s is not None and at_most_s < self.timeout_s:
                return self._in_time(pipeline, request, at_most_s)
            shares = self.shares_a_start(pipeline.key, request)
            facts = self._run(pipeline, request)
            if shares and not facts.ok:  # a fault is told from a start that has nothing of ours
                self.start_truly(pipeline.key, request.config)
                facts = self._run(pipeline, request)
            self._facts[key] = facts
        return self._facts[key]

    def _in_time(
        self, pipeline: Pipeline | Script, request: RunRequest, at_most_s: float
    ) -> RunFacts:
        usual, self.timeout_s = self.timeout_s, at_most_s
        try:
            facts = self._run(pipeline, request)
        finally:
            self.timeout_s = usual
        if facts.outcome != HUNG:
            self._facts[pipeline.key, request] = facts
        return facts

    def _run(self, pipeline: Pipeline | Script, request: RunRequest) -> RunFacts:
        self._runs += 1
        journal = worker.Journal(str(self.folder / f"run-{self._runs}"))
        began, before = clock.now(), set(multiprocessing.active_children())
        try:
            with _job_of(pipeline, request):
                facts = _RUNNERS[request.purpose](Bench(self._tools(), pipeline, request, journal))
        finally:
            journal.close()
            Path(journal.path).unlink(missing_ok=True)
            self._strays |= set(multiprocessing.active_children()) - before
            self._progress("")
        if facts.ok and facts.start == TRUE_START and request.purpose == CONTENT:
            modules = frozenset(self.modules.get(pipeline.key, ()))
            self._imported.setdefault(request.config, []).append(modules)
        return replace(facts, duration_s=clock.now() - began)

    def _tools(self) -> Tools:
        return Tools(
            starter=self.starter,
            tap=self._tap,
            folder=self.folder,
            timeout_s=self.timeout_s,
            progress=self._progress,
            start_of=self.start_of,
            shares_a_start=self.shares_a_start,
            modules=self.modules,
        )

    def started_already(self, pipeline_key: Any, config: LoaderConfig) -> None:
        """Let the runs of a configuration be warm starts from the first on."""
        self._truly_started.add((pipeline_key, config))

    def start_truly(self, pipeline_key: Any, config: LoaderConfig) -> None:
        """Let a configuration have a true start of its own, even if its first run had none."""
        key = (pipeline_key, config)
        self._must_start_truly.add(key)
        if key in self._sharing:
            self._facts.pop((pipeline_key, self._sharing.pop(key)), None)
            self._truly_started.discard(key)

    def shares_a_start(self, pipeline_key: Any, request: RunRequest) -> bool:
        """Whether a first run begins warm, because a true start of the same configuration has
        imported the same modules, of another pipeline."""
        key = (pipeline_key, request.config)
        if request.purpose != CONTENT or key in self._truly_started | self._must_start_truly:
            return False
        mine = self.modules.get(pipeline_key)
        known = self._imported.get(request.config, ())
        return mine is not None and any(modules.issuperset(mine) for modules in known)

    def start_of(self, pipeline_key: Any, request: RunRequest) -> tuple[Any, str]:
        """The context for a run: a true start the first time, a warm one for repeats."""
        key = (pipeline_key, request.config)
        repeat = key in self._truly_started or request.purpose in _REPEATS
        if self.shares_a_start(pipeline_key, request):
            self._sharing[key], repeat = request, True
        if request.purpose == TIMED and request.epochs > 1:
            repeat = False  # such a pass is about the starts themselves
        if request.purpose == CONTENT:
            self._truly_started.add(key)
        return self.starter.context(request.config.start_method, repeat=repeat)


def _job_of(
    pipeline: Pipeline | Script, request: RunRequest
) -> contextlib.AbstractContextManager[None]:
    """A job of one rank around the run of a pipeline that needs a job, if it is no rank already."""
    alone = isinstance(pipeline, Pipeline) and pipeline.in_a_job and request.rank is None
    return ranks.as_rank(0, 1) if alone else contextlib.nullcontext()


def _run_script(bench: Bench) -> RunFacts:
    """A user's script, run as ``__main__``."""
    tools, began = bench.tools, clock.now()
    name = f"{bench.pipeline.id} {bench.request.config.id}"
    return run_script(
        bench.request,
        tools.starter,
        folder=tools.folder,
        timeout_s=tools.timeout_s,
        tick=lambda: tools.progress(f"{name}: {clock.now() - began:.0f} s"),
    )


#: Passes that follow others and need no true start.
_REPEATS = (TIMED, LEAKS, GROWTH, RESUME, REITERATE)

_RUNNERS = {
    CONTENT: run_content,
    TIMED: run_timed,
    SCRIPT: _run_script,
    IMPORT: run_imports,
    PERTURBED: run_perturbed,
    LEAKS: run_leaks,
    GROWTH: run_growth,
    RESUME: run_resume,
    REITERATE: run_reiterate,
}
