"""Runs each thing once for all the checks that ask for it, and keeps the facts."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_dataloader.matrix import LoaderConfig
from pytest_dataloader.observe import clock, worker
from pytest_dataloader.observe.bench import Bench, Tools
from pytest_dataloader.observe.content import run_content
from pytest_dataloader.observe.facts import CONTENT, IMPORT, SCRIPT, TIMED, RunFacts, RunRequest
from pytest_dataloader.observe.imports import run_imports
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
        try:
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

    def start_of(self, pipeline_key: Any, request: RunRequest) -> tuple[Any, str]:
        """The context for a run: a true start the first time, a warm one for repeats."""
        key = (pipeline_key, request.config)
        repeat = key in self._truly_started or request.purpose == TIMED
        if request.purpose == CONTENT:
            self._truly_started.add(key)
        return self.starter.context(request.config.start_method, repeat=repeat)


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


_RUNNERS = {CONTENT: run_content, TIMED: run_timed, SCRIPT: _run_script, IMPORT: run_imports}
