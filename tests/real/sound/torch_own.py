"""The datasets that come with torch."""

from typing import Any

import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    StackDataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)


def make_tensors() -> TensorDataset:
    points = torch.arange(96, dtype=torch.float32).reshape(24, 4)
    return TensorDataset(points, torch.arange(24) % 3)


def make_subset() -> Subset[Any]:
    return Subset(make_tensors(), range(0, 24, 2))


def make_concatenated() -> ConcatDataset[Any]:
    return ConcatDataset([make_tensors(), make_subset()])


def make_stacked() -> StackDataset[Any]:
    return StackDataset(left=make_tensors(), right=make_tensors())


def make_split() -> Dataset[Any]:
    training, _ = random_split(make_tensors(), [0.75, 0.25], torch.Generator().manual_seed(0))
    return training


def make_weighted() -> DataLoader[Any]:
    """Samples of the third class are drawn twice as often."""
    tensors = make_tensors()
    weights = torch.tensor([1.0, 1.0, 2.0])[tensors.tensors[1]]
    sampler = WeightedRandomSampler(weights.tolist(), num_samples=24)
    return DataLoader(tensors, batch_size=4, sampler=sampler)


def make_loader_kwargs() -> dict[str, Any]:
    return {"batch_size": 4, "shuffle": True}
