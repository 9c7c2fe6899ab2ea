"""HDF5 through h5py: the file is opened in the process that reads it."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from scratch import written
from torch import Tensor
from torch.utils.data import Dataset


def write_file(folder: Path) -> None:
    with h5py.File(folder / "images.h5", "w") as file:
        images = np.arange(24 * 64, dtype=np.float32).reshape(24, 8, 8)
        file.create_dataset("images", data=images, chunks=(4, 8, 8))
        file["labels"] = np.arange(24) % 3


class Hdf5(Dataset[Any]):
    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: h5py.File | None = None
        with h5py.File(path, "r") as file:
            self.length = len(file["labels"])

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if self.file is None:
            self.file = h5py.File(self.path, "r")
        image = torch.from_numpy(self.file["images"][index])
        return image, int(self.file["labels"][index])


def make_hdf5() -> Hdf5:
    return Hdf5(written(write_file) / "images.h5")


def make_loader_kwargs() -> dict[str, Any]:
    return {"batch_size": 4, "shuffle": True}
