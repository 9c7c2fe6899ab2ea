"""What a fork shares and copies: handles, locks and threads around the moment of the fork."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pytest_dataloader.diagnose import world
from pytest_dataloader.diagnose.handles import (
    held_locks,
    held_threads,
    path_of_target,
    runs_of,
)
from pytest_dataloader.observe.bench import Bench
from pytest_dataloader.observe.facts import HandleFacts, ThreadFacts

_LOOKS = 4
_BETWEEN_S = 0.005
_OURS = "pytest-dataloader"
_TOOLS = ("execnet", "pytest_timeout", "tqdm", "debugpy", "pydevd", "coverage")
_NAME = re.compile(r"\w+")


def look(bench: Bench, loader: Any, riders: dict[str, Any]) -> None:
    """Note the threads that are alive before the fork, and the locks that they hold.

    A lock that is held at one of four looks is one that a worker may find held for ever.
    """
    main = threading.main_thread()
    others = [t for t in threading.enumerate() if t is not main and not t.name.startswith(_OURS)]
    bench.threads = tuple(thread.name for thread in others)
    if not others:
        return
    roots = {"dataset": loader.dataset} | {f"loader.{n}": v for n, v in riders.items()}
    used = world.names_used([loader.dataset, *riders.values()])
    near = world.modules_near(roots.values())
    bench.live_threads = tuple(_described(others, roots, near, used))
    held: dict[str, None] = {}
    for _ in range(_LOOKS):
        held |= dict.fromkeys(held_locks(roots, near))
        time.sleep(_BETWEEN_S)
    bench.held_locks = tuple(held)


def _described(
    alive: list[threading.Thread], roots: dict[str, Any], near: list[str], used: dict[str, int]
) -> Iterator[ThreadFacts]:
    """The threads with what holds each; those that nothing of the user's holds come last."""
    left = [thread for thread in alive if not _is_a_tools(thread)]
    for path, kind, threads in held_threads(roots, near):
        here = [thread for thread in threads if thread in left]
        if here:
            left = [thread for thread in left if thread not in here]
            yield ThreadFacts(here[0].name, runs_of(here[0]), path, kind, _is_used(path, used))
    for thread in left:
        method = path_of_target(thread, roots)
        is_used = method is not None and _is_used(method, used)
        yield ThreadFacts(thread.name, runs_of(thread), method, used=is_used, anonymous=True)


def _is_a_tools(thread: threading.Thread) -> bool:
    """Whether a thread is one that test tools, progress bars and PyTorch itself keep."""
    code = runs_of(thread)
    module = code.partition(".")[0]
    return module in _TOOLS or thread.name.startswith(_TOOLS) or "_pin_memory" in code


def _is_used(path: str, used: dict[str, int]) -> bool:
    """Whether the code that makes a sample names each step that leads to what holds a thread.

    The last name is the thread's own, which nobody needs to name, unless it is a global.
    """
    first, *names = [name for name in _NAME.findall(path) if not name.isdigit()]
    steps = names[:-1] if first in ("dataset", "loader") else names[-1:]
    return all(used.get(name) == 0 for name in steps)


def modules_with_threads(bench: Bench) -> list[str]:
    """The user's modules of which a global holds a thread."""
    paths = [thread.path for thread in bench.live_threads if thread.path]
    return [name for name in world.user_modules() if any(p.startswith(f"{name}.") for p in paths)]


def gone_in_workers(bench: Bench, told: list[dict[str, Any]]) -> tuple[ThreadFacts, ...]:
    """The threads, with a note of those that a worker held as it began and at its last look,
    and that were not alive there."""
    notes = [note["dead_threads"] for note in told if "dead_threads" in note]
    gone = {path for path in (notes[0] if notes else ()) if all(path in n for n in notes)}
    anew = {code for note in told for code in note.get("alive", ())}

    def is_gone(thread: ThreadFacts) -> bool:
        if thread.anonymous:
            return thread.path is not None and thread.runs not in anew
        return thread.path in gone

    return tuple(replace(thread, gone=is_gone(thread)) for thread in bench.live_threads)


def shared_handles(told: list[dict[str, Any]]) -> tuple[HandleFacts, ...]:
    """Handles that a worker had from its parent and still had when it made a batch.

    A worker's first note is of its start; where that is empty, its handles are all its own.
    """
    found: dict[str, HandleFacts] = {}
    notes = [note for note in told if note["kind"] == "handles"]
    for pid in dict.fromkeys(note["pid"] for note in notes):
        first, *later = [note["handles"] for note in notes if note["pid"] == pid]
        for path, (identity, kind, offset) in first.items():
            same = [h[path] for h in later if path in h and h[path][0] == identity]
            moved = None if offset is None else any(h[2] != offset for h in same)
            known = found.get(path)
            if same and (known is None or moved):
                found[path] = HandleFacts(path, kind, moved)
    return tuple(found.values())


def worker_threads(told: list[dict[str, Any]]) -> tuple[str, ...]:
    """The threads that keep workers from ending, each once."""
    return tuple(dict.fromkeys(name for note in told for name in note.get("threads", ())))
