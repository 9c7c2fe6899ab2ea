"""Content passes, run for real: what came, from whom, in what time, and how it ended."""

from __future__ import annotations

import ctypes
import functools
import itertools
import multiprocessing
import os
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from pytest_dataloader.matrix import LoaderConfig
from pytest_dataloader.observe.facts import (
    DIED,
    HUNG,
    IN_PROCESS,
    OK,
    RAISED,
    TRUE_START,
    ArrivalFacts,
    LastTask,
    RunFacts,
    RunRequest,
)
from pytest_dataloader.observe.observer import Observer
from pytest_dataloader.pipeline import Pipeline

W0 = LoaderConfig(None, 0)
FORK = LoaderConfig("fork", 2)
BOTH = pytest.mark.parametrize("config", [W0, FORK], ids=lambda config: config.id)

pytestmark = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="fork is not available here"
)


class Numbers(Dataset[Any]):
    """Ten numbers."""

    def __init__(self, count: int = 10) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(float(index))


class Broken(Numbers):
    def __getitem__(self, index: int) -> Any:
        if index == 5:
            raise ValueError("bad record")  # the line of the error
        return super().__getitem__(index)


class Ending(Numbers):
    def __getitem__(self, index: int) -> Any:
        if get_worker_info() is not None:
            os._exit(3)
        return super().__getitem__(index)


class Waiting(Numbers):
    def __getitem__(self, index: int) -> Any:
        if index == 4:
            time.sleep(60)  # the line of the hang
        return super().__getitem__(index)


class Slow(Numbers):
    def __getitem__(self, index: int) -> Any:
        time.sleep(0.02)
        return super().__getitem__(index)


class Warning_(Numbers):
    def __getitem__(self, index: int) -> Any:
        if index == 0:
            warnings.warn("old file", UserWarning, stacklevel=1)
        return super().__getitem__(index)


class Noise(Numbers):
    def __getitem__(self, index: int) -> Any:
        return random.random(), np.random.rand(), torch.rand(1)


class Epochs(Numbers):
    def __init__(self) -> None:
        super().__init__()
        self.told: list[int] = []
        self.epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.told.append(epoch)
        self.epoch = epoch

    def __getitem__(self, index: int) -> Any:
        return index, self.epoch


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(range(4))


class Unsampled(Numbers):
    """Ten numbers, for a sampler that cannot begin."""


class Sampler:
    """A sampler that cannot begin."""

    def __iter__(self) -> Any:
        raise LookupError("no index")

    def __len__(self) -> int:
        return 2


def broken_dataset() -> Any:
    raise FileNotFoundError("no such folder")


_NUMBERS = itertools.count()


def pipeline(make: Callable[[], Any] = Numbers, **kwargs: Any) -> Pipeline:
    kwargs = {"batch_size": 4, **kwargs}
    return Pipeline(f"content-{next(_NUMBERS)}", make_dataset=make, loader_kwargs=kwargs)


def run(
    observer: Observer, config: LoaderConfig, make: Any = Numbers, epochs: int = 1, **kwargs: Any
) -> RunFacts:
    return observer.observe(pipeline(make, **kwargs), RunRequest(config, epochs=epochs))


# A sound run -------------------------------------------------------------------------------------


def test_a_run_without_workers(observer) -> None:
    facts = run(observer, W0)
    assert (facts.outcome, facts.reason, facts.error) == (OK, None, None)
    assert (facts.start, facts.samples, facts.batches) == (IN_PROCESS, 10, 3)
    assert (facts.expected_batches, facts.workers, facts.world) == (3, (), ())
    assert (facts.warnings, facts.notes, facts.stderr_tail, facts.stuck) == ((), (), "", "")
    assert facts.all_workers_s is None


