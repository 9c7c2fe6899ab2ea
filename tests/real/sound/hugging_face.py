"""Hugging Face's datasets: in memory, and as a stream of four shards."""

from typing import Any

import datasets


def make_map_style() -> datasets.Dataset:
    columns = {
        "tokens": [[n, n + 1, n + 2] for n in range(24)],
        "label": [n % 2 for n in range(24)],
        "text": [f"sentence {n}" for n in range(24)],
    }
    dataset = datasets.Dataset.from_dict(columns)
    dataset.set_format("torch")
    return dataset


def make_streaming() -> datasets.IterableDataset:
    return make_map_style().to_iterable_dataset(num_shards=4)


def make_shuffled_stream() -> datasets.IterableDataset:
    """Another order in each epoch, through `set_epoch`."""
    return make_streaming().map(with_length).shuffle(seed=0, buffer_size=8)


def with_length(row: dict[str, Any]) -> dict[str, Any]:
    return {"length": len(row["text"])}


def make_loader_kwargs() -> dict[str, Any]:
    return {"batch_size": 4}
