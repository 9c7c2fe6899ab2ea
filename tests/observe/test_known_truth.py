"""Random datasets of a known truth, run for real: what is found is what is wrong with them."""

from __future__ import annotations

import itertools
import multiprocessing
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, note, settings, strategies as st
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from pytest_dataloader.checks.asked import Complete, Seeding
from pytest_dataloader.checks.catalogue import BY_NAME
from pytest_dataloader.checks.evidence import Question
from pytest_dataloader.checks.finding import ERROR
from pytest_dataloader.judge import judge
from pytest_dataloader.matrix import LoaderConfig
from pytest_dataloader.observe.observer import Observer
from pytest_dataloader.pipeline import Pipeline

W0 = LoaderConfig(None, 0)
FORK = LoaderConfig("fork", 2)
SPAWN = LoaderConfig("spawn", 2)

STRIDE, WHOLE, OVERLAP, FLOOR = "by stride", "not at all", "overlapping", "rounded down"
NO_NOISE, GLOBAL_TORCH, GLOBAL_PYTHON = "none", "torch", "random"
HELD_TORCH, HELD_PYTHON, OWN_SEED = "a torch.Generator held", "a Random held", "a seed in __iter__"
KEPT, EDITED, COPIED = "kept", "edited in place", "copied, then edited"


def noise_from(source: str, held: Any) -> float:
    if source == NO_NOISE:
        return 0.0
    if source == GLOBAL_TORCH:
        return float(torch.rand(()))
    if source == HELD_TORCH:
        return float(torch.rand((), generator=held))
    return (random if source == GLOBAL_PYTHON else held).random()


def held_for(source: str) -> Any:
    if source == HELD_TORCH:
        return torch.Generator().manual_seed(0)
    return random.Random(0) if source == HELD_PYTHON else None


# Iterable datasets ---------------------------------------------------------------------------


@dataclass(frozen=True)
class StreamPlan:
    """A stream of ``count`` samples, and what is wrong with it."""

    count: int
    shares: str
    one_shot: bool
    announced: int | None
    noise: str
    batch_size: int
    drop_last: bool
    persistent: bool

    def dataset(self) -> Dataset[Any]:
        return Stream(self) if self.announced is None else StreamOfLength(self)

    def share(self, number: int, workers: int) -> list[int]:
        rows, half = list(range(self.count)), -(-self.count // workers)
        if self.shares == STRIDE:
            return rows[number::workers]
        if self.shares == WHOLE:
            return rows
        if self.shares == OVERLAP:
            return rows[number * half : (number + 1) * half + 1]
        floor = self.count // workers
        return rows[number * floor : (number + 1) * floor]

    def given(self, workers: int) -> Counter[int]:
        """The samples of an epoch."""
        found: Counter[int] = Counter()
        for number in range(workers or 1):
            share = self.share(number, workers or 1)
            end = len(share) - (len(share) % self.batch_size if self.drop_last else 0)
            found.update(share[:end])
        return found

    def truth(self, config: LoaderConfig) -> set[str]:
        """The codes of what is wrong under a configuration."""
        found, workers = set(), config.num_workers or 0
        given = self.given(workers)
        if workers and max(given.values(), default=0) > 1:
            found.add("duplicated-samples")
        if workers and not self.drop_last and len(given) < self.count:
            found.add("lost-samples")
        if self.one_shot and given and (not workers or self.persistent):
            found.add("empty-epoch")
        if not workers and not self.drop_last and self.announced not in (None, self.count):
            found.add("wrong-length")
        batches = [self.batches(number) for number in range(workers)]
        return found | _of_noise(self.noise, batches, persistent=self.persistent)

    def unsure(self) -> set[str]:
        """The codes of which nothing is known: random samples are counted, not recognised."""
        return {"duplicated-samples"} if self.noise != NO_NOISE and self.drop_last else set()

    def batches(self, number: int) -> int:
        samples = len(self.share(number, 2))
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)


def _of_noise(noise: str, batches: list[int], *, persistent: bool) -> set[str]:
    """What a generator on the dataset does to workers that make so many batches each."""
    found: set[str] = set()
    if noise in (HELD_TORCH, HELD_PYTHON):
        if min(batches, default=0) > 0:
            found.add("duplicate-randomness")
        if max(batches, default=0) > 0 and not persistent:
            found.add("epochs-identical")
    return found


class Stream(IterableDataset[Any]):
    def __init__(self, plan: StreamPlan) -> None:
        self.plan = plan
        self.held = held_for(plan.noise)
        if plan.one_shot:
            self.rows = iter(range(plan.count))

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        number, workers = (info.id, info.num_workers) if info else (0, 1)
        rows = list(self.rows) if self.plan.one_shot else list(range(self.plan.count))
        held = random.Random(0) if self.plan.noise == OWN_SEED else self.held
        for row in self.plan.share(number, workers):
            if row in rows:
                yield torch.tensor([row, noise_from(self.plan.noise, held)], dtype=torch.float64)


class StreamOfLength(Stream):
    def __len__(self) -> int:
        assert self.plan.announced is not None
        return self.plan.announced


streams = st.builds(
    StreamPlan,
    count=st.integers(1, 12),
    shares=st.sampled_from([STRIDE, STRIDE, WHOLE, OVERLAP, FLOOR]),
    one_shot=st.booleans(),
    announced=st.none() | st.integers(0, 12),
    noise=st.sampled_from([NO_NOISE, GLOBAL_TORCH, GLOBAL_PYTHON, HELD_TORCH, OWN_SEED]),
    batch_size=st.integers(1, 4),
    drop_last=st.booleans(),
    persistent=st.booleans(),
)


# Map-style datasets --------------------------------------------------------------------------


