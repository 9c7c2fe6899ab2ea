"""Judges a pipeline under randomly drawn configurations, down to the smallest one that fails."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_dataloader.checks.asked import Asked, Complete, Deterministic, Fuzz, Runs, Seeding
from pytest_dataloader.checks.evidence import Question
from pytest_dataloader.checks.finding import ERROR, Finding
from pytest_dataloader.judge import Verdict, judge
from pytest_dataloader.matrix import LoaderConfig
from pytest_dataloader.observe import clock
from pytest_dataloader.observe.observer import Observer
from pytest_dataloader.pipeline import Pipeline

_MAX_WORKERS = 3
_MAX_SEED = 99
_LONG_S = 10.0


class _Fails(Exception):
    """A drawn configuration has findings of severity error."""


@dataclass
class _Draws:
    """Judges what is drawn, each configuration and seed once."""

    pipeline: Pipeline
    question: Question
    observer: Observer
    counts: Callable[[str], bool]
    verdicts: dict[tuple[LoaderConfig, int], Verdict] = field(default_factory=dict)
    no_more: bool = False

    def judge(self, config: LoaderConfig, seed: int) -> None:
        """Raise `_Fails` where the pipeline has errors under a configuration and a seed."""
        if (config, seed) not in self.verdicts:
            if self.no_more:
                return
            began = clock.now()
            self.verdicts[config, seed] = self._judged(config, seed)
            self.no_more = bool(self.errors(config, seed)) and clock.now() - began > _LONG_S
        if self.errors(config, seed):
            raise _Fails

    def _judged(self, config: LoaderConfig, seed: int) -> Verdict:
        matrix = tuple(dict.fromkeys((config.without_workers(), self.question.config, config)))
        question = Question(config, matrix, (seed, seed + 1))
        asked: Sequence[Asked] = (Runs(), Deterministic(seeds=(seed,)), Seeding(), Complete())
        self.observer.started_already(self.pipeline.key, config)
        with warnings.catch_warnings():
            # That there are more workers than CPUs is of our drawing.
            warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
            return judge(
                self.pipeline, question, asked, self.observer, counts=self.counts, timed=False
            )

    def errors(self, config: LoaderConfig, seed: int) -> list[Finding]:
        """The errors of what was judged."""
        return [f for f in self.verdicts[config, seed].findings if f.severity == ERROR]


def fuzzed(
    pipeline: Pipeline,
    question: Question,
    asked: Fuzz,
    observer: Observer,
    *,
    counts: Callable[[str], bool] = lambda _code: True,
) -> tuple[Finding, ...]:
    """The errors of the smallest configuration that fails, of ``asked.max_examples`` drawn ones.

    Drawn are the number of workers (1 to 3), persistent workers, the prefetch factor and the
    seed, under the start method of the question; without workers the seed alone. Asked is that
    runs end, that they are deterministic, and that samples are random and complete. Of a failure
    that takes long, such as a hang, no smaller one is looked for.
    """
    draws = _Draws(pipeline, question, observer, counts)
    smallest = _smallest(draws, asked.max_examples)
    if smallest is None:
        return ()
    config, seed = smallest
    drawn = len(draws.verdicts)
    words = f"; the smallest configuration that fails of {drawn} drawn: {config.id}, seed {seed}"
    return tuple(
        replace(finding, message=finding.message + words) for finding in draws.errors(config, seed)
    )


def _smallest(draws: _Draws, max_examples: int) -> tuple[LoaderConfig, int] | None:
    """Draw and shrink with Hypothesis; None where nothing fails."""
    from hypothesis import HealthCheck, Phase, Verbosity, given, settings, strategies as st

    failed: list[tuple[LoaderConfig, int]] = []

    @settings(
        max_examples=max_examples,
        database=None,
        deadline=None,
        derandomize=True,
        verbosity=Verbosity.quiet,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(config=_configs(draws.question.config), seed=st.integers(0, _MAX_SEED))
    def once(config: LoaderConfig, seed: int) -> None:
        try:
            draws.judge(config, seed)
        except _Fails:
            failed.append((config, seed))
            raise

    try:
        once()
    except _Fails:
        return failed[-1]
    return None


def _configs(config: LoaderConfig) -> Any:
    """Configurations under one start method; they shrink towards one worker and no arguments."""
    from hypothesis import strategies as st

    from pytest_dataloader.strategies import loader_configs

    if not config.has_workers or config.start_method is None:
        return st.just(config)
    drawn = loader_configs(start_methods=(config.start_method,), max_workers=_MAX_WORKERS)
    return drawn.filter(lambda one: one.has_workers)
