"""An HDF5 file opened where the dataset is built."""

from pathlib import Path
from typing import Any

import h5py
import torch
from hdf5_file import write_file
from scratch import written
from torch.utils.data import Dataset


class Hdf5(Dataset[Any]):
    def __init__(self, path: Path) -> None:
        self.file = h5py.File(path, "r")

    def __len__(self) -> int:
        return len(self.file["labels"])

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(self.file["images"][index])


class Hdf5Part(Hdf5):
    """Holds an array of the file, which holds the file."""

    def __init__(self, path: Path) -> None:
        self.parts = {"images": h5py.File(path, "r")["images"]}

    def __len__(self) -> int:
        return len(self.parts["images"])

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(self.parts["images"][index])


def make_hdf5() -> Hdf5:
    return Hdf5(written(write_file) / "images.h5")


def make_hdf5_part() -> Hdf5Part:
    return Hdf5Part(written(write_file) / "images.h5")
