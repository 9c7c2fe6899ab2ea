"""Resuming: a loader with a state goes on from it exactly where it was interrupted."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_dataloader.checks.asked import Resumable
from pytest_dataloader.checks.catalogue import BY_NAME
from pytest_dataloader.checks.evidence import Evidence, Question, shown_path
from pytest_dataloader.checks.finding import ERROR, INFO, Finding, NotJudged
from pytest_dataloader.observe.facts import (
    BatchFacts,
    ResumeFacts,
    RunFacts,
    RunRequest,
    StatefulFacts,
)

_NO_STATE = (
    "the loader has no state_dict and load_state_dict, so there is no state to go on from; "
    "torchdata's StatefulDataLoader has them"
)
_NO_ORDER = "with in_order=False the rest of an epoch comes in another order anyway"
_NOT_REPEATABLE = (
    "two uninterrupted epochs of the same seed differ, so that a resumed one cannot be compared"
)
_AUGMENTED = (
    "expected the random numbers of the batches after an interruption as without one, got others "
    "for the right samples: the state of the generators is not in the loader's state, and no "
    "library promises that it is"
)
_OTHER_NEXT = (
    "expected the epoch after the resumed one as without an interruption, got as many batches in "
    "another order or with other random numbers"
)


def needs(_asked: Resumable, question: Question) -> list[RunRequest]:
    """A run that is interrupted and resumed."""
    return [question.resume()]


def can_be_judged(evidence: Evidence, asked: Resumable) -> Iterator[Finding | NotJudged]:
    """There is a state, batches have an order, and uninterrupted epochs are the same."""
    run = evidence.get(evidence.question.resume())
    if run is None or run.stateful is None:
        return
    if not run.ok:
        yield from _failed(evidence, run)
    elif not run.stateful.loader:
        yield from () if asked.if_stateful else (NotJudged(_NO_STATE),)
    elif not run.stateful.in_order:
        yield NotJudged(_NO_ORDER)
    elif not run.stateful.repeatable and not run.stateful.disturbed:
        yield NotJudged(_NOT_REPEATABLE)


def _failed(evidence: Evidence, run: RunFacts) -> Iterator[Finding | NotJudged]:
    """Only what a state is given to and cannot go on from is told here."""
    error = run.error
    if error is None or error.stage != "resume" or run.stateful is None:
        yield NotJudged(f"a run that is to be resumed did not come to its end: {run.reason}")
        return
    where = shown_path(error.where) if error.where else None
    message = f"expected load_state_dict to take the state that state_dict gave, got {run.reason}"
    culprit = where or _place(run.stateful, "load_state_dict")
    yield _finding(ERROR, evidence, culprit, message)


def goes_on_where_it_stopped(evidence: Evidence, _asked: Resumable) -> Iterator[Finding]:
    """The batches after an interruption are those that come without one."""
    run = _judged(evidence)
    broken = [one for one in run.resumed if one.differs_at is not None] if run else []
    if run is None or run.stateful is None or not broken:
        return
    about = run.stateful
    if about.random_only and not about.forgotten_generators:
        culprit = about.generators[0] if about.generators else "loader.state_dict"
        yield _finding(INFO, evidence, culprit, _AUGMENTED)
        return
    message = f"{_told(broken[0], about)}{_why(about)}"
    yield _finding(ERROR, evidence, _culprit(about), message)


def state_can_be_saved(evidence: Evidence, _asked: Resumable) -> Iterator[Finding]:
    """A state is there to be written to a file."""
    run = evidence.get(evidence.question.resume())
    about = run.stateful if run is not None else None
    if about is None or not about.unpicklable:
        return
    part = about.unpicklable[0]
    message = f"expected a state that can be saved, got {part.path}, {part.kind}: {part.error}"
    yield _finding(ERROR, evidence, _place(about, "state_dict"), message)


def state_may_be_asked_for(evidence: Evidence, _asked: Resumable) -> Iterator[Finding]:
    """To ask for the state changes nothing."""
    run = evidence.get(evidence.question.resume())
    about = run.stateful if run is not None else None
    if about is not None and about.disturbed:
        message = (
            "expected the batches of an epoch whether or not state_dict() is called in it, got "
            "others with it"
        )
        yield _finding(ERROR, evidence, _place(about, "state_dict"), message)


def next_epoch_is_whole(evidence: Evidence, _asked: Resumable) -> Iterator[Finding]:
    """The epoch after the resumed one is as it would have been."""
    run = _judged(evidence)
    if run is None or run.stateful is None:
        return
    about = run.stateful
    if any(one.differs_at is not None for one in run.resumed):
        return
    for one in run.resumed:
        usual, now = one.next_batches or (0, 0)
        if usual == now and not (one.next_differs and one.epochs_alike):
            continue
        got = f"{now} batches" if usual != now else f"{now} batches, but others"
        message = (
            f"expected {usual} batches in the epoch after the one that was resumed {_after(one)}, "
            f"got {got}"
        )
        yield _finding(ERROR, evidence, _place(about, "load_state_dict"), message)
        return
    if any(one.next_differs for one in run.resumed):
        yield _finding(INFO, evidence, "loader.state_dict", _OTHER_NEXT)


def _judged(evidence: Evidence) -> RunFacts | None:
    run = evidence.get(evidence.question.resume())
    return run if run is not None and run.ok and run.stateful is not None else None


def _after(one: ResumeFacts) -> str:
    """When it was interrupted, in words."""
    return f"after {' and again after '.join(map(str, one.interrupted))} batches"


def _told(one: ResumeFacts, about: StatefulFacts) -> str:
    remain = about.batches - one.interrupted[-1]
    limit = f"expected the last {remain} of {about.batches} batches when resumed {_after(one)}"
    number = one.differs_at
    if one.other is None:
        return f"{limit}, got {one.came}: batch {number} (from 0) does not come"
    if one.usual is None:
        return f"{limit}, got {one.came}: the epoch goes on after its end"
    return f"{limit}, got another batch {number} (from 0){_content(one.usual, one.other)}"


def _content(usual: BatchFacts, other: BatchFacts) -> str:
    """The first part that differs, in words."""
    for one, two in zip(usual.leaves, other.leaves, strict=False):
        if one.digest != two.digest:
            return f": {one.path} is {two.preview} instead of {one.preview}"
    return ""


def _why(about: StatefulFacts) -> str:
    left_out = about.forgotten or about.forgotten_generators
    if not left_out:
        return ""
    return f"; {left_out[0]} is not the same after load_state_dict as it was at state_dict"


def _culprit(about: StatefulFacts) -> str:
    """What the state leaves out, or who does not begin from it."""
    left_out = about.forgotten or about.forgotten_generators
    if left_out:
        return left_out[0]
    named = [f"loader.{name}" for name in ("load_state_dict", "state_dict")]
    named += [f"{part}.{name}" for part in about.parts for name in ("__iter__", "load_state_dict")]
    named += [f"{part}.__iter__" for part in ("dataset", "loader.batch_sampler", "loader.sampler")]
    found = [about.places[name] for name in named if name in about.places]
    return shown_path(found[0]) if found else "loader.load_state_dict"


def _place(about: StatefulFacts, method: str) -> str:
    """Where the user's method stands: the loader's, else that of a part."""
    for owner in ("loader", *about.parts):
        if f"{owner}.{method}" in about.places:
            return shown_path(about.places[f"{owner}.{method}"])
    return f"loader.{method}"


def _finding(severity: str, evidence: Evidence, culprit: str, message: str) -> Finding:
    mend = BY_NAME["not-resumable"].mend
    return Finding("not-resumable", severity, (evidence.config,), culprit, message, mend)


CHECKS = (
    can_be_judged,
    goes_on_where_it_stopped,
    state_can_be_saved,
    state_may_be_asked_for,
    next_epoch_is_whole,
)
