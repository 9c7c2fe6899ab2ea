"""The one registry of checks: for each kind of question its needs and its checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pytest_dataloader.checks import (
    completeness,
    determinism,
    forksafety,
    memory,
    picklability,
    portability,
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
    Memory,
    NoRecursiveSpawn,
    Picklable,
    Portable,
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


def _forks(config: LoaderConfig) -> bool:
    return config.start_method == "fork"


FAMILIES: dict[type, Family] = {
    Runs: Family("runs", runs.needs, runs.CHECKS),
    Picklable: Family("picklability", picklability.needs, picklability.CHECKS, _starts_afresh),
    Deterministic: Family("determinism", determinism.needs, determinism.CHECKS),
    NoRecursiveSpawn: Family("spawning", spawning.needs, spawning.CHECKS, _starts_afresh),
    Seeding: Family("seeding", seeding.needs, seeding.CHECKS),
    Complete: Family("completeness", completeness.needs, completeness.CHECKS),
    ForkSafe: Family("fork-safety", forksafety.needs, forksafety.CHECKS, _forks),
    Memory: Family("memory", memory.needs, memory.CHECKS),
    Portable: Family("portability", portability.needs, portability.CHECKS, _forks),
    Throughput: Family("throughput", throughput.needs, throughput.CHECKS),
}

#: What conformance means: every question that needs no budget.
CONFORMANCE: tuple[Asked, ...] = (
    Runs(),
    Picklable(),
    Deterministic(),
    Seeding(),
    Complete(),
    NoRecursiveSpawn(),
    ForkSafe(),
    Memory(),
    Portable(),
)


def family_of(asked: Asked) -> Family:
    """The family that answers a question."""
    return FAMILIES[type(asked)]
