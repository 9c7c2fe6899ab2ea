"""The DataLoader of torchdata that can be resumed."""

from typing import Any

import torch
from torch.utils.data import TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader


def make_stateful(num_workers: int) -> StatefulDataLoader[Any]:
    tensors = TensorDataset(torch.arange(96).reshape(24, 4))
    return StatefulDataLoader(tensors, batch_size=4, shuffle=True, num_workers=num_workers)
