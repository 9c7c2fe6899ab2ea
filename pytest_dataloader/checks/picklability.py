"""Picklability: what travels to a worker travels, can be rebuilt there, and is not too heavy."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_dataloader.checks.asked import Picklable
from pytest_dataloader.checks.catalogue import BY_NAME
from pytest_dataloader.checks.evidence import Evidence, Question, place, quoted, shown_path
from pytest_dataloader.checks.finding import ERROR, WARNING, Finding, NotJudged
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
    """The base run: the test of what travels is a start."""
    return [question.base()]


def start_failures(evidence: Evidence, run: RunFacts) -> Iterator[Finding]:
    """Findings of a run whose workers could not be given what they need; none for others."""
    if run.outcome == RAISED and run.error is not None and run.error.stage == "start":
        yield from _refused(evidence, run, run.error)
    elif run.outcome == DIED and run.error is not None and run.error.stage in ("unpickle", "import"):
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
        f"expected everything to travel to a {evidence.config.start_method} worker, but {part.path} "
        f"is {part.kind}{defined}: {part.error}"
    )
    return _error("unpicklable", evidence, part.path, message, _sentence(part.remedy, "unpicklable"))


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
    return _error(code, evidence, place(error) if _own(error) else _named(text), message, BY_NAME[code].mend)


def _own(error: ErrorFacts) -> bool:
    from pytest_dataloader.observe.errors import belongs_to_user

    return error.file is not None and belongs_to_user(error.file)


def _named(message: str) -> str | None:
    """The name that an import or attribute error quotes."""
    parts = message.split("'")
    return parts[1] if len(parts) > 2 else None


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
        f"at most {limit:,} bytes should travel to each worker, but {run.travel_bytes:,} bytes do{detail}"
    )
    severity = ERROR if asked.max_bytes is not None else WARNING
    yield Finding(
        "heavy-pickle", severity, (evidence.config,), culprit, message, BY_NAME["heavy-pickle"].mend
    )


def _error(code: str, evidence: Evidence, culprit: str | None, message: str, advice: str) -> Finding:
    return Finding(code, ERROR, (evidence.config,), culprit, message, advice)


CHECKS = (travels, too_heavy)
