"""What a pipeline leaves behind: after full epochs, early breaks and exceptions, and at its end.

Each ending is repeated with the same batches: what is opened once and kept is left once, a leak
each time. Where the first round leaves nothing there is no second.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import gc
import itertools
import multiprocessing
import os
import subprocess
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from pytest_dataloader.diagnose import world
from pytest_dataloader.observe import clock, made, processes, worker
from pytest_dataloader.observe.bench import Bench
from pytest_dataloader.observe.epoch import set_epoch
from pytest_dataloader.observe.facts import (
    BROKEN_OFF,
    FAILED,
    FINISHED,
    GONE,
    HUNG,
    LEFT_FILE,
    LEFT_MEMORY,
    LEFT_OPEN,
    LEFT_PROCESS,
    LEFT_THREAD,
    SKIPPED,
    WARM_START,
    LeakFacts,
    RunFacts,
)
from pytest_dataloader.observe.holdings import Holdings, holdings, lives, threads
from pytest_dataloader.observe.surroundings import only_new_garbage, recorded, seeded
from pytest_dataloader.observe.watchdog import RunInterrupted, Watchdog

ROUNDS = 3
_ENDINGS = (FINISHED, BROKEN_OFF, FAILED)
_MOST_BATCHES = 8
_MOST_STREAMED = 64
_ENOUGH_S = 30.0
# Programs and threads get a moment to end by themselves; the last ones a longer one.
_MOMENT_S = 0.3
_PATIENCE_S = 2.0
_POLL_S = 0.05
_JOIN_S = 6.0
_ENDS_BY_ITSELF = (LEFT_PROCESS, LEFT_THREAD, LEFT_MEMORY)
_REMOVABLE_AT_EXIT = (LEFT_PROCESS, LEFT_FILE, LEFT_MEMORY)


@dataclass(frozen=True)
class Left:
    """One thing that an ending left; ``handle`` finds it again."""

    kind: str
    what: str
    where: str | None
    in_worker: bool
    handle: Any = None

    @property
    def key(self) -> tuple[str, str | None, bool]:
        """What is left each time is the same thing if its key is the same."""
        return self.kind, self.where, self.in_worker


class _TooSlow(Exception):
    """The endings take longer than anybody would wait."""


def run_leaks(bench: Bench) -> RunFacts:
    """Go through all endings and write down what grows with each of them."""
    context = bench.choose_start()
    bench.before = frozenset(multiprocessing.active_children())
    bench.journal.note("begin")  # opens the journal, before files are counted
    dog = bench.watchdog()
    course = _Course(bench, context, made.Recorder(bench.journal), dog)
    caught: list[warnings.WarningMessage] = []
    with contextlib.ExitStack() as around:
        for one in (
            only_new_garbage(),
            bench.tools.tap.during(),
            recorded(caught),
            seeded(bench.request.seed),
        ):
            around.enter_context(one)
        try:
            with dog.watching(), course.recorder.recording():
                bench.guarded(course.go)
        except RunInterrupted:
            bench.outcome = HUNG
        finally:
            course.end_what_is_left()
        if bench.request.config.has_workers:
            bench.close()
    return _facts(bench, dog, course)


def _facts(bench: Bench, dog: Watchdog, course: _Course) -> RunFacts:
    error, outcome = bench.error, HUNG if dog.fired else bench.outcome
    reason = "it hung" if outcome == HUNG else None
    if error is not None and outcome != HUNG:
        reason = f"it raised {error.type}: {error.message}"
    if error is not None and error.type == _TooSlow.__name__:
        outcome, error, reason = SKIPPED, None, f"one round takes more than {_ENOUGH_S:g} s"
    return RunFacts(
        request=bench.request,
        start=bench.start,
        outcome=outcome,
        reason=reason,
        error=error,
        leaks=tuple(course.leaks),
    )


@dataclass
class _Course:
    """One run's rounds, and the leaks that it has found."""

    bench: Bench
    context: Any
    recorder: made.Recorder
    dog: Watchdog
    leaks: list[LeakFacts] = field(default_factory=list)
    orphans: list[psutil.Process] = field(default_factory=list)
    began: float = field(default_factory=clock.now)

    def go(self) -> None:
        """Live once with all rounds; where something outlives that, live twice more."""
        lives_left = [self._life(self._rounds)]
        while lives_left[-1] and self.bench.pipeline.rebuilds and len(lives_left) < ROUNDS:
            lives_left.append(self._life(lambda loader: self._ending(loader, BROKEN_OFF)))
        self._find({GONE: _of_the_same_files(lives_left)})

    def end_what_is_left(self) -> None:
        """End the programs that this run's leaks have left running."""
        held = [note for note in self.bench.told if note["kind"] == "holds"]
        of_workers = {tuple(child) for note in held for child in note["children"]}
        found = self.orphans + [p for p in map(_process, of_workers) if p is not None]
        processes.end_trees([process for process in found if lives(process)])

    # Lives -----------------------------------------------------------------------------------

    def _life(self, body: Callable[[Any], Any]) -> list[Left]:
        """Build, run the body, let go of everything; what has come and is still there."""
        before, told, at_exit = holdings(), len(self.bench.told), atexit._ncallbacks()
        self.bench.stage = "build"
        loader = self.bench.build(self.context).loader
        self.bench.stage = "iterate"
        built = len(self.bench.told)
        body(loader)
        del loader
        gc.collect()
        left = self._settled(lambda: self._left(before, told, built), _PATIENCE_S)
        self._confirm_removables(told)
        return _without_removed_at_exit(left, atexit._ncallbacks() > at_exit)

    def _confirm_removables(self, told: int) -> None:
        """Take back leaks of files and memory that went with the dataset."""
        makes = [note for note in self.bench.told[told:] if note["kind"] == "made"]
        keys = {one.key for one in _things(makes)}
        self.leaks = [
            leak
            for leak in self.leaks
            if leak.kind not in (LEFT_FILE, LEFT_MEMORY)
            or (leak.kind, leak.where, leak.in_worker) in keys
        ]

    def _rounds(self, loader: Any) -> None:
        loader = _repeating(loader)
        rounds: dict[str, list[list[Left]]] = {ending: [] for ending in _ENDINGS}
        for number in range(ROUNDS):
            for ending in _ENDINGS:
                rounds[ending].append(self._ending(loader, ending))
            if not any(lefts[-1] for lefts in rounds.values()):
                break
            if number == 0 and clock.now() - self.began > _ENOUGH_S / ROUNDS:
                raise _TooSlow
        self._keep_waiting(rounds)
        self._find(rounds, loader)
        if self.bench.request.config.has_workers:
            self._persistent(loader)

    def _keep_waiting(self, rounds: dict[str, list[list[Left]]]) -> None:
        """Strike out what has gone by now: it was replaced, or only slow to end."""
        everything = [lefts for ending in rounds.values() for lefts in ending]
        if any(everything):
            self._settled(
                lambda: [x for lefts in everything for x in lefts if _remains(x)], _PATIENCE_S
            )
        for lefts in everything:
            lefts[:] = [one for one in lefts if _remains(one)]

    # One ending ------------------------------------------------------------------------------

    def _ending(self, loader: Any, ending: str) -> list[Left]:
        """Go through a loader to one of its ends; what that has left."""
        before, told, at_exit = holdings(), len(self.bench.told), atexit._ncallbacks()
        most = 1 if ending == BROKEN_OFF else _MOST_STREAMED
        cut_off = False
        try:
            cut_off = not self._go_through(self._riding(loader, fails=ending == FAILED), most)
        except made.PlannedError as error:
            # PyTorch's frames hold the iterator and the exception that they raise: a circle. The
            # queues of an iterator that is collected as garbage are closed before it can use them.
            error.__traceback__ = None
        self._await_workers()
        if cut_off and ending == FINISHED:
            return []  # the stream has no end in reach; what breaking it off leaves comes next
        left = self._settled(lambda: self._left(before, told), _MOMENT_S)
        return _without_removed_at_exit(left, atexit._ncallbacks() > at_exit)

    def _riding(self, loader: Any, *, fails: bool = False) -> Any:
        """A copy of the loader whose functions carry ours."""
        one = copy.copy(loader)
        one.__dict__["_iterator"] = None
        warm = self.bench.start == WARM_START
        start = made.AtStart(
            loader.worker_init_fn,
            self.recorder,
            as_spawned=warm and self.bench.request.config.start_method == "spawn",
        )
        stderr_path = str(self.bench.tools.tap.path)
        one.worker_init_fn = worker.StartNote(start, self.bench.journal, stderr_path)
        one.collate_fn = made.AtBatch(loader.collate_fn, self.recorder, fails=fails)
        return one

    def _go_through(self, loader: Any, most: int) -> bool:
        """Take at most ``most`` batches; whether the epoch came to its end by itself."""
        self.dog.beat()
        if clock.now() - self.began > 2 * _ENOUGH_S:
            raise _TooSlow
        set_epoch(loader, 0)
        with seeded(self.bench.request.seed):
            others = multiprocessing.active_children()
            batches = iter(loader)
            if self.bench.request.config.has_workers:
                self.bench.workers_started = processes.new_children(others)
            for count, _ in enumerate(batches):
                self.dog.beat()
                if count == most:
                    return False
        return True

    def _await_workers(self) -> None:
        gc.collect()
        started = self.bench.workers_started
        processes.join(started, _JOIN_S)
        processes.end(started)
        self.bench.workers_started = []

    def _settled(self, look: Callable[[], list[Left]], patience_s: float) -> list[Left]:
        """What is left, when it has had time to end by itself."""
        deadline = clock.now() + patience_s
        while True:
            self.dog.beat()
            left = look()
            waits = any(one.kind in _ENDS_BY_ITSELF for one in left)
            if not waits or clock.now() > deadline:
                return left
            time.sleep(_POLL_S)

    # What is left ----------------------------------------------------------------------------

    def _left(self, before: Holdings, told: int, built: int = 0) -> list[Left]:
        """What has come since the note ``told`` and is there; of temporary files those since the
        note ``built``, for a factory may make them as the data of a test."""
        everything = self.bench.told
        notes, now = everything[told:], holdings()
        makes = [note for note in everything if note["kind"] == "made"]
        opened = {n["name"]: n["where"] for n in makes if n["what"] == made.OPENED}
        known = {(leak.kind, leak.where, leak.in_worker) for leak in self.leaks}
        found = [
            *_processes(before, now, notes, makes),
            *_threads(before, now, makes),
            *_open_files(before.files, now.files, opened),
            *_things([note for note in notes if note["kind"] == "made"]),
        ]
        data = {note["name"] for note in everything[told:built] if "name" in note}
        found = [one for one in found if one.kind != LEFT_FILE or one.what not in data]
        return [one for one in found if one.key not in known]

    def _find(self, rounds: dict[str, list[list[Left]]], loader: Any = None) -> None:
        """Add what was left after each of a round's endings."""
        found: dict[Any, LeakFacts] = {}
        for ending, lefts in rounds.items():
            for key in _in_each(lefts) if len(lefts) == ROUNDS else ():
                if key[0] == LEFT_PROCESS:
                    left = itertools.chain(*lefts)
                    self.orphans += [one.handle for one in left if one.key == key]
                if key in found:
                    found[key] = replace(found[key], endings=(*found[key].endings, ending))
                else:
                    found[key] = self._leak(key, ending, lefts, loader)
        self.leaks += found.values()

    def _leak(self, key: Any, ending: str, lefts: list[list[Left]], loader: Any) -> LeakFacts:
        kind, where, in_worker = key
        same = [[one for one in left if one.key == key] for left in lefts]
        paths = {one.what for left in same for one in left}
        opens = kind == LEFT_OPEN and loader is not None
        return LeakFacts(
            kind=kind,
            what=same[-1][-1].what,
            where=where,
            holder=_holder(loader, paths) if opens else None,
            in_worker=in_worker,
            endings=(ending,),
            counts=tuple(map(len, same)),
        )

    # Inside the workers ----------------------------------------------------------------------

    def _persistent(self, loader: Any) -> None:
        """Find the files of which workers hold more after each epoch of the same batches."""
        one = self._riding(loader)
        one.__dict__["persistent_workers"] = True
        told, begins = len(self.bench.told), []
        for _ in range(ROUNDS):
            begins.append(time.monotonic())
            if not self._go_through(one, _MOST_STREAMED):
                break  # where it was cut off, what was read ahead differs
            if len(begins) > 1 and not self._grown(told, begins):
                break
        ended = len(begins) == ROUNDS
        del one
        self._await_workers()
        if ended:
            self.leaks += self._grown(told, begins)

    def _grown(self, told: int, begins: list[float]) -> list[LeakFacts]:
        everything = self.bench.told
        opened = {n["name"]: n["where"] for n in everything if n.get("what") == made.OPENED}
        found: dict[Any, LeakFacts] = {}
        for files in _files_by_epoch(everything[told:], begins):
            lefts = [_open_files(*pair, opened) for pair in itertools.pairwise(files)]
            for key in _in_each(lefts):
                same = [[one for one in left if one.key == key] for left in lefts]
                found[key] = LeakFacts(
                    kind=LEFT_OPEN,
                    what=same[-1][-1].what,
                    where=key[1],
                    in_worker=True,
                    endings=(FINISHED,),
                    counts=tuple(map(len, same)),
                )
        return list(found.values())


