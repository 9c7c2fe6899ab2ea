"""Reiteration: an epoch is whole after one that was left early, and beside another one."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_dataloader.checks.asked import Complete
from pytest_dataloader.checks.catalogue import BY_NAME
from pytest_dataloader.checks.evidence import Evidence, Question, shown_path
from pytest_dataloader.checks.finding import ERROR, WARNING, Finding, NotJudged
from pytest_dataloader.observe.facts import AgainFacts, ReiterateFacts, RunRequest


def needs(_asked: Complete, question: Question) -> list[RunRequest]:
    """Where the dataset lives on from epoch to epoch: in this process, or in persistent workers."""
    config = question.config
    lives_on = not config.has_workers or config.persistent_workers is not False
    return [question.reiterate()] if lives_on else []


def epochs_are_whole_again(evidence: Evidence, _asked: Complete) -> Iterator[Finding | NotJudged]:
    """What an iterator leaves behind is not seen by the next one, nor by another one."""
    run = evidence.get(evidence.question.reiterate())
    if run is None:
        return
    if not run.ok:
        yield NotJudged(
            f"epochs after an early break did not come to their end: {run.reason or 'a hang'}"
        )
    about = run.reiterated
    if about is None:
        return
    broken = [one for one in about.again if one.lost or one.more]
    if broken:
        yield _told(evidence, about, broken[0])


def _told(evidence: Evidence, about: ReiterateFacts, one: AgainFacts) -> Finding:
    code = "lost-samples" if one.lost else "duplicated-samples"
    counts = [f"{one.lost} never came"] if one.lost else []
    counts += [f"{one.more} too many"] if one.more else []
    why = f"; {about.kept[0]} keeps the position of an iterator" if about.kept else ""
    message = (
        f"expected each of the {about.samples} samples once {one.how}, got {one.samples} samples, "
        f"{' and '.join(counts)}{why}"
    )
    severity = WARNING if "at once" in one.how else ERROR
    return Finding(
        code,
        severity,
        (evidence.config,),
        _culprit(about),
        message,
        "Keep the position in a local variable of __iter__, not on the object: each call of iter() "
        "then begins at the start. " + BY_NAME[code].mend,
    )


def _culprit(about: ReiterateFacts) -> str:
    """The attribute that keeps the position, else who gives the iterator."""
    if about.kept:
        return about.kept[0]
    owners = ("dataset", "loader.batch_sampler", "loader.sampler")
    places = [about.places[f"{o}.__iter__"] for o in owners if f"{o}.__iter__" in about.places]
    return shown_path(places[0]) if places else "dataset.__iter__"


CHECKS = (epochs_are_whole_again,)
