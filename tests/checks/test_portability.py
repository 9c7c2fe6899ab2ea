"""Portability: what is said of a pipeline that elsewhere fails, or gives something else."""

from __future__ import annotations

from typing import Any

import pytest
from by_hand import FORK, SPAWN, W0, batch, error, judged, question, run

from pytest_dataloader.checks import portability
from pytest_dataloader.checks.asked import Portable
from pytest_dataloader.checks.finding import ERROR, WARNING, Finding, NotJudged
from pytest_dataloader.matrix import LoaderConfig
from pytest_dataloader.observe.facts import (
    DIED,
    ENCODED,
    HASHED,
    HUNG,
    LISTED,
    PERTURBED,
    RAISED,
    DependenceFacts,
    RunFacts,
    RunRequest,
    UnpicklableFacts,
)

FORKSERVER = LoaderConfig("forkserver", 2)
PERTURBED_ALONE = RunRequest(W0, purpose=PERTURBED)
MEND_SPAWN = (
    'Mend the findings under spawn. multiprocessing_context="fork" keeps the old way for a while, '
    "where no thread or device forbids it."
)
LAMBDA = UnpicklableFacts("dataset.clean", "a lambda", "no")


def said(*facts, config=FORK, matrix=(W0, FORK, SPAWN)):
    return judged(Portable(), question(config, matrix=matrix), facts)


@pytest.mark.parametrize(
    ("config", "matrix", "needed"),
    [
        (FORK, (W0, FORK, SPAWN, FORKSERVER), [RunRequest(FORKSERVER)]),
        (FORK, (W0, FORK, SPAWN), [RunRequest(SPAWN)]),
        (FORK, (W0, FORK, LoaderConfig("spawn", 4)), []),
        (FORK, (FORK, SPAWN), [PERTURBED_ALONE, RunRequest(SPAWN)]),
        (SPAWN, (FORK, SPAWN, FORKSERVER), []),
        (SPAWN, (SPAWN, FORKSERVER), [PERTURBED_ALONE]),
        (W0, (W0, FORK, SPAWN), [PERTURBED_ALONE]),
        (W0, (FORK, W0), [PERTURBED_ALONE]),
    ],
)
def test_what_is_run(config, matrix, needed) -> None:
    assert portability.needs(Portable(), question(config, matrix=matrix)) == needed


def test_will_break_on_forkserver() -> None:
    there = run(FORKSERVER, outcome=RAISED, reason="PicklingError: no", unpicklable=(LAMBDA,))
    assert said(run(FORK), there, matrix=(FORK, SPAWN, FORKSERVER)) == [
        Finding(
            "will-break-on-forkserver",
            WARNING,
            (FORK,),
            "dataset.clean",
            "expected what runs under fork to run under forkserver too, the default of Python 3.14 "
            "on Linux, but there it raises: PicklingError: no",
            MEND_SPAWN,
        )
    ]


@pytest.mark.parametrize(
    ("outcome", "reason", "words"),
    [
        (DIED, "a worker ended with exit code 3", "dies: a worker ended with exit code 3"),
        (HUNG, "no batch for 60 s", "hangs: no batch for 60 s"),
    ],
)
def test_will_break_on_spawn_where_forkserver_was_not_run(outcome, reason, words) -> None:
    [finding] = said(run(FORK), run(SPAWN, outcome=outcome, reason=reason))
    assert (finding.code, finding.culprit) == ("will-break-on-forkserver", "dataset")
    assert finding.message == (
        "expected what runs under fork to run under spawn too, the default on Windows and macOS, "
        f"but there it {words}"
    )


def test_what_runs_in_both_or_in_neither_is_portable() -> None:
    broken = run(SPAWN, outcome=RAISED, reason="ValueError: bad record")
    assert said(run(FORK), run(SPAWN)) == []
    assert said(run(FORK, outcome=RAISED), broken) == []
    assert said(run(FORK)) == []
    assert said(broken, run(FORK), config=SPAWN) == []


# What else the content depends on ----------------------------------------------------------------


def perturbed(*dependences: DependenceFacts, config=W0, **facts: Any) -> RunFacts:
    request = question(config).perturbed()
    return run(W0, **{"request": request, "dependences": dependences, **facts})


