"""Files that must not be shared between processes: HDF5 and a memory map, opened once a process."""

import os
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import h5py
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

T = TypeVar("T")


class Digit(NamedTuple):
    """A handwritten digit: uint8 pixels of shape (8, 8), levels 0 to 16, and its label."""

    pixels: Tensor
    label: int


class OncePerProcess(Generic[T]):
    """Something opened at first use in each process, and never carried into another.

    Pickling drops it, for workers that are spawned. The process id guards those that are forked:
    they inherit the parent's handle, and with it a file position that all of them would move.
    """

    def __init__(self, open_it: Callable[[], T]) -> None:
        self._open_it = open_it
        self._opened: tuple[int, T] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def get(self) -> T:
        """The handle of this process."""
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = (os.getpid(), self._open_it())
        return self._opened[1]


class Hdf5Digits(Dataset[Digit]):
    """Digits out of an HDF5 file that `write_hdf5` wrote."""

    def __init__(self, path: Path) -> None:
        with h5py.File(path, "r") as file:
            self._length = len(file["labels"])
        self._file = OncePerProcess(partial(h5py.File, path, "r"))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Digit:
        file = self._file.get()
        return Digit(torch.from_numpy(file["pixels"][index]), int(file["labels"][index]))


class MappedDigits(Dataset[Digit]):
    """Digits out of an array file that `write_array` wrote, mapped into memory.

    A `numpy.memmap` pickles by value: kept on the dataset, it would send the whole file.
    """

    def __init__(self, path: Path) -> None:
        self._rows = OncePerProcess(partial(np.load, path, mmap_mode="r"))
        self._length = len(np.load(path, mmap_mode="r"))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Digit:
        row = np.array(self._rows.get()[index])  # copied: a view would hold on to the whole map
        return Digit(torch.from_numpy(row[:-1].reshape(8, 8)), int(row[-1]))


def digit_rows() -> NDArray[np.uint8]:
    """The digits that come with scikit-learn, found without importing it.

    An array of shape (1797, 65): a digit a row, 64 pixels and then its label.
    """
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the example digits come with scikit-learn: install it")
    path = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
    return np.loadtxt(path, delimiter=",", encoding="utf-8").astype(np.uint8)


def write_hdf5(folder: Path, rows: NDArray[np.uint8]) -> Path:
    """Write `rows` as two HDF5 datasets, pixels (n, 8, 8) and labels (n,)."""
    path = folder / "digits.h5"
    with h5py.File(path, "w") as file:
        file["pixels"] = rows[:, :-1].reshape(-1, 8, 8)
        file["labels"] = rows[:, -1]
    return path


def write_array(folder: Path, rows: NDArray[np.uint8]) -> Path:
    """Write `rows` as they are, in numpy's own format."""
    path = folder / "digits.npy"
    np.save(path, rows)
    return path
