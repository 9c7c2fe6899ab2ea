"""Timed passes: nothing but the clock, alone on the machine."""

from __future__ import annotations

import gc
import multiprocessing
import warnings
from typing import Any

from pytest_dataloader.observe import clock, processes, rate
from pytest_dataloader.observe.bench import Bench
from pytest_dataloader.observe.facts import HUNG, RateFacts, RunFacts
from pytest_dataloader.observe.surroundings import recorded, seeded
from pytest_dataloader.observe.watchdog import RunInterrupted, Watchdog


def run_timed(bench: Bench) -> RunFacts:
    """Measure the steady rate; where there is none, the facts say why."""
    context = bench.choose_start()
    bench.before = frozenset(multiprocessing.active_children())
    dog = bench.watchdog()
    found: list[RateFacts] = []
    caught: list[warnings.WarningMessage] = []
    with bench.tools.tap.during(), recorded(caught), seeded(bench.request.seed):
        try:
            bench.guarded(lambda: found.append(_alone(bench, context, dog)))
        except RunInterrupted:
            bench.outcome = HUNG
        gc.collect()
        bench.workers_started = processes.new_children(bench.before)
        bench.close()
    return RunFacts(
        request=bench.request,
        start=bench.start,
        outcome=HUNG if dog.fired else bench.outcome,
        error=bench.error,
        rate=found[0] if found else None,
        no_rate_reason=None if found else _no_rate(bench, dog),
    )


def _alone(bench: Bench, context: Any, dog: Watchdog) -> RateFacts:
    with rate.alone_on_this_machine(), dog.watching():
        return _measured(bench, context, dog)


def _measured(bench: Bench, context: Any, dog: Watchdog) -> RateFacts:
    loader = bench.build(context).loader
    bench.stage = "iterate"
    return rate.measure(loader, bench.request.seconds, clock.now, dog.beat)


def _no_rate(bench: Bench, dog: Watchdog) -> str:
    if dog.fired:
        return "the timed pass hung"
    if bench.error is None:
        return "the timed pass was interrupted"
    if bench.error.type == rate.NoRate.__name__:
        return bench.error.message
    return f"the timed pass raised {bench.error.type}: {bench.error.message}"