def test_a_run_with_workers(observer) -> None:
    facts = run(observer, FORK)
    assert (facts.outcome, facts.reason, facts.error) == (OK, None, None)
    assert (facts.start, facts.samples, facts.batches) == (TRUE_START, 10, 3)
    assert {w.worker_id: (w.batches, w.samples, w.exit_code) for w in facts.workers} == {
        0: (2, 6, 0),
        1: (1, 4, 0),
    }
    for worker in facts.workers:
        assert worker.ready_s is not None
        assert worker.first_batch_s is not None
        assert 0 < worker.ready_s < worker.first_batch_s < 10
        assert worker.cpu_s is not None
    firsts = [w.first_batch_s for w in facts.workers if w.first_batch_s is not None]
    assert facts.all_workers_s == max(firsts)
    assert facts.left_behind.processes == ()
    assert facts.close_s is not None
    assert facts.close_s < 5


@BOTH
def test_times_of_batches(observer, config) -> None:
    facts = run(observer, config, Slow, batch_size=2)
    [epoch] = facts.epochs
    assert len(epoch.arrivals_s) == len(epoch.waits_s) == epoch.batches == 5
    assert list(epoch.arrivals_s) == sorted(epoch.arrivals_s)
    assert facts.startup_s == epoch.arrivals_s[0] >= 0.04
    assert 0 < sum(epoch.waits_s) <= epoch.arrivals_s[-1] <= facts.duration_s


def test_the_content_is_the_same_with_and_without_workers(observer) -> None:
    alone, with_workers = run(observer, W0), run(observer, FORK)
    assert alone.digest == with_workers.digest is not None
    assert alone.epochs[0].batch_facts == with_workers.epochs[0].batch_facts
    assert [leaf.preview for b in alone.epochs[0].batch_facts for leaf in b.leaves] == [
        "[0, 1, 2, 3]",
        "[4, 5, 6, 7]",
        "[8, 9]",
    ]
    other = run(observer, W0, batch_size=5)
    assert other.digest != alone.digest
    assert other.epochs[0].batch_multiset != alone.epochs[0].batch_multiset


@BOTH
def test_the_seed_decides_what_is_random(observer, config) -> None:
    one = pipeline(Noise)
    first, again, other = (
        observer.observe(one, RunRequest(config, seed, repeat))
        for seed, repeat in [(0, 0), (0, 1), (1, 0)]
    )
    assert first.digest == again.digest != other.digest


@BOTH
def test_the_session_s_random_states_are_untouched(observer, config) -> None:
    before = random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()
    run(observer, config, Noise, shuffle=True)
    after = random.getstate(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()
    assert before == after


def test_an_iterable_dataset_is_not_asked_for_its_length(observer) -> None:
    facts = run(observer, FORK, Stream)
    assert (facts.expected_batches, facts.samples, facts.batches) == (None, 8, 2)


def test_samples_that_are_not_batched(observer) -> None:
    facts = run(observer, W0, batch_size=None)
    assert (facts.samples, facts.batches) == (10, 10)


def test_warnings_are_noted_and_issued_again(observer) -> None:
    with pytest.warns(UserWarning, match="^old file$"):
        facts = run(observer, W0, Warning_)
    assert facts.warnings == ("UserWarning: old file",)


def test_arguments_that_are_left_out_are_noted(observer) -> None:
    facts = run(observer, W0, persistent_workers=True)
    assert facts.notes == ("persistent_workers is left out: there are no workers",)


def test_a_dataset_that_is_not_built_afresh_is_noted(observer) -> None:
    given = Pipeline("content-given", dataset=Numbers(), loader_kwargs={"batch_size": 4})
    assert observer.observe(given, RunRequest(FORK)).notes == ("the dataset is not built afresh",)


# Errors by stage ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "make", "stage", "reason"),
    [
        (W0, broken_dataset, "build", "FileNotFoundError: no such folder"),
        (FORK, broken_dataset, "build", "FileNotFoundError: no such folder"),
        # The first batches are asked for when workers start, and one by one where there are none.
        (W0, Unsampled, "iterate", "LookupError: no index"),
        (FORK, Unsampled, "start", "LookupError: no index"),
        (W0, Broken, "iterate", "ValueError: bad record"),
        (FORK, Broken, "iterate", "ValueError: bad record"),
    ],
)
def test_an_error_is_told_with_its_stage(observer, config, make, stage, reason) -> None:
    sampler = Sampler() if make is Unsampled else None
    facts = run(observer, config, make, sampler=sampler)
    assert (facts.outcome, facts.reason) == (RAISED, reason)
    assert facts.error is not None
    assert facts.error.stage == stage
    assert facts.error.file == __file__