def dependence(on: str, *lines: str, **facts: Any) -> DependenceFacts:
    source = "names = os.listdir(root)" if lines else None
    described = {"settings": ("one", "another"), "batch": 0, "usual": batch(1), "other": batch(2)}
    return DependenceFacts(on, lines, source, **{**described, **facts})


def test_listing_order() -> None:
    settings = ("the names as listed", "the names reversed")
    found = dependence(LISTED, "/data/set.py:7", settings=settings)
    assert said(perturbed(found), config=W0) == [
        Finding(
            "listing-order",
            ERROR,
            (W0,),
            "/data/set.py:7",
            "expected the same batches in whatever order a directory lists its names, got others "
            "where /data/set.py:7 (`names = os.listdir(root)`) got them in reverse: batch 0 is the "
            "first that differs, at batch['x']: tensor [1] with the names as listed, tensor [2] "
            "with the names reversed",
            "Sort the listing, by names relative to its root.",
        )
    ]


def test_default_encoding() -> None:
    found = dependence(ENCODED, "/set.py:7", settings=("utf-8", "cp1252"), batch=3)
    assert said(perturbed(found), config=W0) == [
        Finding(
            "default-encoding",
            ERROR,
            (W0,),
            "/set.py:7",
            "expected the same batches under every default encoding, got others where /set.py:7 "
            "(`names = os.listdir(root)`) read as cp1252 instead of utf-8: batch 3 is the first "
            "that differs, at batch['x']: tensor [1] with utf-8, tensor [2] with cp1252",
            'Pass encoding="utf-8" wherever text is read or written.',
        )
    ]


def test_an_encoding_that_cannot_read_the_text() -> None:
    raised = error("iterate", "UnicodeDecodeError", "no such byte", "/set.py:7")
    found = dependence(ENCODED, "/set.py:7", usual=batch(1), other=None, error=raised)
    [finding] = said(perturbed(found), config=W0)
    assert finding.message.endswith(
        " read as another instead of one: batch 0 raises UnicodeDecodeError: no such byte at "
        "/set.py:7"
    )


def test_hash_order() -> None:
    found = dependence(HASHED, "/set.py:7", "/set.py:9", "/b.py:1", "/c.py:1")
    assert said(perturbed(found), config=W0) == [
        Finding(
            "hash-order",
            ERROR,
            (W0,),
            "/set.py:7",
            "expected the same batches under every hash seed, got others in two processes that "
            "differ in nothing else: batch 0 is the first that differs, at batch['x']: tensor [1] "
            "with one, tensor [2] with another; probable cause: /set.py:7 "
            "(`names = os.listdir(root)`) and /set.py:9 and /b.py:1",
            "Sort a set before you enumerate it. For a hash that stays use hashlib or zlib.crc32. "
            "PYTHONHASHSEED only hides the fault.",
        )
    ]


@pytest.mark.parametrize(
    ("facts", "culprit", "end"),
    [
        ({}, "batch['x']", "at batch['x']: tensor [1] with one, tensor [2] with another"),
        ({"usual": None, "batch": 2}, None, "there is no batch 2 with one"),
        ({"other": None, "batch": 2}, None, "there is no batch 2 with another"),
        (
            {"usual": batch(1, leaves=False), "other": batch(2, leaves=False)},
            None,
            "batch 0 is the first that differs",
        ),
    ],
)
def test_the_field_is_named_where_no_line_is_known(facts, culprit, end) -> None:
    [finding] = said(perturbed(dependence(HASHED, **facts)), config=W0)
    assert finding.culprit == culprit
    assert finding.message.endswith(end)


def test_each_dependence_is_a_finding_of_its_own() -> None:
    both = perturbed(dependence(LISTED, "/set.py:7"), dependence(ENCODED, "/set.py:8"))
    assert [one.code for one in said(both, config=W0)] == ["listing-order", "default-encoding"]
    assert said(perturbed(), config=W0) == []


def test_what_could_not_be_looked_at_is_not_judged() -> None:
    assert said(perturbed(notes=("no look",)), config=W0) == [NotJudged("no look")]


def test_it_is_told_once_a_matrix() -> None:
    found = perturbed(dependence(LISTED, "/set.py:7"), config=FORK)
    assert said(run(FORK), found) == []
    [finding] = said(run(FORK), found, matrix=(FORK, SPAWN))
    assert finding.configurations == (FORK,)
