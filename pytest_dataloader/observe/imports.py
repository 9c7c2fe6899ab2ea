"""Imports: which modules a worker imports, and what importing them does in a fresh process."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from typing import Any

import psutil

from pytest_dataloader.observe import errors, importprobe, processes
from pytest_dataloader.observe.bench import Bench
from pytest_dataloader.observe.facts import (
    DIED,
    HUNG,
    IN_PROCESS,
    OK,
    EffectFacts,
    ImportFacts,
    RunFacts,
)


def modules_of(loader: Any, travelling: Iterable[str] = ()) -> tuple[str, ...]:
    """The user's modules that a worker must import to unpickle what travels to it.

    ``travelling`` are those that a look at the pickle has found; without one, the classes that
    a loader shows are asked.
    """
    found: dict[str, None] = dict.fromkeys(n for n in travelling if _is_users(n))
    values = [loader.dataset, loader.collate_fn, loader.worker_init_fn]
    values += [getattr(loader.dataset, name, None) for name in ("dataset", "transform")]
    for value in values:
        kind = value if hasattr(value, "__module__") else type(value)
        name = getattr(kind, "__module__", None) or ""
        if _is_users(name):
            found[name] = None
    return tuple(found)


def _is_users(name: str) -> bool:
    file: Any = getattr(sys.modules.get(name), "__file__", None)
    return name != "__main__" and bool(file) and errors.belongs_to_user(os.fspath(file))


def run_imports(bench: Bench) -> RunFacts:
    """Import the modules that a worker imports, in a fresh process, and note what that does."""
    timeout_s = bench.tools.timeout_s
    process = _probe(bench)
    with bench.tools.tap.during():
        process.start()
        process.join(timeout_s)
        hung = process.is_alive()
        with contextlib.suppress(ProcessLookupError):
            end_with_children(process)
        stderr = bench.tools.tap.text()
    imports = tuple(_import_facts(note) for note in bench.told if note["kind"] == "import")
    outcome, reason = OK, None
    if hung:
        outcome, reason = HUNG, f"importing takes longer than {timeout_s:g} s"
    elif len(imports) < len(_modules(bench)):
        outcome, reason = DIED, f"the process that imports ended with exit code {process.exitcode}"
    return RunFacts(
        request=bench.request,
        start=IN_PROCESS,
        outcome=outcome,
        reason=reason,
        imports=imports,
        stderr_tail=stderr[-8000:],
        error=errors.from_text(stderr, "import"),
    )


def _modules(bench: Bench) -> tuple[str, ...]:
    return bench.tools.modules.get(bench.pipeline.key, ())


def _probe(bench: Bench) -> Any:
    """The process that imports, not yet started; a warm server is, with the usual streams."""
    return bench.tools.starter.fresh_process().Process(
        target=importprobe.probe,
        args=(
            _modules(bench),
            bench.journal.path,
            str(bench.tools.tap.path),
        ),
        name="import-probe",
    )


def end_with_children(process: Any) -> None:
    """End a process that we started, with all that it has started."""
    roots = set()
    with contextlib.suppress(psutil.Error):
        roots = processes.children_of(process.pid)
    processes.end([process])
    processes.end_trees(roots)


def _import_facts(note: dict[str, Any]) -> ImportFacts:
    error = errors.from_text("".join(note["error"]), "import") if note["error"] else None
    effects = [EffectFacts(**effect) for effect in note["effects"]]
    users = [e for e in effects if errors.belongs_to_user(e.where.rpartition(":")[0])]
    imports = [(entry["module"], entry["own"]) for entry in note["imports"]]
    return ImportFacts(
        note["module"],
        note["seconds"],
        note["own"],
        tuple(dict.fromkeys(users)),
        tuple(sorted(imports, key=lambda pair: -pair[1])),
        error,
    )
