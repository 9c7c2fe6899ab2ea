"""Perturbed passes: the same pipeline where directories, encodings and hash seeds are others.

Listing order and default encoding are changed in this process, for the user's lines alone; the
hash seed is that of other processes. Nothing is run twice where no line could be its cause.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import multiprocessing
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_dataloader.diagnose import unordered, world
from pytest_dataloader.observe import clock, elsewhere, hashprobe, processes
from pytest_dataloader.observe.bench import Bench
from pytest_dataloader.observe.compared import Content, dependence
from pytest_dataloader.observe.epoch import batch_facts, set_epoch
from pytest_dataloader.observe.facts import (
    ENCODED,
    HASHED,
    IN_PROCESS,
    LISTED,
    OK,
    BatchFacts,
    DependenceFacts,
    RunFacts,
)
from pytest_dataloader.observe.imports import modules_of
from pytest_dataloader.observe.perturbing import Watch, default_encoding, other_encoding
from pytest_dataloader.observe.surroundings import seeded
from pytest_dataloader.observe.watchdog import RunInterrupted, Watchdog

_ENOUGH_S = 5.0
_ENOUGH_BATCHES = 1_000
_MOST_LINES = 8


@dataclass
class Usual:
    """The pass in which nothing was perturbed: what came, and what could make it come otherwise.

    ``noted`` are the user's lines by what they rest on.
    """

    content: Content
    noted: Mapping[str, Sequence[str]]
    uses: unordered.Uses


#: A further pass of as many batches, in which some lines are answered otherwise.
Again = Callable[[Usual, Sequence[str]], Content]


def run_perturbed(bench: Bench) -> RunFacts:
    """Find what the content depends on besides the data and the seed."""
    bench.before = frozenset(multiprocessing.active_children())
    with bench.tools.tap.during(), warnings.catch_warnings(record=True):
        if _is_made_by_import(bench.pipeline):
            found = _elsewhere(bench)
            processes.end(processes.new_children(bench.before))
        else:
            found = _here(bench)
    return RunFacts(
        request=bench.request,
        start=IN_PROCESS,
        outcome=OK,
        dependences=tuple(found),
        notes=tuple(bench.notes),
    )


def _is_made_by_import(pipeline: Any) -> bool:
    """Whether an object is judged that came to be as its module was imported."""
    return pipeline.target is not None and not pipeline.rebuilds


def _perturbed(usual: Usual, again: Again) -> tuple[list[DependenceFacts], bool]:
    """What a listing order and a default encoding change; whether the content repeats without."""
    if usual.content.error is not None or not usual.content.fresh:
        return [], False
    found: list[DependenceFacts] = []
    for kind in (LISTED, ENCODED):
        lines = usual.noted.get(kind, ())
        found += _by_line(usual, again, kind, lines) if lines else []
    # the last pass is a usual one: what a pipeline writes for later is as it was
    repeats = not _is_suspect(usual) or again(usual, ()).equals(usual.content)
    return (found if repeats else []), repeats


def _is_suspect(usual: Usual) -> bool:
    return any(usual.noted.values()) or bool(usual.uses.ordered or usual.uses.escaping)


def _by_line(usual: Usual, again: Again, kind: str, lines: Sequence[str]) -> list[DependenceFacts]:
    """The lines that change the content, each by itself where there are several."""
    settings = _settings(kind)
    together = again(usual, lines)
    if together.equals(usual.content):
        return []
    found = []
    for line in lines[:_MOST_LINES] if len(lines) > 1 else ():
        alone = again(usual, [line])
        if not alone.equals(usual.content):
            found.append(dependence(kind, (line,), settings, usual.content, alone))
    return found or [dependence(kind, tuple(lines), settings, usual.content, together)]


def _settings(kind: str) -> tuple[str, str]:
    if kind == LISTED:
        return "the names as listed", "the names reversed"
    return default_encoding(), other_encoding()


# In this process -----------------------------------------------------------------------------


def _here(bench: Bench) -> list[DependenceFacts]:
    """Passes in this process, and others for the hash seed."""
    dog = bench.watchdog()

    def again(usual: Usual, otherwise: Sequence[str]) -> Content:
        return _pass(bench, dog, Watch(otherwise), most=len(usual.content.batches))

    with contextlib.suppress(RunInterrupted), dog.watching():
        usual = _usual(bench, dog)
        changed, repeats = _perturbed(usual, again)
    if dog.fired or not repeats:
        return []
    return [*changed, *_other_hashes(bench, usual)]


def _other_hashes(bench: Bench, usual: Usual) -> list[DependenceFacts]:
    hashed = usual.noted.get(HASHED, ())
    return elsewhere.other_hashes(bench, len(usual.content.batches), hashed, usual.uses)


def _usual(bench: Bench, dog: Watchdog) -> Usual:
    """A pass with nothing perturbed, for as long as a user may wait for it."""
    until = clock.now() + _ENOUGH_S
    modules: list[str] = _modules_of_factory(bench.pipeline)

    def look(loader: Any) -> None:
        modules[:0] = modules_of(loader, bench.tools.modules.get(bench.pipeline.key, ()))

    watch = Watch()
    content = _pass(bench, dog, watch, until=until, look=look)
    uses = unordered.uses(world.reachable(modules))
    if uses.listing and not bench.pipeline.rebuilds:
        bench.notes.append(
            f"whether the order in which {uses.listing[0]} lists a directory matters is not "
            "judged, as the dataset is not built anew; give it as dl_make_dataset"
        )
    return Usual(content, watch.noted, uses)


def _modules_of_factory(pipeline: Any) -> list[str]:
    make = pipeline.make_dataset or pipeline.make_loader
    name = getattr(getattr(make, "func", make), "__module__", None)  # it may be a partial
    return [name] if isinstance(name, str) else []


def _pass(
    bench: Bench,
    dog: Watchdog,
    watch: Watch,
    *,
    most: int = _ENOUGH_BATCHES,
    until: float = math.inf,
    look: Any = lambda _loader: None,
) -> Content:
    """The first batches of a fresh build in this process."""
    mine = dataclasses.replace(bench, stage="build", error=None, outcome=OK, fresh=True)
    batches: list[BatchFacts] = []

    def body() -> None:
        dog.beat()
        built = mine.build(None)
        mine.fresh = built.fresh
        look(built.loader)
        mine.stage = "iterate"
        set_epoch(built.loader, 0)
        for batch in built.loader:
            dog.beat()
            batches.append(batch_facts(batch, len(batches)))
            if len(batches) >= most or clock.now() >= until:
                return

    with seeded(bench.request.seed), watch.watching():
        mine.guarded(body)
    return Content(tuple(batches), mine.error, mine.fresh)


# In other processes --------------------------------------------------------------------------


def _elsewhere(bench: Bench) -> list[DependenceFacts]:
    """The same in fresh processes, which import the object's module anew."""
    data = hashprobe.recipe(bench.pipeline)
    seed, *_ = bench.tools.starter.hash_seeds()
    request = bench.request
    if data is None:
        return []
    task = hashprobe.Task(data, request.config, request.seed, _ENOUGH_BATCHES, watches=True)

    def again(usual: Usual, otherwise: Sequence[str]) -> Content:
        most = len(usual.content.batches)
        asked = dataclasses.replace(task, most_batches=most, otherwise=tuple(otherwise))
        told = elsewhere.ask(bench, asked, seed)
        return told.content if told is not None else usual.content  # no end is no difference

    first = elsewhere.ask(bench, dataclasses.replace(task, seconds=_ENOUGH_S), seed)
    if first is None:
        return []
    modules = bench.tools.modules.get(bench.pipeline.key, ())
    uses = unordered.uses(world.reachable(modules))
    usual = Usual(first.content, first.noted, uses)
    changed, repeats = _perturbed(usual, again)
    return [*changed, *_other_hashes(bench, usual)] if repeats else []
