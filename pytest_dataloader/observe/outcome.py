"""How a content pass ended: a hang that we ended, a death, an exception, or well."""

from __future__ import annotations

import contextlib
import re
import signal
from pathlib import Path
from typing import Any

from pytest_dataloader.observe import errors
from pytest_dataloader.observe.bench import Bench, lost_batch
from pytest_dataloader.observe.facts import DIED, HUNG, RAISED, ErrorFacts, LastTask, WorkerFacts
from pytest_dataloader.observe.watchdog import Watchdog

_DEATH_WORDS = ("exited unexpectedly", "killed by signal")
_PIDS = re.compile(r"\(pid(?:\(s\))? ([\d, ]+)\)")
_MOST_INDICES = 8
_FRAMES_A_THREAD = 24
_STACKS_CHARACTERS = 64_000
_CUT_OFF = ("ConnectionResetError", "EOFError", "BrokenPipeError")
_NOBODY_THERE = (*_CUT_OFF, "FileNotFoundError", "ConnectionRefusedError")


def outcome_of(
    bench: Bench, dog: Watchdog, workers: tuple[WorkerFacts, ...], stderr: str
) -> tuple[str, str | None, ErrorFacts | None]:
    """The outcome, its reason and its error, in the order of certainty."""
    if dog.fired:
        return _hang(bench, dog, dead_workers(bench, dog, workers), stderr)
    if bench.error is None:
        return bench.outcome, None, None
    message = bench.error.message
    if bench.stage != "build" and _somebody_died(bench, bench.error, workers):
        dead = dead_workers(bench, dog, workers)
        told = _why_it_left(bench.told, dead) or _last_words(stderr)
        return DIED, _manner_of_death(dead or workers, message), told or bench.error
    return RAISED, f"{bench.error.type}: {message}", bench.error


def dead_workers(
    bench: Bench, dog: Watchdog, workers: tuple[WorkerFacts, ...]
) -> tuple[WorkerFacts, ...]:
    """The workers that ended before the run was: those that torch names, or that we found dead.

    A worker rightly ends when the epoch is over, and one of an iterable dataset when it has
    nothing more.
    """
    pids = set(bench.dead_before) if dog.fired else set()
    named = _PIDS.search(bench.error.message) if bench.error is not None else None
    if named and not dog.fired:
        pids = {int(pid) for pid in named[1].split(",")}
    left = {note["pid"] for note in bench.told if note["kind"] == "leaving"}
    if not (pids or left) and not dog.fired:
        return tuple(w for w in workers if len(workers) == 1 or _bad_exit_codes((w,)))
    dead = [worker for worker in workers if worker.pid in (pids or left)]
    came = bench.records[-1].batches if bench.records else 0
    may_end = dog.fired and (bench.expected is None or came >= bench.expected)
    return tuple(w for w in dead if not may_end or w.exit_code not in (0, None) or w.pid in left)


def last_task(bench: Bench, dead: tuple[WorkerFacts, ...]) -> LastTask | None:
    """What the first of the dead workers was making.

    torch gives batches to workers in turns, as long as none is out of order and none is
    exhausted, as those of a map-style dataset never are.
    """
    known = [worker for worker in dead if worker.worker_id is not None]
    if not known or not bench.records:
        return None
    record, worker = bench.records[-1], known[0]
    notes = [n for n in bench.told if n["kind"] == "batch" and n["pid"] == worker.pid]
    made = sum(note["at"] >= record.began for note in notes)
    if bench.expected is None or not bench.in_order:
        return LastTask(worker.worker_id or 0, made)
    batch = (worker.worker_id or 0) + made * len(bench.working)
    given = dict(record.recent) if record.indices is None else dict(enumerate(record.indices))
    indices = given.get(batch)
    return LastTask(worker.worker_id or 0, made, batch, _short(indices))


def _short(indices: Any) -> str | None:
    """Indices as people read them, the first few of many."""
    if not isinstance(indices, (list, tuple)):
        return None if indices is None else repr(indices)
    more = ", ..." if len(indices) > _MOST_INDICES else ""
    return ", ".join(map(repr, indices[:_MOST_INDICES])) + more


