"""A pandas frame with numbers, text, categories and dates."""

from typing import Any

import pandas as pd
import torch
from torch.utils.data import Dataset


class Frame(Dataset[dict[str, Any]]):
    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame = frame

    def __len__(self) -> int:
        return len(self.frame)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self.frame.iloc[index]
        features = row[["height", "weight"]].to_numpy(dtype="float32")
        return {
            "features": torch.from_numpy(features),
            "name": row["name"],
            "kind": str(row["kind"]),
            "day": row["day"].isoformat(),
        }


def make_frame() -> Frame:
    columns = {
        "height": [1.5 + n / 50 for n in range(24)],
        "weight": range(50, 74),
        "name": [f"person {n}" for n in range(24)],
        "kind": pd.Categorical(["young", "old"] * 12),
        "day": pd.date_range("2024-01-01", periods=24),
    }
    return Frame(pd.DataFrame(columns))


def make_loader_kwargs() -> dict[str, Any]:
    return {"batch_size": 4, "shuffle": True}
