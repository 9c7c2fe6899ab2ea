"""A broken training script: no main guard.

A spawned worker imports the script to find its classes, and so would run the training, which
starts workers, which import the script. Python stops it with an error about the bootstrapping
phase; under fork nothing is seen. To mend it: put the last lines behind
`if __name__ == "__main__":`, as train_guarded.py does.
"""

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset[Tensor]):
    """16 samples of shape (), float32."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(float(index))


total = 0.0
for batch in DataLoader(Numbers(), batch_size=4, num_workers=2):
    total += batch.sum().item()
print(f"sum of all samples: {total}")