def _files_by_epoch(
    notes: list[dict[str, Any]], begins: list[float]
) -> Iterator[list[Counter[str]]]:
    """For each worker what it had open at its last batch of each epoch."""
    held = [note for note in notes if note["kind"] == "holds"]
    for pid in dict.fromkeys(note["pid"] for note in held):
        ends = [*begins[1:], float("inf")]
        own = [note for note in held if note["pid"] == pid]
        last = [
            [n for n in own if a <= n["at"] < b][-1:] for a, b in zip(begins, ends, strict=True)
        ]
        if all(last):
            yield [Counter(note["files"]) for (note,) in last]


def _in_each(lefts: list[list[Left]]) -> list[Any]:
    """The keys of what was left each time, in the order of the first."""
    keys = [dict.fromkeys(one.key for one in left) for left in lefts]
    return [key for key in keys[0] if all(key in others for others in keys)] if keys else []


def _of_the_same_files(lefts: list[list[Left]]) -> list[list[Left]]:
    """Leave out files of which each dataset has another: a cache by path keeps those on purpose."""
    opened = [{one.what for one in left if one.kind == LEFT_OPEN} for left in lefts]
    same = set.intersection(*opened)
    return [[x for x in left if x.kind != LEFT_OPEN or x.what in same] for left in lefts]