@dataclass(frozen=True)
class TablePlan:
    """A table of ``count`` rows, and what is wrong with it."""

    count: int
    stops_at: int | None
    noise: str
    data: str
    hears_epochs: bool
    batch_size: int
    shuffle: bool
    persistent: bool

    def dataset(self) -> Dataset[Any]:
        return TableOfEpochs(self) if self.hears_epochs else Table(self)

    @property
    def stops(self) -> bool:
        return self.stops_at is not None and self.stops_at < self.count

    def truth(self, config: LoaderConfig) -> set[str]:
        """The codes of what is wrong under a configuration."""
        found, workers = set(), config.num_workers or 0
        if self.stops:
            found.add("silent-truncation")
        if self.data == EDITED and not workers and self.noise == NO_NOISE:
            found.add("epochs-drift")
        if self.hears_epochs and self.persistent and workers and not self.unlike_in_workers:
            found.add("stale-worker-state")
        batches = -(-self.count // self.batch_size)
        each = [(batches + 1 - number) // 2 for number in range(workers)]
        return found | _of_noise(self.noise, each, persistent=self.persistent)

    def unsure(self) -> set[str]:
        """The codes of which nothing is known: too little was run, or another reason hides it."""
        if self.stops:
            return CODES - {"silent-truncation"}
        return {"epochs-drift"} if self.data == EDITED and self.noise != NO_NOISE else set()

    @property
    def unlike_in_workers(self) -> bool:
        """Whether the epochs of persistent workers differ for another reason than the epoch."""
        return self.noise != NO_NOISE or self.data == EDITED


class Table(Dataset[Any]):
    def __init__(self, plan: TablePlan) -> None:
        self.plan = plan
        self.epoch = 0
        self.held = held_for(plan.noise)
        self.rows = torch.arange(1, plan.count + 1, dtype=torch.float64)

    def __len__(self) -> int:
        return self.plan.count

    def __getitem__(self, index: int) -> Any:
        if index == self.plan.stops_at:
            raise StopIteration
        row = self.rows[index]
        if self.plan.data != KEPT:
            row = (row if self.plan.data == EDITED else row.clone()).mul_(0.5)
        return torch.stack([row, torch.tensor(noise_from(self.plan.noise, self.held)).double()]), (
            self.epoch
        )


class TableOfEpochs(Table):
    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


tables = st.builds(
    TablePlan,
    count=st.integers(1, 12),
    stops_at=st.none() | st.integers(0, 24),
    noise=st.sampled_from(
        [NO_NOISE, NO_NOISE, GLOBAL_TORCH, GLOBAL_PYTHON, HELD_TORCH, HELD_PYTHON]
    ),
    data=st.sampled_from([KEPT, EDITED, COPIED]),
    hears_epochs=st.booleans(),
    batch_size=st.integers(1, 4),
    shuffle=st.booleans(),
    persistent=st.booleans(),
)
# After a StopIteration torch lets each worker take 5 s to end: too long to try it often.
unstopped = tables.map(lambda plan: replace(plan, stops_at=None))


# What is found -------------------------------------------------------------------------------

_NUMBERS = itertools.count()
CODES = {name for name, code in BY_NAME.items() if code.family in ("seeding", "completeness")}


def errors(observer: Observer, plan: Any, config: LoaderConfig) -> set[str]:
    """The codes of the errors of both families."""
    kwargs: dict[str, Any] = {"batch_size": plan.batch_size}
    if isinstance(plan, TablePlan):
        kwargs["shuffle"] = plan.shuffle
    else:
        kwargs["drop_last"] = plan.drop_last
    if config.has_workers:
        kwargs["persistent_workers"] = plan.persistent
    pipeline = Pipeline(f"plan-{next(_NUMBERS)}", make_dataset=plan.dataset, loader_kwargs=kwargs)
    question = Question(config, (W0, config))
    verdict = judge(pipeline, question, (Seeding(), Complete()), observer, timed=False)
    for finding in verdict.findings:
        note(f"{finding.severity} {finding.code}: {finding.message}")
    return {f.code for f in verdict.findings if f.severity == ERROR and f.code in CODES}


many = settings(
    max_examples=136,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
few = settings(many, max_examples=13)
hardly_any = settings(many, max_examples=1)  # each of them truly starts two interpreters
forks = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="fork is not available here"
)


@many
@given(plan=streams)
def test_a_stream_without_workers(observer: Observer, plan: StreamPlan) -> None:
    found = errors(observer, plan, W0)
    assert found - plan.unsure() == plan.truth(W0) - plan.unsure()


@many
@given(plan=tables)
def test_a_table_without_workers(observer: Observer, plan: TablePlan) -> None:
    found = errors(observer, plan, W0)
    assert found - plan.unsure() == plan.truth(W0) - plan.unsure()


@forks
@few
@given(plan=streams)
def test_a_stream_in_forked_workers(observer: Observer, plan: StreamPlan) -> None:
    found = errors(observer, plan, FORK)
    assert found - plan.unsure() == plan.truth(FORK) - plan.unsure()


@forks
@few
@given(plan=unstopped)
def test_a_table_in_forked_workers(observer: Observer, plan: TablePlan) -> None:
    found = errors(observer, plan, FORK)
    assert found - plan.unsure() == plan.truth(FORK) - plan.unsure()


@hardly_any
@given(plan=streams)
def test_a_stream_in_spawned_workers(observer: Observer, plan: StreamPlan) -> None:
    found = errors(observer, plan, SPAWN)
    assert found - plan.unsure() == plan.truth(SPAWN) - plan.unsure()


@hardly_any
@given(plan=unstopped)
def test_a_table_in_spawned_workers(observer: Observer, plan: TablePlan) -> None:
    found = errors(observer, plan, SPAWN)
    assert found - plan.unsure() == plan.truth(SPAWN) - plan.unsure()
