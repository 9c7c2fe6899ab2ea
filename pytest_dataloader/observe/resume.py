"""Resume passes: a loader is interrupted, built afresh, given its state, and runs the rest."""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_dataloader.diagnose import pickling, stateful
from pytest_dataloader.observe import clock, processes, worker
from pytest_dataloader.observe.bench import Bench
from pytest_dataloader.observe.epoch import batch_facts, set_epoch
from pytest_dataloader.observe.facts import HUNG, BatchFacts, ResumeFacts, RunFacts, StatefulFacts
from pytest_dataloader.observe.frozen import FrozenCollate, FrozenStart, freeze
from pytest_dataloader.observe.ride import Insight
from pytest_dataloader.observe.surroundings import only_new_garbage, recorded, seeded
from pytest_dataloader.observe.watchdog import RunInterrupted, Watchdog
from pytest_dataloader.pipeline import may_bring_a_loader

#: An epoch of more batches, or of more seconds, is looked at up to there.
_MOST_BATCHES = 256
_MOST_SECONDS = 10.0


@dataclass
class _Pass:
    """What one pass gave: the batches of each epoch, and the states that were asked for."""

    epochs: list[list[BatchFacts]] = field(default_factory=list)
    states: dict[int, bytes] = field(default_factory=dict)
    whole: bool = True
    samples: tuple[Any, ...] = ()

    @property
    def first(self) -> list[BatchFacts]:
        """The first epoch."""
        return self.epochs[0] if self.epochs else []


@dataclass(frozen=True)
class _Plan:
    """What a pass is to do: how many epochs, of at most how many batches; ``state`` to begin
    from, ``states_at`` to ask for after so many batches.

    ``frozen`` starts all generators anew for each batch; ``noting`` starts them at that seed once,
    and notes the samples.
    """

    state: bytes | None = None
    states_at: tuple[int, ...] = ()
    epochs: int = 1
    most: int | None = None
    frozen: bool = False
    noting: int | None = None


class _Unsendable(Exception):
    """A state that pickle refuses."""


class _Silent(Exception):
    """There is nothing to resume."""


def run_resume(bench: Bench) -> RunFacts:
    """Run an epoch without interruption, then resume it from several places and compare."""
    context = bench.choose_start()
    bench.before = frozenset(multiprocessing.active_children())
    dog = bench.watchdog()
    passes = _Passes(bench, context, dog)
    caught: list[warnings.WarningMessage] = []
    with only_new_garbage(), bench.tools.tap.during(), recorded(caught):
        try:
            with dog.watching():
                bench.guarded(passes.all)
        except RunInterrupted:
            bench.outcome = HUNG
        bench.close()
    error = bench.error
    return RunFacts(
        request=bench.request,
        start=bench.start,
        outcome=HUNG if dog.fired else bench.outcome,
        reason=f"{error.type}: {error.message}" if error is not None else None,
        error=error,
        stateful=passes.about,
        resumed=tuple(passes.resumed),
    )


