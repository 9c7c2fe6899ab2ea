"""Runs: an epoch comes to its end, with workers and without."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from pytest_dataloader.checks import machine
from pytest_dataloader.checks.asked import Runs
from pytest_dataloader.checks.catalogue import BY_NAME
from pytest_dataloader.checks.evidence import (
    Evidence,
    Question,
    causes,
    closing_seconds,
    names_full_shared_memory,
    names_too_many_files,
    place,
    quoted,
    shown_path,
    told_cause,
)
from pytest_dataloader.checks.finding import ERROR, INFO, WARNING, Finding, NotJudged
from pytest_dataloader.checks.picklability import start_failures
from pytest_dataloader.checks.throughput import batches_travel_quickly
from pytest_dataloader.diagnose.machine import size
from pytest_dataloader.matrix import LoaderConfig
from pytest_dataloader.observe.errors import belongs_to_user, source_line
from pytest_dataloader.observe.facts import (
    DIED,
    HUNG,
    OK,
    RAISED,
    TIMED,
    ErrorFacts,
    LastTask,
    RunFacts,
    RunRequest,
    UnpicklableFacts,
)

_STACK_LINE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+),? in (?P<function>\S+)')


# torch.cuda and its like (`_lazy_init`), CUDA's own words where a forked process uses it all the
# same, and torch.multiprocessing.reductions where a worker passes on what it got.
_DEVICE_IN_WORKER = re.compile(
    r"Cannot re-initialize \w+ in forked subprocess"
    r"|CUDA error: (initialization error|invalid device context|invalid resource handle)"
    r"|Attempted to send CUDA tensor received from another process"
    r"|_share_filename_: only available on CPU"
)

SLOW_CLOSE_S = 4.0


def needs(asked: Runs, question: Question) -> list[RunRequest]:
    """The base run, and one of several epochs where those are asked for."""
    return [question.base(), *([question.epochs()] if asked.later_epochs else [])]


def fails(evidence: Evidence, _asked: Runs) -> Iterator[Finding | NotJudged]:
    """A run that raises, dies or hangs, whatever else was asked."""
    for run in evidence.contents:
        if run.outcome == OK:
            continue
        findings = list(start_failures(evidence, run))
        yield from findings or _FAILURES[run.outcome](evidence, run)
        return
    yield from _hung_when_timed(evidence)


def _hung_when_timed(evidence: Evidence) -> Iterator[Finding]:
    """A hang that only a timed pass meets, which reads more than one epoch."""
    for request, run in evidence.runs.items():
        if run.outcome == HUNG and request.purpose == TIMED and request.config == evidence.config:
            stood = _where_it_stood(run.stuck)
            where = f"; it stood at {stood[0]} in {stood[1]}" if stood else ""
            message = (
                f"expected the next batch in time, but {run.reason} in the timed pass, which reads "
                f"epoch after epoch{where}; one epoch runs to its end"
            )
            yield _finding("hang", evidence, stood[0] if stood else None, message)
            return


def _raised(evidence: Evidence, run: RunFacts) -> Iterator[Finding]:
    error = run.error
    assert error is not None
    if error.type in ("PipelineError", "TargetError"):
        advice = "Give a Dataset or a DataLoader, or a callable that returns one afresh."
        yield Finding("raises", ERROR, (evidence.config,), None, error.message, advice)
        return
    code, comparison = _compared(evidence, run)
    if names_full_shared_memory(error):
        yield _full_shared_memory(evidence, run, error, comparison)
        return
    if _DEVICE_IN_WORKER.search(error.message):
        code = "cuda-in-worker"
    if "daemonic processes are not allowed to have children" in error.message:
        code = "nested-processes"
    if names_too_many_files(error):
        code = "too-many-files"
    message = f"expected an epoch to its end, got {quoted(error)}; {comparison}"
    found = causes(run) if code == "fails-with-workers" else []
    if found:
        message += f"; probable cause: {told_cause(found[0])}"
    changed = _changed(evidence, error, code, comparison)
    if changed is None or changed.severity != ERROR:
        yield _finding(code, evidence, place(error), message)
    if changed is not None:
        yield changed


def _full_shared_memory(
    evidence: Evidence, run: RunFacts, error: ErrorFacts, comparison: str
) -> Finding:
    room = run.machine.shm_bytes if run.machine is not None else None
    has = f", which has {size(room)}" if room is not None else ""
    message = (
        f"expected the batches under way to fit into shared memory (/dev/shm){has}, got "
        f"{error.type}: {error.message}; {comparison}"
    )
    return _finding("small-shared-memory", evidence, "loader", message)


def _changed(evidence: Evidence, error: ErrorFacts, code: str, comparison: str) -> Finding | None:
    """An exception that arrives as one of another type, so that no ``except`` catches it.

    Where nothing else is to be said of the run, this is what is wrong with it. The user can mend
    their own types; of another's it is information.
    """
    arrival = error.arrival
    if arrival is None:
        return None
    how = "message=text" if arrival.keyword else "text"
    why = f", and its constructor is {arrival.constructor}" if arrival.constructor else ""
    message = (
        f"expected a worker's {error.type} to arrive as such, but it arrives as "
        f"{arrival.type}, which `except {error.type}` does not catch: PyTorch makes it anew as "
        f"{error.type}({how}){why}; raised: {quoted(error)}; {comparison}"
    )
    severity = INFO
    if arrival.defined is not None:
        severity = ERROR if code == "raises" else WARNING
    culprit = shown_path(arrival.defined) if arrival.defined else place(error)
    return replace(_finding("exception-changed", evidence, culprit, message), severity=severity)


def _compared(evidence: Evidence, run: RunFacts) -> tuple[str, str]:
    """The code, and what 0 workers (or, for 0 workers, workers) do with the same seed."""
    if run.request.repeat:
        return "raises", "the run before it, with the same seed, runs to its end"
    if evidence.config.has_workers:
        config: LoaderConfig | None = evidence.config.without_workers()
        code, name = "fails-with-workers", "0 workers"
    else:
        config = evidence.question.with_workers
        code, name = "fails-without-workers", config.id if config else "workers"
    other = evidence.get(RunRequest(config, run.request.seed)) if config else None
    if other is None:
        return "raises", f"with {name} it was not run"
    if other.outcome == OK:
        return code, f"with {name} it runs to its end"
    if _same_error(other, run):
        return "raises", f"with {name} it raises the same"
    return "raises", f"with {name} it {_briefly(other)}"


def _same_error(one: RunFacts, other: RunFacts) -> bool:
    a, b = one.error, other.error
    return a is not None and b is not None and (a.type, a.where) == (b.type, b.where)


def _briefly(run: RunFacts) -> str:
    if run.outcome == RAISED and run.error is not None:
        return f"raises {run.error.type}: {run.error.message}"
    if run.outcome == HUNG and run.reason:
        return f"hangs ({run.reason})"
    return {DIED: "dies", HUNG: "hangs"}.get(run.outcome, run.outcome)


def _died(evidence: Evidence, run: RunFacts) -> Iterator[Finding]:
    error = run.error
    words = _LAST_WORDS.get(error.stage) if error is not None else None
    told = f"; {words} {quoted(error)}" if words and error is not None else ""
    culprit = place(error) if words and error is not None else _of_task(run.last_task)
    got = f"after {run.batches} batches" if run.batches else "before its first batch"
    message = (
        f"expected all workers to live to the end of the epoch, but {run.reason} {got}{told}"
        f"{_at_task(run.last_task)}{_beside(evidence, run)}"
    )
    yield _finding("worker-died", evidence, culprit, message)


_LAST_WORDS = {
    "worker": "its standard error ends with",
    "leave": "it left through",
    "fault": "it crashed with",
}


def _at_task(task: LastTask | None) -> str:
    """What the worker was making: a batch by its number, from 0, and its indices."""
    if task is None:
        return ""
    if task.batch is None:
        return f"; worker {task.worker_id} had made {task.made} batches of the epoch"
    indices = f", of the indices {task.indices}" if task.indices else ""
    return f"; worker {task.worker_id} was making batch {task.batch}{indices}"


def _of_task(task: LastTask | None) -> str | None:
    return f"dataset[{task.indices}]" if task is not None and task.indices else None


def _beside(evidence: Evidence, run: RunFacts) -> str:
    other = evidence.get(RunRequest(evidence.config.without_workers(), run.request.seed))
    if not evidence.config.has_workers or other is None:
        return ""
    state = "it runs to its end" if other.outcome == OK else f"it {_briefly(other)}"
    return f"; with 0 workers {state}"


def _hung(evidence: Evidence, run: RunFacts) -> Iterator[Finding]:
    error = run.error
    if error is not None and names_full_shared_memory(error):
        lost = "the loader then waits for the batch for ever"
        yield _full_shared_memory(evidence, run, error, lost)
        return
    if error is not None and error.stage == "send":
        yield from _unsendable(evidence, run, error)
        return
    stood = _where_it_stood(run.stuck)
    got = f"after {run.batches} batches" if run.batches else "before the first batch"
    where = f"; it stood at {stood[0]} in {stood[1]}" if stood else ""
    if stood and stood[2]:
        where += f", `{stood[2]}`"
    message = (
        f"expected the next batch in time, but {run.reason} {got}{where}{_beside(evidence, run)}"
    )
    yield _finding("hang", evidence, stood[0] if stood else None, message)


def _unsendable(evidence: Evidence, run: RunFacts, error: ErrorFacts) -> Iterator[Finding]:
    """The parts of a batch that will not travel; where they are not known, the worker's words."""
    for part in run.unpicklable:
        if part.path == "exception":
            yield _unsendable_exception(evidence, error, part)
            continue
        message = (
            f"expected every batch to be sent, but {part.path} is {part.kind} that a worker could "
            f"not pickle: {part.error}; the loader then waits for it for ever"
        )
        yield _finding("unsendable-batch", evidence, part.path, message)
    if not run.unpicklable:
        message = (
            f"expected every batch to be sent, but a worker could not pickle one: {error.type}: "
            f"{error.message}; the loader then waits for it for ever"
        )
        users = error.file is not None and belongs_to_user(error.file)
        yield _finding("unsendable-batch", evidence, place(error) if users else "batch", message)


