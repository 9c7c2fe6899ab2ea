"""How a content pass ended: a hang that we ended, a death, an exception, or well."""

from __future__ import annotations

import contextlib
import signal

from pytest_dataloader.observe import errors
from pytest_dataloader.observe.bench import Bench, lost_batch
from pytest_dataloader.observe.facts import DIED, HUNG, RAISED, ErrorFacts, WorkerFacts
from pytest_dataloader.observe.watchdog import Watchdog

_DEATH_WORDS = ("exited unexpectedly", "killed by signal")
_FRAMES_A_THREAD = 24
_STACKS_CHARACTERS = 64_000
_CUT_OFF = ("ConnectionResetError", "EOFError", "BrokenPipeError")


def outcome_of(
    bench: Bench, dog: Watchdog, workers: tuple[WorkerFacts, ...], stderr: str
) -> tuple[str, str | None, ErrorFacts | None]:
    """The outcome, its reason and its error, in the order of certainty."""
    if dog.fired:
        dead = tuple(worker for worker in workers if worker.pid in bench.dead_before)
        return _hang(dog, dead, stderr)
    if bench.error is None:
        return bench.outcome, None, None
    message = bench.error.message
    if bench.stage != "build" and _somebody_died(bench.error, workers):
        told = _last_words(stderr)
        return DIED, _manner_of_death(workers, message), told or bench.error
    return RAISED, f"{bench.error.type}: {message}", bench.error


def _hang(
    dog: Watchdog, dead: tuple[WorkerFacts, ...], stderr: str
) -> tuple[str, str, ErrorFacts | None]:
    """A hang; or a death that the loader had not noticed yet: it looks every five seconds."""
    lost = lost_batch(stderr)
    if lost:
        return HUNG, "a batch could not be sent", errors.from_text(lost, "send")
    if _bad_exit_codes(dead):
        return DIED, _manner_of_death(dead, ""), _last_words(stderr)
    return HUNG, f"no batch for {dog.timeout_s:g} s", None


def _last_words(stderr: str) -> ErrorFacts | None:
    """What a worker said before it died; that another was cut off by its death is no cause."""
    stage, end = _stage_in_worker(stderr), len(stderr)
    while end >= 0:
        told = errors.from_text(stderr[:end], stage)
        if told is None or told.type not in _CUT_OFF:
            return told
        end = stderr.rfind("Traceback (most recent call last):", 0, end)
    return None


def _somebody_died(error: ErrorFacts, workers: tuple[WorkerFacts, ...]) -> bool:
    if any(words in error.message for words in _DEATH_WORDS):
        return True
    return error.type in _CUT_OFF and bool(_bad_exit_codes(workers))


def _bad_exit_codes(workers: tuple[WorkerFacts, ...]) -> list[int]:
    """Exit codes of workers that ended otherwise than by themselves or by us."""
    codes = [worker.exit_code for worker in workers if worker.exit_code is not None]
    return [code for code in codes if code not in (0, -signal.SIGTERM)]


def _manner_of_death(workers: tuple[WorkerFacts, ...], message: str) -> str:
    codes = _bad_exit_codes(workers)
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
