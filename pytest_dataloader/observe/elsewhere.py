"""The pipeline in other processes: fresh ones, each with a hash seed that is known to differ."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_dataloader.diagnose import unordered
from pytest_dataloader.observe import errors, hashprobe, worker
from pytest_dataloader.observe.bench import Bench
from pytest_dataloader.observe.compared import Content, dependence
from pytest_dataloader.observe.facts import HASHED, BatchFacts, DependenceFacts, LeafFacts
from pytest_dataloader.observe.imports import end_with_children


@dataclass(frozen=True)
class Told:
    """The content in another process, the lines in question that were executed there, and those
    that were noted, by what they rest on."""

    content: Content
    executed: tuple[str, ...] = ()
    noted: dict[str, list[str]] = field(default_factory=dict)


def ask(bench: Bench, task: hashprobe.Task, seed: int | None) -> Told | None:
    """What a fresh process with this hash seed tells; None if it did not come to its end."""
    journal = worker.Journal(f"{bench.journal.path}-elsewhere")
    with bench.tools.starter.hash_seeded(seed) as context:
        process = context.Process(
            target=hashprobe.probe,
            args=(task, journal.path, str(bench.tools.tap.path)),
            name="hash-probe",
        )
        process.start()
    try:
        process.join(bench.tools.timeout_s)
    finally:
        with contextlib.suppress(ProcessLookupError):
            end_with_children(process)
    told = worker.read_journal(journal.path)
    Path(journal.path).unlink(missing_ok=True)
    batches = tuple(_read(note["batch"]) for note in told if note["kind"] == "content")
    for note in told:
        if note["kind"] == "done":
            return Told(Content(batches), tuple(note["lines"]), note["noted"])
        if note["kind"] == "failed":
            error = errors.from_text("".join(note["error"]), note["stage"])
            return Told(Content(batches, error)) if error is not None else None
    return None


def _read(batch: dict[str, Any]) -> BatchFacts:
    return BatchFacts(batch["digest"], tuple(LeafFacts(**leaf) for leaf in batch["leaves"]))


def other_hashes(
    bench: Bench, most_batches: int, hashed: Sequence[str], uses: unordered.Uses
) -> list[DependenceFacts]:
    """What another hash seed changes, for code that hashes strings or uses sets.

    Small sets have the same order under many seeds; more are tried where one's order is taken.
    """
    suspects = tuple(dict.fromkeys((*hashed, *uses.ordered, *uses.escaping)))
    data = hashprobe.recipe(bench.pipeline) if suspects else None
    if data is None:
        return _unknown(bench, hashed)
    request = bench.request
    task = hashprobe.Task(data, request.config, request.seed, most_batches, suspects)
    seeds = bench.tools.starter.hash_seeds()
    first = ask(bench, task, seeds[0])
    if first is None or first.content.error is not None:
        return _unknown(bench, hashed)
    task = dataclasses.replace(task, lines=())
    taken = any(line not in uses.escaping for line in first.executed)
    for seed in (seeds[1:] if taken else seeds[1:2]) if first.executed else ():
        other = ask(bench, task, seed)
        if other is None:
            return _unknown(bench, hashed)
        if not other.content.equals(first.content):
            again = functools.partial(ask, bench, task)
            return _confirmed({seeds[0]: first, seed: other}, again, first.executed)
    return []


def _unknown(bench: Bench, hashed: Sequence[str]) -> list[DependenceFacts]:
    """Nothing, and a word on it where strings are hashed for certain."""
    if hashed:
        bench.notes.append(
            f"what hash() at {hashed[0]} gives differs between processes; whether that matters is "
            "not judged, as another process could not build the pipeline: give it as a function "
            "or class of a module"
        )
    return []


def _confirmed(
    pair: dict[int | None, Told], again: Any, lines: tuple[str, ...]
) -> list[DependenceFacts]:
    """The difference, if each seed gives the same again."""
    for seed, one in pair.items():
        same = again(seed)
        if same is None or not same.content.equals(one.content):
            return []
    first, other = (one.content for one in pair.values())
    return [dependence(HASHED, lines, ("one hash seed", "another"), first, other)]
