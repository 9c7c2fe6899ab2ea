"""Timed passes: nothing but the clock, alone on the machine."""

from __future__ import annotations

import gc
import multiprocessing
import warnings
from dataclasses import replace
from typing import Any

from pytest_dataloader.observe import clock, processes, rate
from pytest_dataloader.observe.bench import Bench
from pytest_dataloader.observe.facts import HUNG, RateFacts, RunFacts, StallFacts
from pytest_dataloader.observe.headspace import headspace
from pytest_dataloader.observe.outcome import stuck_at
from pytest_dataloader.observe.reference import reference_s
from pytest_dataloader.observe.surroundings import recorded, seeded
from pytest_dataloader.observe.watchdog import RunInterrupted, Watchdog


def run_timed(bench: Bench) -> RunFacts:
    """Measure the steady rate, or how long a busy consumer waits; the facts say why if not."""
    context = bench.choose_start()
    bench.before = frozenset(multiprocessing.active_children())
    dog = bench.watchdog()
    found: list[RateFacts | StallFacts] = []
    caught: list[warnings.WarningMessage] = []
    with bench.tools.tap.during(), recorded(caught), seeded(bench.request.seed):
        try:
            bench.guarded(lambda: found.append(_alone(bench, context, dog)))
        except RunInterrupted:
            bench.outcome = HUNG
        gc.collect()
        bench.workers_started = processes.new_children(bench.before)
        bench.close()
    measured = found[0] if found else None
    return RunFacts(
        request=bench.request,
        start=bench.start,
        outcome=HUNG if dog.fired else bench.outcome,
        reason=f"no batch for {dog.timeout_s:g} s" if dog.fired else None,
        error=bench.error,
        stuck=stuck_at(dog, bench.stacks_text),
        rate=measured if isinstance(measured, RateFacts) else None,
        stall=measured if isinstance(measured, StallFacts) else None,
        no_rate_reason=None if found else _no_rate(bench, dog),
        notes=tuple(bench.notes),
    )


def _alone(bench: Bench, context: Any, dog: Watchdog) -> RateFacts | StallFacts:
    with rate.alone_on_this_machine(), dog.watching():
        before = reference_s()
        found = _measured(bench, context, dog)
        if isinstance(found, RateFacts):
            return replace(found, reference_s=(before + reference_s()) / 2)
        return found


def _measured(bench: Bench, context: Any, dog: Watchdog) -> RateFacts | StallFacts:
    loader = bench.build(context).loader
    bench.stage = "iterate"
    seconds, step_ms = bench.request.seconds, bench.request.step_ms
    if step_ms is not None:
        return rate.measure_stalls(loader, step_ms, seconds, clock.now, dog.beat)
    budget = bench.request.budget
    found = rate.measure(loader, seconds, clock.now, dog.beat, budget)
    if bench.request.epochs > 1:
        return replace(found, restart_s=rate.restart_s(loader, clock.now, dog.beat))
    if budget is not None and found.high < budget and loader.num_workers:
        return replace(found, headspace=_headspace(bench, loader, dog))
    return found


def _headspace(bench: Bench, loader: Any, dog: Watchdog) -> float | None:
    """What the loader would give without the work of a batch; None where no batch can be made in
    this process."""
    alone = replace(bench.request, config=bench.request.config.without_workers())
    try:
        batch = next(iter(replace(bench, request=alone).build(None).loader))
        dog.beat()
        return headspace(loader, batch, clock.now, dog.beat)
    except Exception as error:  # noqa: BLE001 - the user's own, of a pass that nothing rests on
        bench.notes.append(f"headspace: not measured, {type(error).__name__}: {error}")
        return None


def _no_rate(bench: Bench, dog: Watchdog) -> str:
    if dog.fired:
        return "the timed pass hung"
    if bench.error is None:
        return "the timed pass was interrupted"
    if bench.error.type == rate.NoRate.__name__:
        return bench.error.message
    return f"the timed pass raised {bench.error.type}: {bench.error.message}"