class _Passes:
    """The passes of one pipeline, and what became of them."""

    def __init__(self, bench: Bench, context: Any, dog: Watchdog) -> None:
        self.bench = bench
        self.context = context
        self.dog = dog
        self.about = StatefulFacts(loader=False)
        self.resumed: list[ResumeFacts] = []

    def all(self) -> None:
        """All passes, as far as there is something to resume."""
        if not may_bring_a_loader(self.bench.pipeline):
            return
        with contextlib.suppress(_Silent, _Unsendable):
            self._compare()

    def _compare(self) -> None:
        usual = self._pass(_Plan(epochs=2))
        total = len(usual.first)
        self._about(batches=total, whole=usual.whole)
        points = _points(total, whole=usual.whole)
        told = self._pass(_Plan(states_at=points, most=total))
        if told.first != usual.first[: len(told.first)]:
            self._about(
                disturbed=self._pass(_Plan(most=total)).first == usual.first, repeatable=False
            )
            return
        middle = total // 2
        for point in points:
            self._resume(usual, told.states[point], (point,), twice=0 < point == middle)
        if self._failed():
            self._look_for_the_cause(usual, told)

    def _about(self, **facts: Any) -> None:
        self.about = StatefulFacts(**{**vars(self.about), **facts})

    def _failed(self) -> bool:
        return any(one.differs_at is not None for one in self.resumed)

    def _resume(
        self, usual: _Pass, state: bytes, interrupted: tuple[int, ...], *, twice: bool
    ) -> None:
        """Run the rest; with ``twice`` the epoch after it too, and from another interruption."""
        remain = len(usual.first) - interrupted[-1]
        more = max(1, remain // 2) if twice else 0
        got = self._pass(
            _Plan(
                state=state,
                states_at=(more,) if twice else (),
                epochs=2 if twice and usual.whole else 1,
                most=None if usual.whole else remain,
            )
        )
        found = _compared(usual, got, interrupted)
        self.resumed.append(found)
        if more in got.states and found.differs_at is None:
            self._resume(
                usual, got.states[more], (*interrupted, interrupted[-1] + more), twice=False
            )

    # Why -------------------------------------------------------------------------------------

    def _look_for_the_cause(self, usual: _Pass, told: _Pass) -> None:
        """Whether it is only random numbers that differ; and what the state forgets."""
        place = next(one for one in self.resumed if one.differs_at is not None).interrupted[0]
        again = self._pass(_Plan(frozen=True))
        states = self._pass(_Plan(frozen=True, states_at=(place,), most=max(place, 1))).states
        rest = self._pass(_Plan(frozen=True, state=states[place])).first if place in states else []
        random_only = again.whole and rest == again.first[place:]
        if random_only and usual.whole:
            random_only = self._is_augmented()
        self._about(random_only=random_only)
        with contextlib.suppress(Exception):  # the user's methods, outside of a run: a look only
            self._about(**stateful.forgotten(self._fresh_loader))
            self._about(generators=tuple(stateful.drawn_from(self._fresh_loader().dataset)))

    def _is_augmented(self) -> bool:
        """Whether generators that start otherwise make other samples, not only another order."""
        one, other = (self._pass(_Plan(noting=seed)).samples for seed in (0, 1))
        return sorted(map(str, one)) != sorted(map(str, other))

    def _fresh_loader(self) -> Any:
        config = self.bench.request.config.without_workers()
        with seeded(self.bench.request.seed):
            return self.bench.pipeline.build(config, None, keep=False).loader

    # One pass --------------------------------------------------------------------------------

    def _pass(self, plan: _Plan) -> _Pass:
        """Build the pipeline afresh and run it; its workers have ended when this returns."""
        made = _Pass()
        begun = clock.now()
        with seeded(self.bench.request.seed):
            self._drive(made, plan)
        self.bench.close()
        self.bench.workers_started = []
        self.bench.stage = "build"
        if plan.noting is not None:
            notes = [n for n in self.bench.told if n["kind"] == "batch" and n["at"] >= begun]
            made.samples = tuple(i for note in notes for i in note.get("ids", ()))
        return made

    def _drive(self, made: _Pass, plan: _Plan) -> None:
        loader = self._loader(plan)
        if plan.state is not None:
            self.bench.stage = "resume"
            loader.load_state_dict(pickle.loads(plan.state))
        for epoch in range(plan.epochs):
            set_epoch(loader, epoch)
            self._epoch(made, loader, plan, states_at=() if epoch else plan.states_at)
            if not made.whole:
                return

    def _epoch(self, made: _Pass, loader: Any, plan: _Plan, states_at: Sequence[int]) -> None:
        batches: list[BatchFacts] = []
        made.epochs.append(batches)
        if 0 in states_at:
            made.states[0] = self._state_of(loader)
        if plan.most == 0:
            return
        start_at = 0 if plan.frozen else plan.noting
        if start_at is not None:
            freeze({"dataset": loader.dataset, **_riders(loader)}, start_at)
        self.bench.stage = "iterate"
        ends = float("inf")  # the start of the workers does not count
        for batch in loader:
            self.dog.beat()
            ends = ends if batches else clock.now() + _MOST_SECONDS
            self.bench.workers_started = processes.new_children(self.bench.before)
            batches.append(batch_facts(batch, len(batches)))
            if len(batches) in states_at:
                made.states[len(batches)] = self._state_of(loader)
            if len(batches) == plan.most:
                return
            if plan.most is None and (len(batches) == _MOST_BATCHES or clock.now() > ends):
                made.whole = False
                return
        self.dog.beat()

    def _loader(self, plan: _Plan) -> Any:
        bench = self.bench
        self.dog.beat()
        config, rebuilds = bench.request.config, bench.pipeline.rebuilds
        loader = bench.pipeline.build(config, self.context, keep=rebuilds).loader
        self._about(**stateful.described(loader))
        if not self.about.loader:
            raise _Silent
        if config.has_workers and not getattr(loader, "in_order", True):
            self._about(in_order=False)
            raise _Silent
        self._ride_along(loader, plan)
        return loader

    def _ride_along(self, loader: Any, plan: _Plan) -> None:
        bench, riders = self.bench, _riders(loader)
        has_workers = bench.request.config.has_workers
        if plan.frozen:
            dataset = None if has_workers else loader.dataset
            loader.collate_fn = FrozenCollate(loader.collate_fn, riders, dataset)
        if plan.frozen or plan.noting is not None:
            loader.worker_init_fn = FrozenStart(loader.worker_init_fn, riders, plan.noting or 0)
        if plan.noting is not None:
            ride = Insight(None, riders)
            ride.dataset = None if has_workers else loader.dataset
            batched = loader.batch_sampler is not None
            loader.collate_fn = worker.CollateNote(
                loader.collate_fn, bench.journal, batched=batched, insight=ride
            )
        loader.worker_init_fn = worker.StartNote(
            loader.worker_init_fn, bench.journal, str(bench.tools.tap.path)
        )

    def _state_of(self, loader: Any) -> bytes:
        """The loader's state as it would be saved."""
        state = loader.state_dict()
        try:
            return pickle.dumps(state)
        except Exception:  # noqa: BLE001 - what pickle meets is the user's
            found = pickling.find_unpicklable({"state": state}, None)
            self._about(unpicklable=found)
            raise _Unsendable from None


def _riders(loader: Any) -> dict[str, Any]:
    names = ("collate_fn", "worker_init_fn")
    return {f"loader.{n}": getattr(loader, n) for n in names if getattr(loader, n) is not None}


def _points(total: int, *, whole: bool) -> tuple[int, ...]:
    """Where to interrupt an epoch, in batches: its start, middle, near the end and the end."""
    last = (total - 1, total) if whole else (total - 1,)
    return tuple(sorted({0, total // 2, *last} - {-1}))


def _compared(usual: _Pass, got: _Pass, interrupted: tuple[int, ...]) -> ResumeFacts:
    place = interrupted[-1]
    wanted, came = usual.first[place:], got.first
    following = usual.epochs[1] if len(usual.epochs) > 1 else None
    if not wanted and came == following:  # it had counted the epoch as done
        return ResumeFacts(interrupted, 0)
    differs = _first_difference(wanted, came)
    if differs is not None:
        one, other = (row[differs] if differs < len(row) else None for row in (wanted, came))
        return ResumeFacts(interrupted, len(came), place + differs, one, other)
    if following is None or len(got.epochs) < 2:
        return ResumeFacts(interrupted, len(came))
    return ResumeFacts(
        interrupted,
        len(came),
        next_batches=(len(following), len(got.epochs[1])),
        next_differs=_first_difference(following, got.epochs[1]) is not None,
        epochs_alike=_first_difference(usual.first, following) is None,
    )


def _first_difference(wanted: list[BatchFacts], came: list[BatchFacts]) -> int | None:
    for number, (one, other) in enumerate(zip(wanted, came, strict=False)):
        if one.digest != other.digest:
            return number
    return None if len(wanted) == len(came) else min(len(wanted), len(came))
