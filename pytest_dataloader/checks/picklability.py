"""Picklability: what travels to a worker travels, can be rebuilt there, and is not too heavy."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pytest_dataloader.checks.asked import Picklable
from pytest_dataloader.checks.catalogue import BY_NAME
from pytest_dataloader.checks.evidence import Evidence, Question, place, quoted, shown_path
from pytest_dataloader.checks.finding import ERROR, INFO, WARNING, Finding, NotJudged
from pytest_dataloader.observe.facts import (
    DIED,
    OK,
    RAISED,
    ErrorFacts,
    RunFacts,
    RunRequest,
    UnpicklableFacts,
)

HEAVY_BYTES = 8 * 1024 * 1024


def needs(_asked: Picklable, question: Question) -> list[RunRequest]:
    """The base run, as the test of what travels is a start; and the reference to compare with."""
    reference = question.reference
    return [question.base(), *([question.base(reference)] if reference else [])]


def start_failures(evidence: Evidence, run: RunFacts) -> Iterator[Finding]:
    """Findings of a run whose workers could not be given what they need; none for others."""
    if run.outcome == RAISED and run.error is not None and run.error.stage == "start":
        yield from _refused(evidence, run, run.error)
    elif (
        run.outcome == DIED and run.error is not None and run.error.stage in ("unpickle", "import")
    ):
        yield _not_rebuilt(evidence, run.error)


def _refused(evidence: Evidence, run: RunFacts, error: ErrorFacts) -> Iterator[Finding]:
    for part in run.unpicklable:
        yield _context_bound(evidence, part) if part.context else _unpicklable(evidence, part)
    if not run.unpicklable and _while_pickling(error):
        message = f"expected the dataset to travel to the worker, got {error.type}: {error.message}"
        yield _error("unpicklable", evidence, "dataset", message, BY_NAME["unpicklable"].mend)


def _while_pickling(error: ErrorFacts) -> bool:
    return "in dump\n" in error.traceback and "reduction.py" in error.traceback


def _unpicklable(evidence: Evidence, part: UnpicklableFacts) -> Finding:
    defined = f" (defined at {shown_path(part.defined)})" if part.defined else ""
    message = (
        f"expected everything to travel to a {evidence.config.start_method} worker, but "
        f"{part.path} is {part.kind}{defined}: {part.error}"
    )
    return _error(
        "unpicklable", evidence, part.path, message, _sentence(part.remedy, "unpicklable")
    )


def _context_bound(evidence: Evidence, part: UnpicklableFacts) -> Finding:
    method = evidence.config.start_method
    message = (
        f"expected primitives of the {method} context, but {part.path} is {part.kind} made in a "
        f"fork context: {part.error}"
    )
    advice = (
        f"Make it with multiprocessing.get_context({method!r}), the context of the loader's own "
        "start method."
    )
    return _error("context-bound", evidence, part.path, message, advice)


def _sentence(remedy: str | None, code: str) -> str:
    if not remedy:
        return BY_NAME[code].mend
    return remedy[0].upper() + remedy[1:] + "."


def _not_rebuilt(evidence: Evidence, error: ErrorFacts) -> Finding:
    method = evidence.config.start_method
    text = error.message
    main = "__main__" in text or "__mp_main__" in text
    code = "main-only-class" if main else "unpickle-fails"
    message = (
        f"expected the dataset to be rebuilt in a {method} worker, but unpickling it there raised "
        f"{quoted(error)}{_reason(error)}"
    )
    return _error(
        code, evidence, place(error) if _own(error) else _named(text), message, BY_NAME[code].mend
    )


def _own(error: ErrorFacts) -> bool:
    from pytest_dataloader.observe.errors import belongs_to_user

    return error.file is not None and belongs_to_user(error.file)


def _named(message: str) -> str | None:
    """The name that an import or attribute error quotes."""
    quoted_name = re.search(r"(?<!\w)'([^']+)'", message)  # not the apostrophe of "Can't"
    return quoted_name[1] if quoted_name else None


def _reason(error: ErrorFacts) -> str:
    if error.type == "ModuleNotFoundError":
        return (
            "; the parent has this module in sys.modules, but no folder on sys.path leads to it "
            "(loaded from a path, or pytest --import-mode=importlib)"
        )
    return ""


def travels(evidence: Evidence, _asked: Picklable) -> Iterator[Finding | NotJudged]:
    """Workers start and can rebuild what they are given."""
    for run in evidence.contents:
        yield from start_failures(evidence, run)


def arrives_unchanged(evidence: Evidence, _asked: Picklable) -> Iterator[Finding | NotJudged]:
    """Each field of the dataset is in the worker what it is in the test process.

    A difference is an error where the batches differ too; else the class may well drop the field
    on purpose, which is information.
    """
    run = evidence.base
    for change in run.world if run is not None else ():
        if not change.path.startswith(("dataset", "loader")):
            continue
        matters = change.rank <= 1 and _content_differs(evidence)
        if not matters and (change.lost or change.rank > 1):
            continue
        message = (
            f"expected {change.path} to arrive as it was sent, but it is {change.parent} in the "
            f"test process and {change.child} in a {evidence.config.start_method} worker"
        )
        yield Finding(
            "arrives-changed",
            ERROR if matters else INFO,
            (evidence.config,),
            change.path,
            message,
            BY_NAME["arrives-changed"].mend,
        )


def _content_differs(evidence: Evidence) -> bool:
    """Whether the batches differ from those of a worker that was forked, or of the test process."""
    run = evidence.base
    reference = evidence.question.reference
    other = evidence.get(evidence.question.base(reference)) if reference else None
    if run is None or other is None or not other.ok:
        return False
    if not run.ok:
        return run.outcome == RAISED
    return [e.batch_multiset for e in run.epochs] != [e.batch_multiset for e in other.epochs]


def too_heavy(evidence: Evidence, asked: Picklable) -> Iterator[Finding | NotJudged]:
    """More bytes of pickle for each worker than the budget, or than is sensible."""
    run = evidence.base
    if run is None or run.outcome != OK or run.travel_bytes is None:
        return
    limit = asked.max_bytes if asked.max_bytes is not None else HEAVY_BYTES
    if run.travel_bytes <= limit:
        return
    culprit = run.heaviest[0][0] if run.heaviest else "dataset"
    shares = ", ".join(f"{path}: {size:,} bytes" for path, size in run.heaviest[:3])
    detail = f" ({shares})" if shares else ""
    message = (
        f"at most {limit:,} bytes should travel to each worker, "
        f"but {run.travel_bytes:,} bytes do{detail}"
    )
    severity = ERROR if asked.max_bytes is not None else WARNING
    yield Finding(
        "heavy-pickle", severity, (evidence.config,), culprit, message, BY_NAME["heavy-pickle"].mend
    )
    if run.travel_bytes > HEAVY_BYTES:
        yield _copied(evidence, run, culprit)


def _copied(evidence: Evidence, run: RunFacts, culprit: str) -> Finding:
    """What travels by value is a copy of its own in each worker."""
    workers = len(run.workers) or evidence.config.num_workers or 1
    memory = run.worker_unique_bytes
    beside = f" (unique memory of a worker: {memory / 2**20:,.0f} MiB)" if memory else ""
    message = (
        f"expected workers to share what is as large as {culprit}, but each of the {workers} "
        f"{evidence.config.start_method} workers holds a copy of its own, unpickled from "
        f"{run.travel_bytes:,} bytes{beside}"
    )
    return Finding(
        "copied-per-worker",
        WARNING,
        (evidence.config,),
        culprit,
        message,
        BY_NAME["copied-per-worker"].mend,
    )


def _error(
    code: str, evidence: Evidence, culprit: str | None, message: str, advice: str
) -> Finding:
    return Finding(code, ERROR, (evidence.config,), culprit, message, advice)


CHECKS = (travels, arrives_unchanged, too_heavy)
