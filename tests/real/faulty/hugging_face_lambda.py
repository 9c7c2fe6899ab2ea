"""Lambdas given to Hugging Face's datasets: in memory, and in a stream's map."""

import datasets
from hugging_face import make_map_style, make_streaming


def make_transformed() -> datasets.Dataset:
    return make_map_style().with_transform(lambda rows: {"label": rows["label"]})


def make_mapped() -> datasets.IterableDataset:
    return make_streaming().map(lambda row: {"length": len(row["text"])})
