"""Runs in a fresh process: builds a pipeline there and notes what its batches hold.

The process has a hash seed of its own; what differs between two of them rests on it.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import pickle
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from pytest_dataloader.matrix import LoaderConfig
from pytest_dataloader.observe.perturbing import Watch
from pytest_dataloader.observe.worker import Journal, join_stderr

if TYPE_CHECKING:
    from pytest_dataloader.pipeline import Pipeline


def recipe(pipeline: Pipeline) -> bytes | None:
    """How another process builds the pipeline; None where it cannot."""
    if pipeline.target is not None:
        return pickle.dumps(("target", pipeline.target))
    if not pipeline.rebuilds:
        return None
    given = {
        name: getattr(pipeline, name)
        for name in ("id", "make_dataset", "make_loader", "loader_kwargs")
    }
    try:
        return pickle.dumps((type(pipeline), given))
    except Exception:  # noqa: BLE001 - what pickle meets is the user's: lambdas, handles, fixtures
        return None


def _pipeline(data: bytes) -> Any:
    from pytest_dataloader.pipeline import resolve

    kind, given = pickle.loads(data)
    return resolve(given) if kind == "target" else kind(**given)


@dataclass(frozen=True)
class Task:
    """What to build and run, for how many batches and seconds.

    Of ``lines`` it is told which were executed. With ``watches`` the user's lines are noted as in
    the test process, and those of ``otherwise`` are answered otherwise.
    """

    data: bytes
    config: LoaderConfig
    seed: int
    most_batches: int
    lines: tuple[str, ...] = ()
    seconds: float = math.inf
    watches: bool = False
    otherwise: tuple[str, ...] = ()


def probe(task: Task, journal_path: str, stderr_path: str) -> None:
    """Build the pipeline, run an epoch, note each batch; raises nothing."""
    join_stderr(stderr_path)
    journal = Journal(journal_path)
    watch = Watch(task.otherwise)
    stage = "build"
    try:
        with (
            watch.watching() if task.watches else contextlib.nullcontext(),
            _tracing(task.lines) as executed,
        ):
            for batch in _batches(task):
                stage = "iterate"
                journal.note("content", batch=asdict(batch))
        ran = [line for line in task.lines if line in executed]
        journal.note("done", lines=ran, noted=watch.noted)
    except BaseException as error:  # noqa: BLE001 - the process that asked judges what it was
        journal.note("failed", stage=stage, error=traceback.format_exception(error))


def _batches(task: Task) -> Iterator[Any]:
    from pytest_dataloader.observe.epoch import batch_facts, set_epoch
    from pytest_dataloader.observe.surroundings import seeded

    until = time.monotonic() + task.seconds
    pipeline = _pipeline(task.data)
    with seeded(task.seed):
        loader = pipeline.build(task.config, None).loader
        set_epoch(loader, 0)
        for number, batch in enumerate(itertools.islice(loader, task.most_batches)):
            yield batch_facts(batch, number)
            if time.monotonic() >= until:
                return


@contextlib.contextmanager
def _tracing(lines: Iterable[str]) -> Iterator[set[str]]:
    """Which of these lines are executed; only functions that hold one of them are traced."""
    wanted, executed = set(lines), set[str]()
    known: dict[CodeType, frozenset[str]] = {}

    def calls(frame: FrameType, _event: str, _argument: Any) -> Any:
        if frame.f_code not in known:
            known[frame.f_code] = frozenset(_lines_of(frame.f_code) & wanted)
        return None if known[frame.f_code] <= executed else steps

    def steps(frame: FrameType, _event: str, _argument: Any) -> Any:
        here = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        if here in wanted:
            executed.add(here)
        return steps

    if wanted:
        sys.settrace(calls)
    try:
        yield executed
    finally:
        sys.settrace(None)


def _lines_of(code: CodeType) -> set[str]:
    return {f"{code.co_filename}:{line}" for _, _, line in code.co_lines() if line is not None}
