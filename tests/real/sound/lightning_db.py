"""LMDB: the environment is opened at first use, and never pickled."""

from pathlib import Path
from typing import Any

import lmdb
import torch
from scratch import written
from torch import Tensor
from torch.utils.data import Dataset


def write_database(folder: Path) -> None:
    with (
        lmdb.open(str(folder / "images.lmdb"), subdir=False, map_size=2**20) as environment,
        environment.begin(write=True) as transaction,
    ):
        for n in range(24):
            transaction.put(f"{n:04}".encode(), bytes(range(n, n + 16)))


class Lmdb(Dataset[Tensor]):
    def __init__(self, path: Path) -> None:
        self.path = path
        self.environment: lmdb.Environment | None = None
        with open_read_only(path) as environment:
            self.length = environment.stat()["entries"]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "environment": None}

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        if self.environment is None:
            self.environment = open_read_only(self.path)
        with self.environment.begin() as transaction:
            value = transaction.get(f"{index:04}".encode())
        return torch.frombuffer(bytearray(value), dtype=torch.uint8)


def open_read_only(path: Path) -> lmdb.Environment:
    return lmdb.open(str(path), subdir=False, readonly=True, lock=False, readahead=False)


def make_lmdb() -> Lmdb:
    return Lmdb(written(write_database) / "images.lmdb")


def make_loader_kwargs() -> dict[str, Any]:
    return {"batch_size": 4, "shuffle": True}
