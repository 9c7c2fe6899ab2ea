"""The one registry of checks: for each kind of question its needs and its checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pytest_dataloader.checks import (
    completeness,
    determinism,
    forksafety,
    hygiene,
    memory,
    picklability,
    portability,
    resuming,
    runs,
    seeding,
    spawning,
    throughput,
)
from pytest_dataloader.checks.asked import (
    Asked,
    Complete,
    Deterministic,
    ForkSafe,
    Fuzz,
    Memory,
    NoLeaks,
    NoRecursiveSpawn,
    Picklable,
    Portable,
    Resumable,
    Runs,
    Seeding,
    Throughput,
)
from pytest_dataloader.checks.evidence import Evidence, Question
from pytest_dataloader.checks.finding import Finding, NotJudged
from pytest_dataloader.matrix import LoaderConfig
from pytest_dataloader.observe.facts import RunRequest

Check = Callable[[Evidence, Any], Iterator[Finding | NotJudged]]


@dataclass(frozen=True)
class Family:
    """What must be observed for a question, and the checks that judge it.

    ``applies`` says for which configurations there is anything to judge.
    """

    name: str
    needs: Callable[[Any, Question], list[RunRequest]]
    checks: tuple[Check, ...]
    applies: Callable[[LoaderConfig], bool] = lambda _config: True


def _starts_afresh(config: LoaderConfig) -> bool:
    return config.start_method not in (None, "fork")


def _forks_or_alone(config: LoaderConfig) -> bool:
    return _forks(config) or not config.has_workers


def _forks(config: LoaderConfig) -> bool:
    return config.start_method == "fork"


FAMILIES: dict[type, Family] = {
    Runs: Family("runs", runs.needs, runs.CHECKS),
    Picklable: Family("picklability", picklability.needs, picklability.CHECKS, _starts_afresh),
    Deterministic: Family("determinism", determinism.needs, determinism.CHECKS),
    NoRecursiveSpawn: Family("spawning", spawning.needs, spawning.CHECKS, _starts_afresh),
    Seeding: Family("seeding", seeding.needs, seeding.CHECKS),
    # What is drawn is judged as it is drawn (fuzz.py); nothing is observed beforehand.
    Fuzz: Family("fuzz", lambda _asked, _question: [], (), lambda _config: False),
    Complete: Family("completeness", completeness.needs, completeness.CHECKS),
    Resumable: Family("resuming", resuming.needs, resuming.CHECKS),
    ForkSafe: Family("fork-safety", forksafety.needs, forksafety.CHECKS, _forks),
    NoLeaks: Family("hygiene", hygiene.needs, hygiene.CHECKS),
    Memory: Family("memory", memory.needs, memory.CHECKS),
    Portable: Family("portability", portability.needs, portability.CHECKS, _forks_or_alone),
    Throughput: Family("throughput", throughput.needs, throughput.CHECKS),
}

#: What conformance means: every question that needs no budget.
CONFORMANCE: tuple[Asked, ...] = (
    Runs(later_epochs=True),
    Picklable(),
    Deterministic(),
    Seeding(),
    Complete(),
    Resumable(if_stateful=True),
    NoRecursiveSpawn(),
    ForkSafe(),
    NoLeaks(),
    Memory(),
    Portable(),
)


def family_of(asked: Asked) -> Family:
    """The family that answers a question."""
    return FAMILIES[type(asked)]
