"""Sound and broken pieces of pipelines; every suite under test can import them."""

import os
import signal
import time

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, get_worker_info


class Numbers(Dataset):
    """16 samples of shape (1,): the base of all the others."""

    def __init__(self, length=16):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.tensor([float(index)])


class Noise(Numbers):
    """Follows no seed."""

    def __getitem__(self, index):
        return torch.tensor(list(os.urandom(4)))


class HoldsLambda(Numbers):
    def __init__(self):
        super().__init__()
        self.steps = [abs, lambda sample: sample]


class SleepsInWorker(Numbers):
    def __getitem__(self, index):
        if get_worker_info() is not None and index == 5:
            time.sleep(3600)  # the worker's line
        return super().__getitem__(index)


class SleepsAnywhere(Numbers):
    def __getitem__(self, index):
        if index == 5:
            time.sleep(3600)  # the parent's line
        return super().__getitem__(index)


class KillsWorker(Numbers):
    def __getitem__(self, index):
        if get_worker_info() is not None and index == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Shard(IterableDataset):
    """The numbers below 16, each from one worker only."""

    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        return (torch.tensor([float(number)]) for number in range(first, 16, step))


class Fetched(Numbers):
    """Fetches whole batches; single samples are refused."""

    def __getitem__(self, index):
        raise AssertionError("whole batches were to be fetched")

    def __getitems__(self, indices):
        return [torch.tensor([index, len(indices)]) for index in indices]


class KnowsWorkers(Numbers):
    """Samples that say what the worker knows of its dataset."""

    def __getitem__(self, index):
        info = get_worker_info()
        seen = self if info is None else info.dataset
        return f"{type(seen).__qualname__} {seen is self} {index}"


INITIALISED = []


class KnowsInit(Numbers):
    """Samples that hold what `remember` has noted in this process."""

    def __getitem__(self, index):
        return torch.tensor([index, *INITIALISED])


def remember(worker_id):
    INITIALISED.append(100 + worker_id)


def in_columns(samples):
    return {"column": torch.cat(samples), "count": len(samples)}


def with_a_lambda(samples):
    return {"sample": samples[0], "undo": lambda: samples[0]}


class Own(DataLoader):
    """A loader with a constructor and an iteration of its own."""

    made = 0

    def __init__(self, *, name):
        super().__init__(Numbers(), batch_size=4, shuffle=True)
        self.name = name
        type(self).made += 1

    def __iter__(self):
        for batch in super().__iter__():
            yield self.name, batch


class Reversed:
    """A sampler that is no torch class."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __iter__(self):
        return iter(range(self.length - 1, -1, -1))


def growing_batches():
    return BatchSampler(Reversed(16), batch_size=5, drop_last=False)


class Module:
    """Looks like a LightningDataModule."""

    def prepare_data(self):
        self.prepared = True

    def setup(self, stage):
        assert self.prepared
        assert stage == "fit"
        self.dataset = Numbers()

    def train_dataloader(self):
        return DataLoader(self.dataset, batch_size=2)


numbers = Numbers()
loader = DataLoader(Numbers(), batch_size=4, shuffle=True)
NOT_A_PIPELINE = 3


def make_loader(num_workers):
    """The matrix's number of workers is handed to those who ask for it."""
    return DataLoader(Numbers(), batch_size=8, num_workers=num_workers)


def make_loader_kwargs(num_workers):
    return {"batch_size": 8 if num_workers else 4}