def _unsendable_exception(evidence: Evidence, error: ErrorFacts, part: UnpicklableFacts) -> Finding:
    defined = f" (defined at {shown_path(part.defined)})" if part.defined else ""
    message = (
        f"expected every exception to be sent, but {error.type} is {part.kind}{defined}, that a "
        f"worker could not pickle: {part.error}; the loader then waits for it for ever, and "
        f"`except {error.type}` never sees it; raised: {quoted(error)}"
    )
    return _finding("unsendable-batch", evidence, place(error), message)


def _where_it_stood(stuck: str) -> tuple[str, str, str | None] | None:
    """``file:line``, function and source of the user's innermost line in the stacks.

    Those of the workers come first, most recent call first; else that of the parent.
    """
    workers, _, parent = stuck.partition("--- parent ---")
    if not parent:
        workers, parent = "", stuck
    for text, innermost_first in ((workers, True), (parent, False)):
        lines = [m for m in _STACK_LINE.finditer(text) if belongs_to_user(m["file"])]
        if lines:
            line = lines[0] if innermost_first else lines[-1]
            where = shown_path(f"{line['file']}:{line['line']}")
            return where, line["function"], source_line(line["file"], int(line["line"]))
    return None


_FAILURES = {RAISED: _raised, DIED: _died, HUNG: _hung}