def _why_it_left(told: list[dict[str, Any]], dead: tuple[WorkerFacts, ...]) -> ErrorFacts | None:
    """The exception through which a worker left, as `SystemExit` is."""
    pids = {worker.pid for worker in dead}
    for note in told:
        if note["kind"] == "leaving" and (note["pid"] in pids or not pids):
            return errors.from_text(note["error"], "leave")
    return None


def _hang(
    bench: Bench, dog: Watchdog, dead: tuple[WorkerFacts, ...], stderr: str
) -> tuple[str, str, ErrorFacts | None]:
    """A hang; or a death that the loader had not noticed yet: it looks every five seconds."""
    lost = lost_batch(stderr)
    if lost:
        error = bench.unsent or errors.from_text(lost, "send")
        return HUNG, "a batch could not be sent", error
    if dead:
        told = _why_it_left(bench.told, dead) or _last_words(stderr)
        return DIED, _manner_of_death(dead, ""), told
    return HUNG, f"no batch for {dog.timeout_s:g} s", None


def _last_words(stderr: str) -> ErrorFacts | None:
    """What a worker said before it died; that another was cut off by its death is no cause."""
    fault = errors.from_fault(stderr)
    if fault is not None:
        return fault
    stage, end = _stage_in_worker(stderr), len(stderr)
    while end >= 0:
        told = errors.from_text(stderr[:end], stage)
        if told is None or told.type not in _CUT_OFF:
            return told
        end = stderr.rfind("Traceback (most recent call last):", 0, end)
    return None


def _somebody_died(bench: Bench, error: ErrorFacts, workers: tuple[WorkerFacts, ...]) -> bool:
    """Whether an error of this process is the end of a worker, which also leaves a batch behind
    whose memory nobody hands over any more."""
    if any(words in error.message for words in _DEATH_WORDS):
        return True
    if _is_in_multiprocessing(error) and any(n["kind"] == "leaving" for n in bench.told):
        return True
    if _is_in_multiprocessing(error) and error.type in _NOBODY_THERE:
        return True
    return error.type in _CUT_OFF and bool(_bad_exit_codes(workers))


def _is_in_multiprocessing(error: ErrorFacts) -> bool:
    return "multiprocessing" in Path(error.file or "").parts


def _bad_exit_codes(workers: tuple[WorkerFacts, ...]) -> list[int]:
    """Exit codes of workers that ended otherwise than by themselves or by us."""
    codes = [worker.exit_code for worker in workers if worker.exit_code is not None]
    return [code for code in codes if code not in (0, -signal.SIGTERM)]


def _manner_of_death(workers: tuple[WorkerFacts, ...], message: str) -> str:
    codes = _bad_exit_codes(workers)
    if not codes and workers and all(worker.exit_code == 0 for worker in workers):
        return "a worker ended with exit code 0"
    if not codes:
        return "a worker ended without a word" if "exited" in message else message
    code = codes[0]
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"a worker was ended by {signal.Signals(-code).name} (signal {-code})"
    return f"a worker ended with exit code {code}"


def _stage_in_worker(stderr: str) -> str:
    if "pickle.load(from_parent)" in stderr:
        return "unpickle"
    if "in prepare" in stderr and "_fixup_main" in stderr:
        return "import"
    return "worker"


def stuck_at(dog: Watchdog, stderr: str) -> str:
    """Where the workers and the parent stood when a hang was ended; empty without a hang."""
    if not dog.fired:
        return ""
    start = stderr.find("Thread 0x")
    current = stderr.find("Current thread 0x")
    places = [place for place in (start, current) if place >= 0]
    workers = _innermost(stderr[min(places) :])[:_STACKS_CHARACTERS] if places else ""
    return f"{workers}\n--- parent ---\n{dog.parent_stack[-3000:]}" if workers else dog.parent_stack


def _innermost(stacks: str) -> str:
    """Stacks without their outer frames: those of a forked worker are the whole test session's."""
    kept, depth = [], 0
    for line in stacks.splitlines():
        depth = depth + 1 if line.startswith(" ") else 0
        if depth <= _FRAMES_A_THREAD:
            kept.append(line)
    return "\n".join(kept)
