"""An LMDB environment opened where the dataset is built."""

from pathlib import Path
from typing import Any

import torch
from lightning_db import open_read_only, write_database
from scratch import written
from torch.utils.data import Dataset


class Lmdb(Dataset[Any]):
    def __init__(self, path: Path) -> None:
        self.environment = open_read_only(path)

    def __len__(self) -> int:
        return int(self.environment.stat()["entries"])

    def __getitem__(self, index: int) -> Any:
        with self.environment.begin() as transaction:
            value = transaction.get(f"{index:04}".encode())
        return torch.frombuffer(bytearray(value), dtype=torch.uint8)


def make_lmdb() -> Lmdb:
    return Lmdb(written(write_database) / "images.lmdb")
