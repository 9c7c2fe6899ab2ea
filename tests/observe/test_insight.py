"""Runs of three epochs, run for real: samples, indices, generators and stored data."""

from __future__ import annotations

import itertools
import multiprocessing
import random
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from pytest_dataloader.matrix import LoaderConfig
from pytest_dataloader.observe.digest import digest
from pytest_dataloader.observe.facts import RAISED, DifferenceFacts, RunFacts, RunRequest
from pytest_dataloader.observe.observer import Observer
from pytest_dataloader.pipeline import Pipeline

W0 = LoaderConfig(None, 0)
FORK = LoaderConfig("fork", 2)
BOTH = pytest.mark.parametrize("config", [W0, FORK], ids=lambda config: config.id)

pytestmark = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="fork is not available here"
)


class Numbers(Dataset[Any]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(float(index))


class Noisy(Numbers):
    def __init__(self) -> None:
        self.noise = random.Random(0)

    def __getitem__(self, index: int) -> Any:
        return self.noise.random()


class Unused(Numbers):
    def __init__(self) -> None:
        self.noise = random.Random(0)


class Dimmed(Numbers):
    def __init__(self) -> None:
        self.images = torch.ones(10)
        self.seen = torch.zeros(1)
        self.grown: list[int] = []

    def __getitem__(self, index: int) -> Any:
        self.grown.append(index)
        return self.images[index].mul_(0.5)


class Epochs(Numbers):
    def __init__(self) -> None:
        self.epoch, self.rates = 0, {"low": 0.1}

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.rates["low"] = 0.1 * epoch

    def __getitem__(self, index: int) -> Any:
        return index, self.epoch


class Opaque(Numbers):
    def __getitem__(self, index: int) -> Any:
        return threading.Lock()


class Pair:
    def __init__(self, one: Any, other: Any) -> None:
        self.one, self.other = one, other


class Rows(IterableDataset[Any]):
    def __init__(self) -> None:
        self.rows = iter(range(4))
        self.inner = Pair(zip("ab", "cd", strict=True), [1, 2])

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self.rows))

    def __len__(self) -> int:
        return 4


