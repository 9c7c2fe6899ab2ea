"""Advice that was measured: a sweep over a loader's arguments, and what it is worth."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pytest_dataloader.checks.numbers import readable
from pytest_dataloader.diagnose import machine
from pytest_dataloader.matrix import (
    LoaderConfig,
    available_start_methods,
    default_start_method,
    expand_start_methods,
    lacking,
)
from pytest_dataloader.observe import clock
from pytest_dataloader.observe.facts import TIMED, WARM_START, RateFacts, RunFacts, RunRequest

if TYPE_CHECKING:
    from pytest_dataloader.observe.observer import Observer
    from pytest_dataloader.pipeline import Pipeline

PASS_S = 1.0
BUDGET_S = 60.0
_WORTH_IT = 1.05
_MISSES = 2
_PREFETCH = (4, 8)
_MOST_WAITING = 0.6
_WAITING_A_CPU = 4
_MOST_GUESSED = 16
_MEMORY_A_WORKER = 2**30
_FEW = {machine.ROTATING: 2, machine.NETWORK: 4, machine.OBJECTS: 4, machine.WINDOWS_DRIVE: 4}
_RESTART_S = 0.05
_RESTART_SHARE = 0.5
_TORCH_WARNS = "This DataLoader will create"
_BAR = 24


# Without measuring ---------------------------------------------------------------------------


def recommended_num_workers(path: str | os.PathLike[str] | None = None) -> int:
    """A number of workers to start with, from facts of this machine: nothing is measured.

    It is one worker for each CPU that this process may use but one for the training loop, fewer
    where there is little memory or where the data at ``path`` lies on a rotating disk or behind a
    server. `recommend` measures.
    """
    found = machine.facts()
    allowed = found.cpus_allowed or 1
    limits = [allowed if allowed <= 2 else allowed - 1, _MOST_GUESSED]
    sizes = [s for s in (found.memory_bytes, found.memory_limit_bytes) if s is not None]
    if sizes:
        limits.append(min(sizes) // _MEMORY_A_WORKER)
    if path is not None:
        limits.append(_FEW.get(machine.place_of(path).category, _MOST_GUESSED))
    return max(1, min(limits))


# What a sweep finds --------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """One configuration's rate, or why there is none."""

    config: LoaderConfig
    rate: RateFacts | None
    reason: str | None = None


