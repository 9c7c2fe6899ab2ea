"""The registry: every question has its family, and every code a check that emits it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import get_args

import pytest
from by_hand import FORK, MATRIX, SPAWN, W0, question

from pytest_dataloader import checks
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
from pytest_dataloader.checks.catalogue import BY_NAME
from pytest_dataloader.checks.evidence import Evidence
from pytest_dataloader.checks.families import CONFORMANCE, FAMILIES, family_of
from pytest_dataloader.checks.finding import Finding
from pytest_dataloader.matrix import LoaderConfig

EVERYWHERE = {
    "runs",
    "determinism",
    "seeding",
    "completeness",
    "resuming",
    "hygiene",
    "memory",
    "throughput",
}
EVERY_QUESTION = (*CONFORMANCE, Throughput(min_speedup=2.0))


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        (Runs(), "runs"),
        (Picklable(), "picklability"),
        (Deterministic(), "determinism"),
        (Seeding(), "seeding"),
        (Complete(), "completeness"),
        (Resumable(), "resuming"),
        (NoRecursiveSpawn(), "spawning"),
        (ForkSafe(), "fork-safety"),
        (NoLeaks(), "hygiene"),
        (Memory(), "memory"),
        (Portable(), "portability"),
        (Throughput(), "throughput"),
    ],
)
def test_the_family_of_a_question(asked, name) -> None:
    assert family_of(asked).name == name


def test_every_question_has_a_family_of_its_own_name() -> None:
    assert set(FAMILIES) == set(get_args(Asked))
    assert len({family.name for family in FAMILIES.values()}) == len(FAMILIES)


def test_conformance_is_every_question_that_needs_no_budget() -> None:
    assert {type(asked) for asked in CONFORMANCE} == set(FAMILIES) - {Throughput, Fuzz}


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (W0, EVERYWHERE | {"portability"}),
        (FORK, EVERYWHERE | {"fork-safety", "portability"}),
        (SPAWN, EVERYWHERE | {"picklability", "spawning"}),
        (LoaderConfig("forkserver", 2), EVERYWHERE | {"picklability", "spawning"}),
    ],
)
def test_the_families_that_have_something_to_judge(config, names) -> None:
    assert {family.name for family in FAMILIES.values() if family.applies(config)} == names


@pytest.mark.parametrize("asked", EVERY_QUESTION, ids=lambda asked: type(asked).__name__)
def test_without_facts_no_check_finds_anything(asked) -> None:
    for config in MATRIX:
        evidence = Evidence(question(config), {})
        said = [found for check in family_of(asked).checks for found in check(evidence, asked)]
        assert not [found for found in said if isinstance(found, Finding)]


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_every_check_of_a_family_says_what_it_judges(family) -> None:
    assert family.checks or family.name == "fuzz"  # whose findings are those of the others
    for check in family.checks:
        assert check.__doc__


def test_every_code_of_the_catalogue_is_named_by_a_check() -> None:
    folder = Path(checks.__file__).parent
    words = set()
    for file in folder.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                words.add(node.value)
    assert set(BY_NAME) <= words
