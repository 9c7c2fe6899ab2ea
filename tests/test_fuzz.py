"""Fuzzing: a pipeline under drawn configurations, down to the smallest one that fails."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import Dataset, get_worker_info

from pytest_dataloader.checks.asked import Fuzz
from pytest_dataloader.checks.evidence import Question
from pytest_dataloader.fuzz import fuzzed
from pytest_dataloader.matrix import LoaderConfig
from pytest_dataloader.observe.observer import Observer
from pytest_dataloader.pipeline import Pipeline

W0, FORK = LoaderConfig(None, 0), LoaderConfig("fork", 1)
MATRIX = (W0, FORK)

needs_fork = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="fork is not available here"
)


class Numbers(Dataset[torch.Tensor]):
    """Five numbers, which `most_workers` workers can read and no more."""

    def __init__(self, most_workers: int = 8) -> None:
        self.most_workers = most_workers

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> torch.Tensor:
        info = get_worker_info()
        if info is not None and info.num_workers > self.most_workers:
            raise ValueError("too many workers")
        return torch.tensor(index)


@pytest.fixture
def observer() -> Iterator[Observer]:
    made = Observer(timeout_s=30)
    yield made
    made.close()


def pipeline(most_workers: int) -> Pipeline:
    return Pipeline("numbers", make_dataset=lambda: Numbers(most_workers))


@needs_fork
def test_the_smallest_configuration_that_fails(observer: Observer) -> None:
    (finding,) = fuzzed(pipeline(1), Question(FORK, MATRIX), Fuzz(6), observer)
    assert finding.code == "fails-with-workers"
    assert finding.configurations == (LoaderConfig("fork", 2),)
    assert finding.message.startswith("expected an epoch to its end, got ValueError: too many")
    assert finding.message.endswith(" drawn: fork-w2, seed 0")


@needs_fork
def test_codes_that_do_not_count_do_not_fail(observer: Observer) -> None:
    def counts(code: str) -> bool:
        return code != "fails-with-workers"

    question = Question(FORK, MATRIX)
    assert fuzzed(pipeline(1), question, Fuzz(3), observer, counts=counts) == ()


def test_without_workers_the_seed_alone_is_drawn(observer: Observer) -> None:
    assert fuzzed(pipeline(0), Question(W0, MATRIX), Fuzz(3), observer) == ()
