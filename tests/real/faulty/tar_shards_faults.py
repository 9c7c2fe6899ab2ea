"""A webdataset whose workers all read every shard, and one with a lambda."""

from typing import Any

import webdataset as wds
from tar_shards import shards


def make_unsplit() -> wds.WebDataset:
    stream = wds.WebDataset(shards(), shardshuffle=False, workersplitter=None)
    return stream.decode().to_tuple("__key__", "txt", "cls")


def make_lambda() -> wds.WebDataset:
    stream = wds.WebDataset(shards(), shardshuffle=False)
    return stream.decode().map(lambda sample: sample["txt"])


def make_loader_kwargs() -> dict[str, Any]:
    return {"batch_size": None}