def _without_removed_at_exit(left: list[Left], registered: bool) -> list[Left]:
    """Leave out what a function may remove that was registered to run at the program's end.

    A worker of multiprocessing does not call such functions.
    """
    if not registered:
        return left
    return [one for one in left if one.in_worker or one.kind not in _REMOVABLE_AT_EXIT]


def _remains(one: Left) -> bool:
    if one.kind == LEFT_PROCESS:
        return lives(one.handle)
    if one.kind == LEFT_THREAD:
        return one.handle in threads()
    if one.kind == LEFT_OPEN:
        return True  # counted: which of them were closed does not matter
    return _exists(one.kind, one.handle)


def _exists(kind: str, path: str) -> bool:
    memory = made.posix_shared_memory()
    if kind != LEFT_MEMORY or Path(made.SHARED_MEMORY_FOLDER).is_dir() or memory is None:
        return os.path.lexists(path)
    try:  # there is no folder to look into
        os.close(memory.shm_open(f"/{Path(path).name}", os.O_RDONLY, 0o600))
    except OSError:
        return False
    return True


def _processes(
    before: Holdings, now: Holdings, notes: list[dict[str, Any]], makes: list[dict[str, Any]]
) -> Iterator[Left]:
    """The programs that have come in this process, and those that workers had at a batch."""
    own = {identity: os.getpid() for identity in now.children - before.children}
    held = [note for note in notes if note["kind"] == "holds"]
    workers = {note["pid"] for note in notes if note["kind"] == "start"}
    of_workers = {tuple(child): note["pid"] for note in held for child in note["children"]}
    programs = [note for note in makes if note["what"] == made.PROGRAM]
    for identity, parent in {**own, **of_workers}.items():
        process, starts = _process(identity), [n for n in programs if n["pid"] == parent]
        if process is None or process.pid in workers or not lives(process):
            continue
        if parent == os.getpid() and not starts:
            continue  # in this process others start programs too, such as plugins of pytest
        with contextlib.suppress(psutil.Error):  # it ends at this moment
            command = process.cmdline()
            where = _start_of(command, starts)
            what = f"{_short(command)} (pid {process.pid})"
            yield Left(LEFT_PROCESS, what, where, parent != os.getpid(), process)