@dataclass(frozen=True)
class Recommendation:
    """The arguments that were measured to be worth it, the curve, and why."""

    config: LoaderConfig
    curve: tuple[Measured, ...]
    why: tuple[str, ...]
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def code(self) -> str:
        """The arguments as code to paste."""
        given = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"DataLoader(dataset, ..., {given})"

    def lines(self) -> Iterator[str]:
        """The curve as a table with a small chart, the code to paste, and why."""
        yield from _table(self.curve)
        yield f"recommended: {self.code}"
        for reason in self.why:
            yield f"  {reason}"

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for the JSON report."""
        return {
            "arguments": dict(self.arguments),
            "code": self.code,
            "why": list(self.why),
            "curve": [_measured_to_dict(one) for one in self.curve],
            "lines": list(self.lines()),
        }


def _measured_to_dict(one: Measured) -> dict[str, Any]:
    rate = one.rate
    return {
        "configuration": one.config.id,
        "start_method": one.config.start_method,
        "num_workers": one.config.num_workers,
        "prefetch_factor": one.config.prefetch_factor,
        "persistent_workers": one.config.persistent_workers,
        "batches_per_s": rate.batches_per_s if rate else None,
        "batches_per_s_low": rate.low if rate else None,
        "batches_per_s_high": rate.high if rate else None,
        "first_batch_s": rate.first_batch_s if rate else None,
        "restart_s": rate.restart_s if rate else None,
        "reason": one.reason,
    }


def _table(curve: Sequence[Measured]) -> Iterator[str]:
    head = ("configuration", "batches/s", "95 % interval", "first batch", "next epoch")
    rows = [head, *(_row(one) for one in curve)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    best = max((one.rate.batches_per_s for one in curve if one.rate), default=1.0)
    for row, one in zip(rows, (None, *curve), strict=True):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        yield f"{'  '.join(cells)}  {_bar(one, best)}".rstrip()


def _row(one: Measured) -> tuple[str, ...]:
    rate = one.rate
    if rate is None:
        return (one.config.id, "-", one.reason or "no data", "-", "-")
    times = (f"{s:.2g} s" if s is not None else "-" for s in (rate.first_batch_s, rate.restart_s))
    interval = f"{readable(rate.low)} to {readable(rate.high)}"
    return (one.config.id, readable(rate.batches_per_s), interval, *times)


def _bar(one: Measured | None, best: float) -> str:
    if one is None or one.rate is None:
        return ""
    return "#" * max(1, round(_BAR * one.rate.batches_per_s / best))


# The sweep -----------------------------------------------------------------------------------

#: Measures a configuration; the number tells repeats apart, True asks for the start of a second
#: epoch under a true start as well.
Measure = Callable[[LoaderConfig, int, bool], RunFacts]


def better(candidate: RateFacts, simpler: RateFacts) -> bool:
    """Whether a rate is beyond the noise of another one, and by enough to be worth it."""
    enough = candidate.batches_per_s >= _WORTH_IT * simpler.batches_per_s
    return enough and candidate.low > simpler.high


def _truly_started(run: RunFacts) -> RateFacts | None:
    """The rate; a warm start tells nothing of the first batch."""
    warm = run.rate is not None and run.start == WARM_START
    return replace(run.rate, first_batch_s=None) if warm and run.rate is not None else run.rate


def _unlike(rate: RateFacts, simpler: RateFacts) -> str:
    if rate.batches_per_s >= _WORTH_IT * simpler.batches_per_s:
        return "within the noise of"
    return "not measurably better than"


class Sweep:
    """Goes from simple to less simple, and stops where more does not help or time is up."""

    def __init__(
        self, measure: Measure, *, budget_s: float, now: Callable[[], float] = clock.now
    ) -> None:
        self.measure = measure
        self.now = now
        self.end = now() + budget_s
        self.budget_s = budget_s
        self.curve: list[Measured] = []
        self.why: list[str] = []
        self.best: Measured | None = None
        self.out_of_time = False

    def run(self, methods: Sequence[str], cpus: int) -> Recommendation:
        """Sweep; ``methods`` begins with the one that the loader is used under."""
        alone = self._take(LoaderConfig(None, 0))
        self.best = alone if alone is not None and alone.rate is not None else None
        self._workers(methods[0], _most(alone, cpus))
        if self.best is not None and self.best.config.has_workers:
            self._try_all(replace(self.best.config, prefetch_factor=n) for n in _PREFETCH)
            self._start_methods(methods)
            self._persistence()
        if self.out_of_time:
            self.why.append(f"the time of {self.budget_s:g} s was up before all was measured")
        return self._recommendation()

    def _workers(self, method: str, most: int) -> None:
        missed = 0
        for count in _counts(most):
            if self._improves(LoaderConfig(method, count)):
                missed = 0
                continue
            missed += 1
            if missed == _MISSES or self.out_of_time:
                return

    def _try_all(self, configs: Any) -> None:
        for config in configs:
            if not self._improves(config):
                return

    def _start_methods(self, methods: Sequence[str]) -> None:
        for method in methods[1:]:
            assert self.best is not None
            self._improves(self.best.config.with_start_method(method))

    def _persistence(self) -> None:
        """Whether workers that stay make the start of the next epoch shorter."""
        assert self.best is not None
        config = self.best.config
        restarted = self._take(replace(config, persistent_workers=False), starts=True)
        kept = self._take(replace(config, persistent_workers=True), starts=True)
        times = [one.rate.restart_s if one and one.rate else None for one in (restarted, kept)]
        if times[0] is None or times[1] is None or kept is None:
            return
        saved = times[0] - times[1]
        if saved > max(_RESTART_S, _RESTART_SHARE * times[0]):
            self.best = kept
            self.why.append(
                "persistent_workers=True: a further epoch's first batch comes after "
                f"{times[1]:.2g} s, not {times[0]:.2g} s"
            )

    def _improves(self, config: LoaderConfig) -> bool:
        """Measure; take it if it is better than the best so far, twice in turns."""
        found = self._take(config)
        if found is None or found.rate is None:
            return False
        simpler = self.best
        if simpler is None or simpler.rate is None:
            self.best = found
            return True
        if not better(found.rate, simpler.rate):
            self._say(config, _unlike(found.rate, simpler.rate), found.rate, simpler)
            return False
        if not self._again(found, simpler):
            self.why.append(f"{config.id}: better than {simpler.config.id} once, but not again")
            return False
        self._say(config, "better than", found.rate, simpler)
        self.best = found
        return True

    def _again(self, found: Measured, simpler: Measured) -> bool:
        """Whether it holds a second time: the load of a machine changes between two passes."""
        if self._late():
            return False
        old = self.measure(simpler.config, 1, False).rate
        new = self.measure(found.config, 1, False).rate
        if old is None or new is None or found.rate is None or simpler.rate is None:
            return False
        return better(new, old) and better(new, simpler.rate) and better(found.rate, old)

    def _say(self, config: LoaderConfig, words: str, rate: RateFacts, simpler: Measured) -> None:
        assert simpler.rate is not None
        self.why.append(
            f"{config.id}: {readable(rate.batches_per_s)} batches/s, {words} the "
            f"{readable(simpler.rate.batches_per_s)} of {simpler.config.id}"
        )

    def _take(self, config: LoaderConfig, *, starts: bool = False) -> Measured | None:
        if self._late():
            return None
        run = self.measure(config, 0, starts)
        found = Measured(config, _truly_started(run), run.no_rate_reason)
        self.curve.append(found)
        if found.rate is None:
            self.why.append(f"{config.id}: {found.reason}")
        return found

    def _late(self) -> bool:
        self.out_of_time = self.out_of_time or self.now() >= self.end
        return self.out_of_time

    def _recommendation(self) -> Recommendation:
        config = self.best.config if self.best is not None else LoaderConfig(None, 0)
        arguments: dict[str, Any] = {"num_workers": config.num_workers}
        if config.prefetch_factor is not None:
            arguments["prefetch_factor"] = config.prefetch_factor
        if config.persistent_workers:
            arguments["persistent_workers"] = True
        if config.start_method not in (None, default_start_method()):
            arguments["multiprocessing_context"] = config.start_method
        return Recommendation(config, tuple(self.curve), tuple(self.why), arguments)


def _counts(most: int) -> Iterator[int]:
    """1, 2, 4, ... and the most."""
    count = 1
    while count < most:
        yield count
        count *= 2
    yield most


def _most(alone: Measured | None, cpus: int) -> int:
    """The CPUs allowed; more where a loader without workers mostly waits."""
    share = alone.rate.blocked_share if alone is not None and alone.rate is not None else None
    waits = share is not None and share >= _MOST_WAITING
    return max(1, cpus) * (_WAITING_A_CPU if waits else 1)


# For real ------------------------------------------------------------------------------------


def recommend(
    target: Any,
    *,
    start_methods: Sequence[str] = ("default",),
    budget_s: float = BUDGET_S,
    max_workers: int | None = None,
    timeout: float = 60.0,
) -> Recommendation:
    """Measure a loader's arguments on this machine and recommend what is worth it.

    ``target`` is what `pytest_dataloader.check` takes. Workers, ``prefetch_factor``,
    ``persistent_workers`` and further start methods are tried in turn, from the simplest on, for
    at most about ``budget_s`` seconds. Nothing is recommended that was not measured to be better
    than something simpler. Call it under ``if __name__ == "__main__":``.
    """
    from pytest_dataloader.observe.observer import Observer
    from pytest_dataloader.pipeline import Script, TargetError, parse_target, pipeline_of, resolve

    pipeline = resolve(parse_target(target)) if isinstance(target, str) else pipeline_of(target)
    if isinstance(pipeline, Script):
        raise TargetError(f"{target}: a script has no loader to recommend arguments for")
    observer = Observer(timeout_s=timeout)
    try:
        return tune(pipeline, observer, start_methods, budget_s=budget_s, max_workers=max_workers)
    finally:
        observer.close()


def tune(
    pipeline: Pipeline,
    observer: Observer,
    start_methods: Sequence[str] = ("default",),
    *,
    seed: int = 0,
    budget_s: float = BUDGET_S,
    max_workers: int | None = None,
) -> Recommendation:
    """Recommend arguments for a pipeline with an observer that is there already."""

    def measure(config: LoaderConfig, repeat: int, starts: bool) -> RunFacts:
        epochs = 2 if starts else 1
        request = RunRequest(
            config, seed, repeat=repeat, purpose=TIMED, seconds=PASS_S, epochs=epochs
        )
        with warnings.catch_warnings():  # a sweep goes on until more workers do not help
            warnings.filterwarnings("ignore", message=_TORCH_WARNS)
            return observer.observe(pipeline, request)

    methods = [m for m in expand_start_methods(start_methods) if not lacking(LoaderConfig(m, 1))]
    cpus = max_workers or machine.cpus_allowed(machine.limit_of_cpus()) or 1
    return Sweep(measure, budget_s=budget_s).run(methods or available_start_methods()[:1], cpus)
