"""The handwritten digits that come with scikit-learn."""

from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.utils.data import Dataset, Subset


class Digits(Dataset[tuple[Tensor, int]]):
    def __init__(self) -> None:
        self.digits = load_digits()

    def __len__(self) -> int:
        return len(self.digits.target)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = torch.from_numpy(self.digits.images[index]).float() / 16
        return image, int(self.digits.target[index])


def make_digits() -> Subset[Any]:
    return Subset(Digits(), range(64))


def make_loader_kwargs() -> dict[str, Any]:
    return {"batch_size": 8, "shuffle": True}