def _finding(code: str, evidence: Evidence, culprit: str | None, message: str) -> Finding:
    return Finding(code, ERROR, (evidence.config,), culprit, message, BY_NAME[code].mend)


def ends_promptly(evidence: Evidence, _asked: object) -> Iterator[Finding | NotJudged]:
    """Workers end when the last batch has come, and do not have to be ended.

    torch waits 5 s for each worker, then terminates it (`MP_STATUS_CHECK_INTERVAL` in
    torch.utils.data._utils).
    """
    for run in evidence.contents:
        seconds = closing_seconds(run)
        if run.outcome != OK or seconds < SLOW_CLOSE_S or not run.workers:
            continue
        threads = run.worker_threads
        why = f"; a worker waits for its thread {threads[0]}" if threads else ""
        message = (
            f"expected the workers to end within {SLOW_CLOSE_S:g} s of the last batch, but they "
            f"took {seconds:.1f} s{why}"
        )
        culprit = shown_path(_place_in(threads[0])) if threads else "dataset"
        yield _finding("slow-close", evidence, culprit, message)
        return


def batches_can_be_pinned(evidence: Evidence, _asked: object) -> Iterator[Finding | NotJudged]:
    """Where the loader asks for pinned memory, all tensors of a batch come to be pinned."""
    run = evidence.base
    for path, kind, tensor in run.unpinnable if run is not None else ():
        message = (
            f"expected pin_memory=True to pin {tensor}, but {path} is a {kind}, which has no "
            f"pin_memory() and is passed on as it is"
        )
        finding = _finding("unpinnable-batch", evidence, path, message)
        yield replace(finding, severity=WARNING)


def _place_in(words: str) -> str:
    return words.rpartition(" at ")[2].rstrip(")") if " at " in words else words


CHECKS = (fails, ends_promptly, batches_can_be_pinned, batches_travel_quickly, *machine.CHECKS)
