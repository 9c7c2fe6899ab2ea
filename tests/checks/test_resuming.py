"""Resuming, judged on facts written by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from by_hand import FORK, batch, error, judged, question, run

from pytest_dataloader.checks.asked import Resumable
from pytest_dataloader.checks.catalogue import BY_NAME
from pytest_dataloader.checks.finding import ERROR, INFO, Finding, NotJudged
from pytest_dataloader.observe.facts import RAISED, ResumeFacts, StatefulFacts, UnpicklableFacts

ABOUT = StatefulFacts(loader=True, batches=6)
PLACES = {
    "loader.load_state_dict": "/code/loader.py:9",
    "loader.state_dict": "/code/loader.py:5",
    "dataset.__iter__": "/code/data.py:20",
    "dataset.load_state_dict": "/code/data.py:30",
    "loader.sampler.__iter__": "/code/sampler.py:7",
}
LOST = ResumeFacts((3,), 2, 5, batch(5.0), None)
WHOLE = ResumeFacts((3,), 3, next_batches=(6, 6))


def said(
    about: StatefulFacts | None, *resumed: ResumeFacts, if_stateful: bool = False, **facts: Any
) -> list[Finding | NotJudged]:
    asked, about_it = Resumable(if_stateful), question(FORK)
    made = {"request": about_it.resume(), "stateful": about, "resumed": resumed, **facts}
    return judged(asked, about_it, [run(FORK, **made)])


def told(*found: Finding | NotJudged) -> list[tuple[str, str, str]]:
    return [(f.severity, f.culprit, f.message) for f in found if isinstance(f, Finding)]


def only(about: StatefulFacts, *resumed: ResumeFacts) -> tuple[str, str, str]:
    [finding] = told(*said(about, *resumed))
    return finding


def test_what_goes_on_is_clean() -> None:
    assert said(ABOUT, ResumeFacts((0,), 6), WHOLE, ResumeFacts((3, 4), 2)) == []


def test_nothing_was_observed() -> None:
    assert judged(Resumable(), question(FORK), []) == []
    assert said(None) == []


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (LOST, "after 3 batches, got 2: batch 5 (from 0) does not come"),
        (
            ResumeFacts((3,), 4, 6, None, batch(0.0)),
            "after 3 batches, got 4: the epoch goes on after its end",
        ),
        (
            ResumeFacts((3,), 3, 4, batch(4.0), batch(1.0)),
            "after 3 batches, got another batch 4 (from 0): batch['x'] is [1.0] instead of [4.0]",
        ),
        (
            ResumeFacts((2, 3), 3, 4, batch(4.0, leaves=False), batch(1.0, leaves=False)),
            "after 2 and again after 3 batches, got another batch 4 (from 0)",
        ),
    ],
)
def test_the_rest_is_another_one(one: ResumeFacts, words: str) -> None:
    assert only(ABOUT, WHOLE, one) == (
        ERROR,
        "loader.load_state_dict",
        f"expected the last 3 of 6 batches when resumed {words}",
    )


@pytest.mark.parametrize(
    ("facts", "culprit"),
    [
        ({"places": PLACES, "forgotten": ("dataset.position",)}, "dataset.position"),
        ({"places": PLACES, "forgotten_generators": ("dataset.rng",)}, "dataset.rng"),
        ({"places": PLACES}, "/code/loader.py:9"),
        ({"places": {"loader.state_dict": "/code/loader.py:5"}}, "/code/loader.py:5"),
        (
            {"places": {k: PLACES[k] for k in list(PLACES)[2:]}, "parts": ("dataset",)},
            "/code/data.py:20",
        ),
        ({"places": {"loader.sampler.__iter__": "/code/sampler.py:7"}}, "/code/sampler.py:7"),
        ({}, "loader.load_state_dict"),
    ],
)
def test_who_is_to_blame(facts: dict[str, Any], culprit: str) -> None:
    [finding] = said(replace(ABOUT, **facts), LOST)
    assert isinstance(finding, Finding)
    assert (finding.code, finding.culprit) == ("not-resumable", culprit)
    assert finding.advice == BY_NAME["not-resumable"].mend
    assert finding.configurations == (FORK,)


def test_what_the_state_leaves_out_is_said() -> None:
    _severity, _culprit, message = only(replace(ABOUT, forgotten=("dataset.position",)), LOST)
    assert message.endswith(
        "; dataset.position is not the same after load_state_dict as it was at state_dict"
    )


def test_random_numbers_alone_are_information() -> None:
    about = replace(ABOUT, random_only=True)
    words = (
        "expected the random numbers of the batches after an interruption as without one, got "
        "others for the right samples: the state of the generators is not in the loader's state, "
        "and no library promises that it is"
    )
    assert only(about, LOST) == (INFO, "loader.state_dict", words)
    held = replace(about, generators=("dataset.rng",))
    assert only(held, LOST) == (INFO, "dataset.rng", words)
    claimed = replace(held, forgotten_generators=("dataset.rng",))
    assert only(claimed, LOST)[:2] == (ERROR, "dataset.rng")


@pytest.mark.parametrize(
    ("one", "severity", "words"),
    [
        (replace(WHOLE, next_batches=(6, 3), next_differs=True), ERROR, "got 3 batches"),
        (
            replace(WHOLE, next_differs=True, epochs_alike=True),
            ERROR,
            "got 6 batches, but others",
        ),
    ],
)
def test_the_next_epoch_is_another_one(one: ResumeFacts, severity: str, words: str) -> None:
    assert only(ABOUT, one) == (
        severity,
        "loader.load_state_dict",
        f"expected 6 batches in the epoch after the one that was resumed after 3 batches, {words}",
    )


def test_another_order_of_the_next_epoch_is_information() -> None:
    assert only(ABOUT, replace(WHOLE, next_differs=True)) == (
        INFO,
        "loader.state_dict",
        (
            "expected the epoch after the resumed one as without an interruption, got as many "
            "batches in another order or with other random numbers"
        ),
    )


def test_a_state_that_cannot_be_saved() -> None:
    part = UnpicklableFacts("state['lock']", "a lock", "TypeError: cannot pickle it")
    about = replace(ABOUT, unpicklable=(part,), places=PLACES)
    assert only(about) == (
        ERROR,
        "/code/loader.py:5",
        (
            "expected a state that can be saved, got state['lock'], a lock: TypeError: cannot "
            "pickle it"
        ),
    )


def test_to_ask_for_the_state_changes_what_comes() -> None:
    assert only(replace(ABOUT, disturbed=True, repeatable=False)) == (
        ERROR,
        "loader.state_dict",
        (
            "expected the batches of an epoch whether or not state_dict() is called in it, got "
            "others with it"
        ),
    )


def test_a_state_that_is_not_taken() -> None:
    facts = {"outcome": RAISED, "reason": "KeyError: 'x'"}
    message = "expected load_state_dict to take the state that state_dict gave, got KeyError: 'x'"
    where = error("resume", "KeyError", "'x'", "/code/loader.py:11")
    assert told(*said(ABOUT, error=where, **facts)) == [(ERROR, "/code/loader.py:11", message)]
    nowhere = error("resume", "KeyError", "'x'")
    assert told(*said(ABOUT, error=nowhere, **facts)) == [
        (ERROR, "loader.load_state_dict", message)
    ]


@pytest.mark.parametrize(
    ("about", "reason"),
    [
        (
            StatefulFacts(loader=False),
            (
                "the loader has no state_dict and load_state_dict, so there is no state to go on "
                "from; torchdata's StatefulDataLoader has them"
            ),
        ),
        (
            replace(ABOUT, in_order=False),
            "with in_order=False the rest of an epoch comes in another order anyway",
        ),
        (
            replace(ABOUT, repeatable=False),
            (
                "two uninterrupted epochs of the same seed differ, so that a resumed one cannot be "
                "compared"
            ),
        ),
    ],
)
def test_what_is_not_judged(about: StatefulFacts, reason: str) -> None:
    assert said(about) == [NotJudged(reason)]


def test_a_loader_without_a_state_is_passed_over_if_that_is_asked() -> None:
    assert said(StatefulFacts(loader=False), if_stateful=True) == []


def test_a_run_that_fails_elsewhere_is_not_judged() -> None:
    failed = error("iterate", "ValueError", "bad")
    facts = {"outcome": RAISED, "reason": "ValueError: bad", "error": failed}
    assert said(ABOUT, **facts) == [
        NotJudged("a run that is to be resumed did not come to its end: ValueError: bad")
    ]
