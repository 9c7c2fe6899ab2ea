"""What a fork shares and copies: handles, locks and threads around the moment of the fork."""

from __future__ import annotations

import threading
import time
from typing import Any

from pytest_dataloader.diagnose import world
from pytest_dataloader.diagnose.handles import held_locks
from pytest_dataloader.observe.bench import Bench
from pytest_dataloader.observe.facts import HandleFacts

_LOOKS = 4
_BETWEEN_S = 0.005
_OURS = "pytest-dataloader"


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
    held: dict[str, None] = {}
    for _ in range(_LOOKS):
        held |= dict.fromkeys(held_locks(roots, world.user_modules()))
        time.sleep(_BETWEEN_S)
    bench.held_locks = tuple(held)


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
