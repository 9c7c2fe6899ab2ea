"""Portability: what works here works where the start method is another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pytest_dataloader.checks.catalogue import BY_NAME
from pytest_dataloader.checks.evidence import Evidence, Question
from pytest_dataloader.checks.finding import WARNING, Finding, NotJudged
from pytest_dataloader.matrix import LoaderConfig, lacking
from pytest_dataloader.observe.facts import RunFacts, RunRequest


def needs(_asked: object, question: Question) -> list[RunRequest]:
    """For fork, the base run of a start method of the matrix that does not fork."""
    other = _not_forked(question)
    return [question.base(other)] if other else []


def _not_forked(question: Question) -> LoaderConfig | None:
    """The same configuration under forkserver, or else spawn, if the matrix has it."""
    if question.config.start_method != "fork":
        return None
    for method in ("forkserver", "spawn"):
        config = replace(question.config, start_method=method)
        if config in question.matrix and not lacking(config):
            return config
    return None


def works_without_fork(evidence: Evidence, _asked: object) -> Iterator[Finding | NotJudged]:
    """What runs under fork also runs as Python 3.14 on Linux, macOS and Windows start workers.

    Source: Python's documentation of multiprocessing, "Contexts and start methods".
    """
    other = _not_forked(evidence.question)
    run = evidence.base
    if other is None or run is None or not run.ok:
        return
    there = evidence.get(evidence.question.base(other))
    if there is None or there.ok:
        return
    message = (
        f"expected what runs under fork to run under {other.start_method} too, the default of "
        f"Python 3.14 on Linux, but there it {_ended(there)}"
    )
    if other.start_method == "spawn":
        message = (
            "expected what runs under fork to run under spawn too, the default on Windows and "
            f"macOS, but there it {_ended(there)}"
        )
    culprit = there.unpicklable[0].path if there.unpicklable else "dataset"
    yield Finding(
        "will-break-on-forkserver",
        WARNING,
        (evidence.config,),
        culprit,
        message,
        BY_NAME["will-break-on-forkserver"].mend,
    )


def _ended(run: RunFacts) -> str:
    words = {"raised": "raises", "died": "dies", "hung": "hangs"}
    return f"{words.get(run.outcome, run.outcome)}: {run.reason}"


CHECKS = (works_without_fork,)