def _process(identity: tuple[int, float]) -> psutil.Process | None:
    """The process of a pid and a time of creation; None if it is gone."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(identity[0])
        if process.create_time() == identity[1]:
            return process
    return None


def _short(command: list[str]) -> str:
    words = " ".join([Path(command[0]).name, *command[1:]])
    return words if len(words) <= 60 else f"{words[:57]}..."


def _start_of(command: list[str], starts: list[dict[str, Any]]) -> str | None:
    """The line that started a program: the one that gave that command, or the only one."""
    exact = [n for n in starts if n["name"] == subprocess.list2cmdline(command)]
    lines = {note["where"] for note in exact or starts}
    return lines.pop() if len(lines) == 1 else None


def _threads(before: Holdings, now: Holdings, makes: list[dict[str, Any]]) -> Iterator[Left]:
    """The threads that have come and that a line of the user's has started."""
    places = {n["name"]: n["where"] for n in makes if n["what"] == made.THREAD}
    for group, name in now.threads.items():
        if group not in before.threads and name in places:
            yield Left(LEFT_THREAD, name, places[name], False, group)


def _open_files(before: Counter[str], now: Counter[str], opened: dict[str, str]) -> list[Left]:
    """The files that are more than before; none where others were closed for them."""
    more = list((now - before).elements())[: max(0, now.total() - before.total())]
    return [Left(LEFT_OPEN, path, opened.get(path), False, path) for path in more]


