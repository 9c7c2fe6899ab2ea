"""Runs each thing once for all the checks that ask for it, and keeps the facts."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import util
from pathlib import Path
from typing import Any

from pytest_dataloader.matrix import LoaderConfig
from pytest_dataloader.observe import clock, ranks, worker
from pytest_dataloader.observe.bench import Bench, Tools
from pytest_dataloader.observe.content import run_content
from pytest_dataloader.observe.facts import (
    CONTENT,
    GROWTH,
    IMPORT,
    LEAKS,
    PERTURBED,
    REITERATE,
    RESUME,
    SCRIPT,
    TIMED,
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
        self.modules: dict[Any, tuple[str, ...]] = {}
        # The pipelines for which arguments were recommended.
        self.tuned: set[Any] = set()
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
        try:
            with _job_of(pipeline, request):
                facts = _RUNNERS[request.purpose](Bench(self._tools(), pipeline, request, journal))
        finally:
            journal.close()
            Path(journal.path).unlink(missing_ok=True)
            self._progress("")
        return replace(facts, duration_s=clock.now() - began)

    def _tools(self) -> Tools:
        return Tools(
            starter=self.starter,
            tap=self._tap,
            folder=self.folder,
            timeout_s=self.timeout_s,
            progress=self._progress,
            start_of=self.start_of,
            modules=self.modules,
        )

    def started_already(self, pipeline_key: Any, config: LoaderConfig) -> None:
        """Let the runs of a configuration be warm starts from the first on."""
        self._truly_started.add((pipeline_key, config))

    def start_of(self, pipeline_key: Any, request: RunRequest) -> tuple[Any, str]:
        """The context for a run: a true start the first time, a warm one for repeats."""
        key = (pipeline_key, request.config)
        repeat = key in self._truly_started or request.purpose in _REPEATS
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
