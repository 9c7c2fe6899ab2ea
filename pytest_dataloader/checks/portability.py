"""Portability: what works here works, and says the same, on other machines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pytest_dataloader.checks.catalogue import BY_NAME
from pytest_dataloader.checks.determinism import differing_leaf
from pytest_dataloader.checks.evidence import Evidence, Question, quoted, shown_path
from pytest_dataloader.checks.finding import ERROR, WARNING, Finding, NotJudged
from pytest_dataloader.matrix import LoaderConfig, lacking
from pytest_dataloader.observe.facts import (
    ENCODED,
    HASHED,
    LISTED,
    DependenceFacts,
    RunFacts,
    RunRequest,
)


def needs(_asked: object, question: Question) -> list[RunRequest]:
    """Once a matrix the perturbed pass; for fork, the base run of a method that does not fork."""
    requests = [question.perturbed()] if _judged_here(question) else []
    other = _not_forked(question)
    return [*requests, question.base(other)] if other else requests


def _judged_here(question: Question) -> bool:
    """Whether what does not depend on workers is told of this configuration: the first without."""
    usable = [config for config in question.matrix if not lacking(config)]
    alone = [config for config in usable if not config.has_workers]
    return question.config == next(iter(alone or usable), None)


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


def same_content_elsewhere(evidence: Evidence, _asked: object) -> Iterator[Finding | NotJudged]:
    """The same content whatever a directory's order, the default encoding and the hash seed.

    Sources: Python's documentation of os.listdir ("arbitrary order"), open() ("platform
    dependent") and PYTHONHASHSEED.
    """
    run = evidence.get(evidence.question.perturbed())
    if run is None or not _judged_here(evidence.question):
        return
    yield from map(NotJudged, run.notes)
    for found in run.dependences:
        code, limit, fact = _WORDS[found.on](found)
        message = f"expected the same batches {limit}, got others {fact}: {_difference(found)}"
        if found.on == HASHED and found.lines:
            message += f"; probable cause: {_lines(found)}"
        culprit = shown_path(found.lines[0]) if found.lines else _field(found)
        yield Finding(code, ERROR, (evidence.config,), culprit, message, BY_NAME[code].mend)


def _listed(found: DependenceFacts) -> tuple[str, str, str]:
    fact = f"where {_lines(found)} got them in reverse"
    return "listing-order", "in whatever order a directory lists its names", fact


def _encoded(found: DependenceFacts) -> tuple[str, str, str]:
    usual, other = found.settings
    fact = f"where {_lines(found)} read as {other} instead of {usual}"
    return "default-encoding", "under every default encoding", fact


def _hashed(_found: DependenceFacts) -> tuple[str, str, str]:
    fact = "in two processes that differ in nothing else"
    return "hash-order", "under every hash seed", fact


_WORDS = {LISTED: _listed, ENCODED: _encoded, HASHED: _hashed}


def _lines(found: DependenceFacts) -> str:
    """The lines in words: the first with its source, the others by their places."""
    first, *others = map(shown_path, found.lines)
    source = f" (`{found.source}`)" if found.source else ""
    return f"{first}{source}" + "".join(f" and {place}" for place in others[:2])


def _difference(found: DependenceFacts) -> str:
    """Where the content differs first, and what it is in both settings."""
    if found.error is not None:
        return f"batch {found.batch} raises {quoted(found.error)}"
    if found.usual is None or found.other is None:
        missing = found.settings[0 if found.usual is None else 1]
        return f"there is no batch {found.batch} with {missing}"
    text = f"batch {found.batch} is the first that differs"
    leaf = differing_leaf(found.usual, found.other)
    if leaf is None:
        return text
    sides = [
        f"{'nothing' if side is None else f'{side.kind} {side.preview}'} with {setting}"
        for side, setting in zip(leaf, found.settings, strict=True)
    ]
    return f"{text}, at {_field(found)}: {', '.join(sides)}"


def _field(found: DependenceFacts) -> str | None:
    """The field of the batch that differs first."""
    if found.usual is None or found.other is None:
        return None
    leaf = differing_leaf(found.usual, found.other)
    return next((side.path for side in leaf or () if side is not None), None)


CHECKS = (works_without_fork, same_content_elsewhere)
