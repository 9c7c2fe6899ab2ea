"""Spawning: importing what workers import starts no process, and a script does not start itself."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_dataloader.checks.asked import NoRecursiveSpawn
from pytest_dataloader.checks.catalogue import BY_NAME
from pytest_dataloader.checks.evidence import (
    Evidence,
    Question,
    names_too_many_files,
    place,
    quoted,
    shown_path,
)
from pytest_dataloader.checks.finding import ERROR, INFO, WARNING, Finding, NotJudged
from pytest_dataloader.observe.facts import DIED, HUNG, OK, EffectFacts, RunFacts, RunRequest

SLOW_IMPORT_S = 1.0


def needs(asked: NoRecursiveSpawn, question: Question) -> list[RunRequest]:
    """The script under this start method, or the imports of the pipeline's modules."""
    if asked.script is None:
        fresh = question.config.start_method not in (None, "fork")
        return [question.imports()] if fresh else []
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
        f"expected {shown_path(script)} to start its workers once, but each {method} worker "
        f"imports it and starts workers again at {where}; {ended}"
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
    if names_too_many_files(error):
        code = "too-many-files"
    told = f": {quoted(error)}" if error is not None else _last_words(run)
    message = (
        f"expected {shown_path(script)} to end with exit code 0 under "
        f"{evidence.config.start_method}, but {run.reason}{told}"
    )
    culprit = place(error) if error is not None else shown_path(script)
    return Finding(code, ERROR, (evidence.config,), culprit, message, BY_NAME[code].mend)


def _last_words(run: RunFacts) -> str:
    """What a script without a traceback wrote last on standard error, such as a usage error."""
    lines = run.stderr_tail.split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"; its standard error ends: {last[:200]}" if last else ""


def imports_only_define(
    evidence: Evidence, asked: NoRecursiveSpawn
) -> Iterator[Finding | NotJudged]:
    """Importing the user's modules in a fresh process starts no process and has no other effect."""
    run = evidence.get(evidence.question.imports())
    if asked.script is not None or run is None:
        return
    if run.outcome != OK:
        yield NotJudged(f"the imports of the workers could not be observed: {run.reason}")
    for module in run.imports:
        for effect in module.effects:
            starts = effect.kind == "starts a process"
            yield (_starts if starts else _has_effect)(evidence, module.module, effect)


def _starts(evidence: Evidence, module: str, effect: EffectFacts) -> Finding:
    where = shown_path(effect.where)
    message = (
        f"expected importing {module} to start no process, but it does ({effect.detail}) at "
        f"{where}; every {evidence.config.start_method} worker imports it"
    )
    return _finding("recursive-start", ERROR, evidence, where, message)


def _has_effect(evidence: Evidence, module: str, effect: EffectFacts) -> Finding:
    where = shown_path(effect.where)
    message = (
        f"expected importing {module} only to define things, but it {effect.kind} "
        f"({effect.detail}) at {where}; every {evidence.config.start_method} worker does so again"
    )
    severity = INFO if effect.kind == "prints" else WARNING
    return _finding("import-side-effect", severity, evidence, where, message)


def imports_are_quick(evidence: Evidence, asked: NoRecursiveSpawn) -> Iterator[Finding | NotJudged]:
    """The user's modules themselves, without the libraries they import, are imported quickly."""
    run = evidence.get(evidence.question.imports())
    if asked.script is not None or run is None:
        return
    own = {module.module: module.own_s for module in run.imports}
    for module in run.imports:
        own |= {name: s for name, s in module.imports if name in own}
    for name, seconds in own.items():
        if seconds > SLOW_IMPORT_S:
            message = (
                f"expected importing {name} to take at most {SLOW_IMPORT_S:g} s besides the "
                f"libraries it imports, but it takes {seconds:.2g} s, in each "
                f"{evidence.config.start_method} worker again"
            )
            yield _finding("slow-import", WARNING, evidence, name, message)


def _finding(code: str, severity: str, evidence: Evidence, culprit: str, message: str) -> Finding:
    return Finding(code, severity, (evidence.config,), culprit, message, BY_NAME[code].mend)


CHECKS = (script_ends, imports_only_define, imports_are_quick)