def _things(makes: list[dict[str, Any]]) -> Iterator[Left]:
    """Temporary files and shared memory that were made and are still there."""
    kinds = {made.TEMPORARY: LEFT_FILE, made.MEMORY: LEFT_MEMORY}
    names = {note["name"] for note in makes if note["what"] == made.TEMPORARY}
    for note in makes:
        kind, path = kinds.get(note["what"]), note["name"]
        if kind is None or os.path.dirname(path) in names:
            continue
        if _exists(kind, path):
            yield Left(kind, path, note["where"], note["pid"] != os.getpid(), path)


# The loader ----------------------------------------------------------------------------------


class _Repeating:
    """A sampler that gives the same few items in each epoch; the user's own is asked each time."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.items: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        items = list(itertools.islice(iter(self.inner), _MOST_BATCHES))
        self.items = self.items or items
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.inner)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("inner", "items"):
            raise AttributeError(name)
        return getattr(self.inner, name)


def _repeating(loader: Any) -> Any:
    """A copy of a loader whose epochs are short and have the same batches."""
    from torch.utils.data import IterableDataset

    one = copy.copy(loader)
    if not isinstance(loader.dataset, IterableDataset):
        name = "batch_sampler" if loader.batch_sampler is not None else "sampler"
        one.__dict__[name] = _Repeating(getattr(loader, name))
    return one


# Who holds it --------------------------------------------------------------------------------


def _holder(loader: Any, paths: set[str]) -> str | None:
    """The attribute or module global that holds one of these open files, alone or among others."""
    roots = [("dataset", loader.dataset), ("loader.sampler", loader.sampler)]
    roots.append(("loader.collate_fn", loader.collate_fn))

    def holds(value: Any) -> bool:
        return any(_path_of(item) in paths for item in _items(value))

    near = world.modules_near(value for _, value in roots)
    for root, value in [*roots, *world.module_globals(near)]:
        for path, item in world.fields(root, value, holds):
            if holds(item):
                return path
    return None


def _items(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())[-1_000:]
    if isinstance(value, (list, tuple, set, frozenset)) or type(value).__name__ == "deque":
        return list(itertools.islice(value, 1_000))
    return [value]


def _path_of(value: Any) -> str | None:
    """The path of an open file, of a Python file object or one of a library's."""
    if getattr(value, "closed", False) is True:
        return None
    try:
        name: Any = getattr(value, "name", getattr(value, "filename", None))
    except Exception:  # noqa: BLE001 - attributes of the user's objects may raise anything
        return None
    return os.path.realpath(os.fsdecode(name)) if isinstance(name, (str, bytes, Path)) else None