@BOTH
def test_the_place_of_an_error_and_the_batches_before_it(observer, config) -> None:
    facts = run(observer, config, Broken)
    assert facts.error is not None
    assert facts.error.source == 'raise ValueError("bad record")  # the line of the error'
    assert facts.error.function == "__getitem__"
    assert facts.batches == 1


def test_a_worker_that_ends_itself(observer) -> None:
    facts = run(observer, FORK, Ending)
    assert (facts.outcome, facts.reason) == (DIED, "a worker ended with exit code 3")
    assert 3 in [w.exit_code for w in facts.workers]


def leave() -> None:
    sys.exit("no such file")  # the line where it leaves


def crash() -> None:
    ctypes.string_at(0)  # the line where it crashes


def stop() -> None:
    os._exit(0)


class Faulty(Numbers):
    """Does something to its worker at the sample 7, in batch 1 of four."""

    def __init__(self, fault: Callable[[], None]) -> None:
        super().__init__()
        self.fault = fault

    def __getitem__(self, index: int) -> Any:
        if index == 7:
            self.fault()
        return super().__getitem__(index)


@pytest.mark.parametrize(
    ("fault", "reason", "told"),
    [
        (leave, "a worker ended with exit code 1", ("leave", "SystemExit", "no such file")),
        (crash, "a worker was ended by SIGSEGV (signal 11)", ("fault", "Segmentation fault", "")),
        (stop, "a worker ended with exit code 0", None),
    ],
)
def test_a_worker_that_dies_leaves_its_place(observer, monkeypatch, fault, reason, told) -> None:
    monkeypatch.setattr(observer, "timeout_s", 1)
    facts = run(observer, FORK, functools.partial(Faulty, fault))
    assert (facts.outcome, facts.reason) == (DIED, reason)
    assert facts.last_task == LastTask(worker_id=1, made=0, batch=1, indices="4, 5, 6, 7")
    if told is None:
        assert facts.error is None
    else:
        assert facts.error is not None
        assert (facts.error.stage, facts.error.type, facts.error.message) == told
        assert facts.error.function == fault.__name__
        assert "# the line where it " in (facts.error.source or "")


class FaultyLater(Faulty):
    """Sound in the first epoch, of which persistent workers know only that they saw the sample."""

    epoch = met = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> Any:
        self.met += index == 7
        later = self.epoch or self.met > 1
        return super().__getitem__(index) if later else Numbers.__getitem__(self, index)


def sleep() -> None:
    time.sleep(3600)


@pytest.mark.parametrize(
    ("fault", "outcome", "reason"),
    [
        (sleep, HUNG, "no batch for 1 s"),
        (stop, DIED, "a worker ended with exit code 0"),
        (crash, DIED, "a worker was ended by SIGSEGV (signal 11)"),
    ],
)
@pytest.mark.parametrize("persistent", [True, False])
def test_a_fault_in_a_later_epoch(
    observer, monkeypatch, *, persistent, fault, outcome, reason
) -> None:
    """The workers of the first epoch have ended rightly, or are the same."""
    monkeypatch.setattr(observer, "timeout_s", 1)
    made = functools.partial(FaultyLater, fault)
    facts = run(observer, FORK, made, epochs=2, persistent_workers=persistent)
    assert (facts.outcome, facts.reason, facts.epochs[0].batches) == (outcome, reason, 3)
    if outcome == DIED:
        assert facts.last_task == LastTask(worker_id=1, made=0, batch=1, indices="4, 5, 6, 7")


