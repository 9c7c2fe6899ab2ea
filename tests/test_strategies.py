"""What the strategies draw is valid: a DataLoader takes it and gives what it says."""

from __future__ import annotations

import torch
from hypothesis import find, given, settings, strategies as st
from torch.utils.data import DataLoader, TensorDataset

from pytest_dataloader.matrix import LoaderConfig, lacking
from pytest_dataloader.pipeline import Pipeline
from pytest_dataloader.strategies import (
    batch_samplers,
    index_subsets,
    loader_configs,
    loader_kwargs,
)


@given(loader_configs())
def test_configurations_are_offered_and_build_a_loader(config) -> None:
    assert lacking(config) is None
    pipeline = Pipeline("p", dataset=TensorDataset(torch.arange(4)))
    loader = pipeline.build(config, config.start_method).loader
    assert loader.num_workers == config.num_workers


def test_configurations_shrink_to_no_workers() -> None:
    assert find(loader_configs(), lambda _config: True) == LoaderConfig(None, 0)
    smallest = find(loader_configs(start_methods=["fork", "spawn"]), lambda c: c.num_workers > 0)
    assert smallest == LoaderConfig("fork", 1)


@given(st.integers(0, 12).flatmap(lambda n: st.tuples(st.just(n), index_subsets(n))))
def test_subsets_hold_different_indices(drawn) -> None:
    length, indices = drawn
    assert len(set(indices)) == len(indices)
    assert set(indices) <= set(range(length))


@given(st.integers(0, 12).flatmap(lambda n: st.tuples(st.just(n), batch_samplers(n))))
def test_batch_samplers_give_each_index_once(drawn) -> None:
    length, batches = drawn
    assert sorted(index for batch in batches for index in batch) == list(range(length))
    assert all(batches)


@settings(max_examples=50)
@given(st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), loader_kwargs(n))))
def test_a_loader_takes_the_arguments(drawn) -> None:
    length, kwargs = drawn
    loader = DataLoader(TensorDataset(torch.arange(length)), **kwargs)
    assert len(list(loader)) == len(loader)
