"""A pandas frame of 12 MB on the dataset: each worker is sent all of it."""

from typing import Any

import numpy as np
import pandas as pd
import torch
from torch.utils.data import Dataset, Subset


class Frame(Dataset[Any]):
    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame = frame

    def __len__(self) -> int:
        return len(self.frame)

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(self.frame.iloc[index].to_numpy(copy=True))


def make_frame() -> Subset[Any]:
    frame = pd.DataFrame(np.arange(1_500_000, dtype=np.float64).reshape(-1, 3), columns=list("abc"))
    return Subset(Frame(frame), range(8))