def keep_a_thread() -> None:
    threading.Thread(target=time.sleep, args=(3600,)).start()


def test_the_end_of_persistent_workers_counts_as_closing(observer) -> None:
    """They end as the loader is let go, which waits for each: the worker lives on, and returns."""
    made = functools.partial(FaultyLater, keep_a_thread)
    facts = run(observer, FORK, made, epochs=2, persistent_workers=True)

    assert facts.outcome == OK
    assert facts.close_s is not None
    assert facts.close_s > 4


def make_local() -> type[Exception]:
    class Local(Exception):
        pass

    return Local


LOCAL = make_local()


def raise_local() -> None:
    raise LOCAL("not to be sent")


class BadRow(Exception):
    def __init__(self, path: str, line: int) -> None:
        super().__init__(f"{path}:{line}")


def raise_bad_row() -> None:
    raise BadRow("rows.csv", 7)


def test_an_exception_that_cannot_be_sent(observer, monkeypatch) -> None:
    monkeypatch.setattr(observer, "timeout_s", 10)
    facts = run(observer, FORK, functools.partial(Faulty, raise_local))
    assert (facts.outcome, facts.reason) == (HUNG, "a batch could not be sent")
    assert facts.error is not None
    assert (facts.error.stage, facts.error.type, facts.error.function) == (
        "send",
        "Local",
        "raise_local",
    )
    [part] = facts.unpicklable
    assert part.path == "exception"
    assert part.kind == "the class make_local.<locals>.Local, defined inside a function"


@BOTH
def test_an_exception_of_two_arguments(observer, config) -> None:
    facts = run(observer, config, functools.partial(Faulty, raise_bad_row))
    assert facts.error is not None
    assert (facts.error.type, facts.error.message) == ("BadRow", "rows.csv:7")
    line = BadRow.__init__.__code__.co_firstlineno
    arrival = ArrivalFacts("RuntimeError", "BadRow(path: 'str', line: 'int') -> 'None'", "", False)
    told = facts.error.arrival
    assert told == (replace(arrival, defined=f"{__file__}:{line}") if config.has_workers else None)


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")
@pytest.mark.parametrize("pinned", [True, False])
def test_what_pinning_passes_on_is_looked_for_where_it_is_asked(observer, pinned) -> None:
    facts = run(observer, W0, pin_memory=pinned, collate_fn=Holder)
    assert facts.unpinnable == ((("batch", "Holder", "batch.items[0]"),) if pinned else ())


class Holder:
    def __init__(self, items: list[torch.Tensor]) -> None:
        self.items = items


def test_a_run_that_hangs(observer, monkeypatch) -> None:
    monkeypatch.setattr(observer, "timeout_s", 1)
    facts = run(observer, FORK, Waiting)
    assert (facts.outcome, facts.reason, facts.error) == (HUNG, "no batch for 1 s", None)
    assert facts.batches == 1
    assert "__getitem__" in facts.stuck
    assert "test_content.py" in facts.stuck
    assert multiprocessing.active_children() == []


# Epochs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epochs", "told"), [(1, [0]), (3, [0, 1, 2])])
def test_the_dataset_is_told_each_epoch_once(observer, epochs, told) -> None:
    made: list[Epochs] = []

    def make() -> Epochs:
        made.append(Epochs())
        return made[-1]

    facts = run(observer, W0, make, epochs)
    assert [dataset.told for dataset in made] == [told]
    assert [epoch.epoch for epoch in facts.epochs] == told


def test_epochs_are_counted_apart(observer) -> None:
    facts = run(observer, FORK, Epochs, epochs=3)
    assert [(e.batches, e.samples) for e in facts.epochs] == [(3, 10)] * 3
    assert [sorted(e.worker_samples) for e in facts.epochs] == [[4, 6]] * 3
    assert len({epoch.digest for epoch in facts.epochs}) == 3
    assert len(facts.workers) == 6
    assert facts.digest == "-".join(epoch.digest or "" for epoch in facts.epochs)
