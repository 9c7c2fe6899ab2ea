"""Headspace: what a loader gives whose batches are in memory, measured with a forked worker."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from pytest_dataloader.matrix import LoaderConfig
from pytest_dataloader.observe.facts import TIMED, RunRequest
from pytest_dataloader.observe.headspace import Held
from pytest_dataloader.observe.observer import Observer
from pytest_dataloader.pipeline import Pipeline

FORK = LoaderConfig("fork", 1)


class Slow(Dataset[Any]):
    def __getitem__(self, index: int) -> Any:
        time.sleep(0.01)
        return torch.full((4,), index)

    def __len__(self) -> int:
        return 64


class OnlyInWorkers(Slow):
    def __getitem__(self, index: int) -> Any:
        if torch.utils.data.get_worker_info() is None:
            raise RuntimeError("there is no worker")
        return super().__getitem__(index)


def timed(observer: Observer, dataset: Any, budget: float, config: LoaderConfig = FORK) -> Any:
    pipeline = Pipeline(type(dataset).__name__, dataset=dataset, loader_kwargs={"batch_size": 2})
    request = RunRequest(config, purpose=TIMED, seconds=0.4, budget=budget)
    return observer.observe(pipeline, request)


@pytest.mark.skipif(sys.platform == "win32", reason="runs a worker by fork")
def test_it_is_measured_where_a_budget_is_missed(observer) -> None:
    facts = timed(observer, Slow(), 1000)
    assert facts.rate.batches_per_s < 60
    assert facts.rate.headspace > 3 * facts.rate.batches_per_s


@pytest.mark.skipif(sys.platform == "win32", reason="runs a worker by fork")
def test_it_is_not_measured_where_a_budget_is_met(observer) -> None:
    assert timed(observer, Slow(), 5).rate.headspace is None


def test_it_is_not_measured_without_workers(observer) -> None:
    assert timed(observer, Slow(), 1000, LoaderConfig(None, 0)).rate.headspace is None


@pytest.mark.skipif(sys.platform == "win32", reason="runs a worker by fork")
def test_a_batch_that_this_process_cannot_make(observer) -> None:
    facts = timed(observer, OnlyInWorkers(), 1000)
    assert facts.outcome == "ok"
    assert facts.rate.headspace is None
    assert facts.notes == ("headspace: not measured, RuntimeError: there is no worker",)


def test_each_batch_is_a_copy() -> None:
    batch = {"x": torch.ones(2)}
    loader: Any = DataLoader(Held(batch), batch_size=None)  # type: ignore[arg-type]
    first = next(iter(loader))
    assert torch.equal(first["x"], batch["x"])
    assert first["x"].data_ptr() != batch["x"].data_ptr()
