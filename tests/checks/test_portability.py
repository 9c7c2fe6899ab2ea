"""Portability: what is said of a pipeline that only runs where workers are forked."""

from __future__ import annotations

import pytest
from by_hand import FORK, SPAWN, W0, judged, question, run

from pytest_dataloader.checks import portability
from pytest_dataloader.checks.asked import Portable
from pytest_dataloader.checks.finding import WARNING, Finding
from pytest_dataloader.matrix import LoaderConfig
from pytest_dataloader.observe.facts import DIED, HUNG, RAISED, RunRequest, UnpicklableFacts

FORKSERVER = LoaderConfig("forkserver", 2)
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
        (FORK, (FORK, SPAWN, FORKSERVER), [FORKSERVER]),
        (FORK, (FORK, SPAWN), [SPAWN]),
        (FORK, (W0, FORK, LoaderConfig("spawn", 4)), []),
        (SPAWN, (FORK, SPAWN, FORKSERVER), []),
        (W0, (W0, FORK, SPAWN), []),
    ],
)
def test_what_is_run(config, matrix, needed) -> None:
    requests = [RunRequest(one) for one in needed]
    assert portability.needs(Portable(), question(config, matrix=matrix)) == requests


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