class Late(Numbers):
    """A dataset whose second epoch fails."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> Any:
        if self.epoch == 1:
            raise ValueError("bad record")
        return index


_NUMBERS = itertools.count()


def run(observer: Observer, config: LoaderConfig, make: Any = Numbers, **kwargs: Any) -> RunFacts:
    """Three epochs of batches of two."""
    key = kwargs.pop("sample_key", None)
    pipeline = Pipeline(
        f"insight-{next(_NUMBERS)}", make_dataset=make, loader_kwargs={"batch_size": 2, **kwargs}
    )
    pipeline.sample_key = key
    return observer.observe(pipeline, RunRequest(config, repeat=1, epochs=3))


def identity(sample: Any) -> str:
    return digest(sample).hex[:16]


def drawn(facts: RunFacts, path: str, epoch: int = 0) -> list[Any]:
    return [one for one in facts.randomness if (one.path, one.epoch) == (path, epoch)]


# Samples -----------------------------------------------------------------------------------------


@BOTH
def test_each_sample_has_its_identity(observer, config) -> None:
    facts = run(observer, config)
    wanted = Counter(identity(torch.tensor(float(i))) for i in range(10))
    assert [Counter(epoch.sample_ids) for epoch in facts.epochs] == [wanted] * 3


@BOTH
def test_the_indices_are_those_of_the_sampler(observer, config) -> None:
    facts = run(observer, config, shuffle=True)
    given = [epoch.indices for epoch in facts.epochs]
    assert [sorted(indices or ()) for indices in given] == [list(range(10))] * 3
    assert len(set(given)) == 3
    assert [epoch.indices for epoch in run(observer, config).epochs] == [tuple(range(10))] * 3


class Short:
    """Pairs of indices, one fewer than it says."""

    def __iter__(self) -> Any:
        return iter([[0, 1], [2, 3], [4, 5]])

    def __len__(self) -> int:
        return 4

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


@BOTH
def test_what_a_batch_sampler_asks_for(observer, config) -> None:
    facts = run(observer, config, batch_sampler=Short(), batch_size=1)

    assert (facts.order, facts.expected_batches) == ("loader.batch_sampler", 4)
    assert [(epoch.asked, epoch.batches) for epoch in facts.epochs] == [(3, 3)] * 3
    assert facts.dataset is not None
    assert facts.dataset.told_epochs == ("loader.batch_sampler", "Short")


def test_samples_stand_in_the_order_of_their_indices_without_workers(observer) -> None:
    facts = run(observer, W0, shuffle=True)
    for epoch in facts.epochs:
        made = [identity(torch.tensor(float(i))) for i in epoch.indices or ()]
        assert list(epoch.sample_ids or ()) == made


def test_samples_that_are_not_batched(observer) -> None:
    facts = run(observer, W0, batch_size=None)
    assert [len(epoch.sample_ids or ()) for epoch in facts.epochs] == [10] * 3
    assert [epoch.indices for epoch in facts.epochs] == [tuple(range(10))] * 3


def test_samples_without_content(observer) -> None:
    facts = run(observer, W0, Opaque, collate_fn=len)
    assert facts.epochs[0].sample_ids == (None,) * 10


def test_the_user_s_key_is_the_identity(observer) -> None:
    facts = run(observer, W0, sample_key=lambda sample: int(sample) % 2)
    assert len(set(facts.epochs[0].sample_ids or ())) == 2


@pytest.mark.parametrize(("config", "given"), [(W0, [10]), (FORK, [4, 6])])
def test_how_many_samples_each_worker_gave(observer, config, given) -> None:
    facts = run(observer, config)
    assert [sorted(epoch.worker_samples) for epoch in facts.epochs] == [given] * 3
    assert [epoch.samples for epoch in facts.epochs] == [10] * 3


@BOTH
def test_the_content_is_as_without_what_rides_along(observer, config) -> None:
    facts = run(observer, config)
    plain = observer.observe(
        Pipeline("insight-plain", make_dataset=Numbers, loader_kwargs={"batch_size": 2}),
        RunRequest(config),
    )
    assert {epoch.digest for epoch in facts.epochs} == {plain.epochs[0].digest}
    assert (plain.epochs[0].sample_ids, plain.epochs[0].indices) == (None, None)
    assert (plain.randomness, plain.dataset, plain.drifted) == ((), None, ())


# Generators --------------------------------------------------------------------------------------


def test_a_held_generator_begins_alike_in_each_worker_and_epoch(observer) -> None:
    facts = run(observer, FORK, Noisy)
    for epoch in range(3):
        one, other = drawn(facts, "dataset.noise", epoch)
        assert one.pid != other.pid
        assert one.first == other.first == drawn(facts, "dataset.noise")[0].first is not None
        assert one.used
        assert other.used


def test_a_held_generator_goes_on_in_persistent_workers(observer) -> None:
    facts = run(observer, FORK, Noisy, persistent_workers=True)
    assert [one.first is None for one in drawn(facts, "dataset.noise", 0)] == [False, False]
    assert [one.first is None for one in drawn(facts, "dataset.noise", 1)] == [True, True]
    first, second = (
        {state for one in drawn(facts, "dataset.noise", n) for state in one.states} for n in (0, 1)
    )
    assert not first & second


def test_a_held_generator_goes_on_without_workers(observer) -> None:
    facts = run(observer, W0, Noisy)
    # looked at after batches 1, 2, 4, 8 and 16 of a process; an epoch has five
    states = [one.states for n in range(3) for one in drawn(facts, "dataset.noise", n)]
    assert [len(seen) for seen in states] == [3, 1]
    assert len(set(itertools.chain(*states))) == 4


@BOTH
def test_a_generator_that_is_not_drawn_from(observer, config) -> None:
    facts = run(observer, config, Unused)
    seen = drawn(facts, "dataset.noise")
    assert len(seen) == (config.num_workers or 1)
    assert not any(one.used for one in seen)


def test_global_generators_differ_between_workers_and_epochs(observer) -> None:
    facts = run(observer, FORK)
    for path in ("random", "torch", "numpy.random"):
        firsts = [one.first for epoch in range(3) for one in drawn(facts, path, epoch)]
        assert len(set(firsts)) == 6


# Stored data -------------------------------------------------------------------------------------


def test_data_that_is_edited_in_place(observer) -> None:
    [drift] = run(observer, W0, Dimmed).drifted
    ones, eighths = ", ".join(["1"] * 6), ", ".join(["0.125"] * 6)
    kind = "float32 tensor of shape [10]"
    assert drift == DifferenceFacts(
        "dataset.images", f"{kind} [{ones}, ...]", f"{kind} [{eighths}, ...]", 3, False
    )


def test_edits_in_workers_are_not_seen_in_this_process(observer) -> None:
    assert run(observer, FORK, Dimmed).drifted == ()


@BOTH
def test_fields_that_set_epoch_changes(observer, config) -> None:
    facts = run(observer, config, Epochs)
    assert facts.epoch_fields == ("dataset.epoch", "dataset.rates")
    assert facts.drifted == ()
    assert len({epoch.digest for epoch in facts.epochs}) == 3


def test_without_set_epoch_no_field_is_changed_by_it(observer) -> None:
    assert run(observer, W0, Dimmed).epoch_fields == ()


# The dataset -------------------------------------------------------------------------------------


def line_of(method: str, kind: type) -> str:
    return f"{__file__}:{getattr(kind, method).__code__.co_firstlineno}"


def test_what_a_map_style_dataset_says_of_itself(observer) -> None:
    described = run(observer, FORK, Epochs, persistent_workers=True, drop_last=True).dataset
    assert described is not None
    assert (described.kind, described.length, described.iterable) == ("Epochs", 10, False)
    assert (described.persistent, described.drop_last) == (True, True)
    assert described.sampler == "torch.utils.data.sampler.SequentialSampler"
    assert described.iterators == ()
    assert described.places == {
        "__getitem__": line_of("__getitem__", Epochs),
        "__len__": line_of("__len__", Numbers),
        "set_epoch": line_of("set_epoch", Epochs),
    }
    assert Path(described.places["__len__"].rpartition(":")[0]).is_file()


def test_what_an_iterable_dataset_says_of_itself(observer) -> None:
    facts = run(observer, W0, Rows)
    described = facts.dataset
    assert described is not None
    assert (described.kind, described.length, described.iterable) == ("Rows", 4, True)
    assert described.iterators == ("dataset.rows", "dataset.inner.one")
    assert set(described.places) == {"__iter__", "__len__"}
    assert [epoch.indices for epoch in facts.epochs] == [None] * 3
    assert [epoch.samples for epoch in facts.epochs] == [4, 0, 0]


def test_a_later_epoch_that_fails_leaves_what_was_seen(observer) -> None:
    facts = run(observer, W0, Late)
    assert (facts.outcome, facts.reason) == (RAISED, "ValueError: bad record")
    assert [epoch.batches for epoch in facts.epochs] == [5, 0]
    assert facts.dataset is not None
