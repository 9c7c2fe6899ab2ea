"""Spawning: importing what workers import starts no process, and a script does not start itself."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_dataloader.checks.asked import NoRecursiveSpawn
from pytest_dataloader.checks.catalogue import BY_NAME
from pytest_dataloader.checks.evidence import Evidence, Question, place, quoted, shown_path
from pytest_dataloader.checks.finding import ERROR, Finding, NotJudged
from pytest_dataloader.observe.errors import belongs_to_user
from pytest_dataloader.observe.facts import DIED, HUNG, OK, RunFacts, RunRequest


def needs(asked: NoRecursiveSpawn, question: Question) -> list[RunRequest]:
    """The script under this start method, or the imports of the pipeline's modules."""
    if asked.script is None:
        return [question.imports()] if question.config.has_workers else []
    if question.config.start_method is None:
        return []
    return [question.script(asked.script, asked.args)]


def script_ends(evidence: Evidence, asked: NoRecursiveSpawn) -> Iterator[Finding | NotJudged]:
    """The script, run as ``__main__``, trains to its end and starts nothing by being imported."""
    if asked.script is None:
        return
    run = evidence.get(evidence.question.script(asked.script, asked.args))
    if run is None or run.outcome == OK:
        return
    if run.recursive_at is not None or "processes, more than" in (run.reason or ""):
        yield _recursive(evidence, run, asked.script)
    else:
        yield _failed(evidence, run, asked.script)


def _recursive(evidence: Evidence, run: RunFacts, script: str) -> Finding:
    where = shown_path(run.recursive_at) if run.recursive_at else shown_path(script)
    method = evidence.config.start_method
    ended = run.reason or "it failed"
    message = (
        f"expected {shown_path(script)} to start its workers once, but each {method} worker imports "
        f"it and starts workers again at {where}; {ended}"
    )
    return Finding(
        "recursive-start",
        ERROR,
        (evidence.config,),
        where,
        message,
        BY_NAME["recursive-start"].mend,
    )


def _failed(evidence: Evidence, run: RunFacts, script: str) -> Finding:
    code = {DIED: "worker-died", HUNG: "hang"}.get(run.outcome, "raises")
    error = run.error
    told = f": {quoted(error)}" if error is not None else ""
    message = (
        f"expected {shown_path(script)} to end with exit code 0 under {evidence.config.start_method}, "
        f"but {run.reason}{told}"
    )
    culprit = place(error) if error is not None else shown_path(script)
    return Finding(code, ERROR, (evidence.config,), culprit, message, BY_NAME[code].mend)


def imports_start_nothing(evidence: Evidence, asked: NoRecursiveSpawn) -> Iterator[Finding | NotJudged]:
    """Importing the user's modules in a fresh process starts no process."""
    run = evidence.get(evidence.question.imports())
    if asked.script is not None or run is None:
        return
    if run.outcome != OK:
        yield NotJudged(f"the imports of the workers could not be observed: {run.reason}")
    for module in run.imports:
        for start in module.starts:
            event, _, where = start.rpartition(" at ")
            if belongs_to_user(where.rpartition(":")[0]):
                yield _starts(evidence, module.module, event, shown_path(where))


def _starts(evidence: Evidence, module: str, event: str, where: str) -> Finding:
    message = (
        f"expected importing {module} to start no process, but it does ({event}) at {where}; every "
        "spawned worker imports it"
    )
    return Finding(
        "recursive-start",
        ERROR,
        (evidence.config,),
        where,
        message,
        BY_NAME["recursive-start"].mend,
    )


CHECKS = (script_ends, imports_start_nothing)
