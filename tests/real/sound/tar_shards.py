"""A webdataset of four tar shards; each worker reads its own."""

from pathlib import Path
from typing import Any

import webdataset as wds
from scratch import written


def write_shards(folder: Path) -> None:
    for shard in range(4):
        with wds.TarWriter(str(folder / f"{shard}.tar")) as tar:
            for n in range(shard * 6, shard * 6 + 6):
                tar.write({"__key__": f"{n:04}", "txt": f"sentence {n}", "cls": n % 3})


def shards() -> list[str]:
    return sorted(str(path) for path in written(write_shards).glob("*.tar"))


def make_shards() -> wds.WebDataset:
    stream = wds.WebDataset(shards(), shardshuffle=False, workersplitter=wds.split_by_worker)
    return stream.decode().to_tuple("__key__", "txt", "cls")


def make_loader_kwargs() -> dict[str, Any]:
    return {"batch_size": None}
