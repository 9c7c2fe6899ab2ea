"""Pipelines that are broken on purpose, one fault each, to see what the plugin says of them.

Nothing here is collected as a test. Run one with

    pytest --dl-check=examples/broken_pipelines.py:make_lambda
"""

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

SCALE = 1.0  # the value a spawned worker sees, whatever the main process has set


class Numbers(Dataset[Any]):
    """`length` samples of shape (4,), float32: sound, and the base of the broken ones."""

    def __init__(self, length: int = 16, transform: Callable[[Tensor], Any] | None = None) -> None:
        self.length = length
        self.transform = transform

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        sample = torch.arange(4, dtype=torch.float32) + 4 * index
        return sample if self.transform is None else self.transform(sample)


class Compose:
    """Transforms applied one after the other."""

    def __init__(self, steps: list[Callable[[Tensor], Any]]) -> None:
        self.steps = steps

    def __call__(self, sample: Tensor) -> Any:
        for step in self.steps:
            sample = step(sample)
        return sample


def make_lambda() -> Dataset[Any]:
    """A lambda, deep inside the transform, cannot be pickled: only forked workers start.

    To mend it: write a function at module level.
    """
    return Numbers(transform=Compose([torch.square, lambda sample: sample / 255]))


def make_lambda_collate() -> DataLoader[Any]:
    """The dataset travels, but the loader's collate function is a lambda.

    To mend it: write a function at module level.
    """
    return DataLoader(Numbers(), batch_size=4, collate_fn=lambda batch: torch.stack(batch, dim=1))


def make_local_class() -> Dataset[Any]:
    """A class defined inside a function cannot be found by the process that unpickles it.

    To mend it: define the class at module level.
    """

    class LocalNumbers(Numbers):
        pass

    return LocalNumbers()


class OpenFile(Numbers):
    """16 bytes a sample, out of this very file."""

    def __init__(self) -> None:
        super().__init__()
        self.file = Path(__file__).open("rb", buffering=0)  # noqa: SIM115  the fault on show

    def __getitem__(self, index: int) -> Tensor:
        self.file.seek(16 * index)
        return torch.frombuffer(bytearray(self.file.read(16)), dtype=torch.uint8)


def make_open_file() -> Dataset[Any]:
    """An open file on the dataset: spawn cannot send it, and forked workers share its position.

    Under fork one worker seeks and another reads, so that samples are now and then wrong.
    To mend it: store the path, and open it in the process that reads, as hdf5_reader.py does.
    """
    return OpenFile()


class OpenHdf5(Numbers):
    """4 numbers a sample, out of an HDF5 file that lives in memory."""

    def __init__(self) -> None:
        import h5py  # here, so that the other pipelines do not need it

        super().__init__()
        # The name is never written to disk, but no two open files may share it.
        self.file = h5py.File(f"{uuid4()}.h5", "w", driver="core", backing_store=False)
        self.file["numbers"] = np.arange(64, dtype=np.float32).reshape(16, 4)

    def __getitem__(self, index: int) -> Tensor:
        return torch.from_numpy(self.file["numbers"][index])


def make_open_hdf5() -> Dataset[Any]:
    """An open HDF5 file on the dataset: it cannot be pickled, and must not be shared by fork.

    To mend it: store the path, and open it in the process that reads, as hdf5_reader.py does.
    """
    return OpenHdf5()


class ScaledByGlobal(Numbers):
    """Samples multiplied by the module's SCALE."""

    def __getitem__(self, index: int) -> Tensor:
        scaled: Tensor = super().__getitem__(index) * SCALE
        return scaled


def make_run_time_global() -> Dataset[Any]:
    """A module global set at run time: spawned workers import the module and see the old value.

    Nothing fails; the samples differ. To mend it: keep the value on the dataset.
    """
    global SCALE  # noqa: PLW0603  the fault on show
    SCALE = 1 / 255
    return ScaledByGlobal()


def _add_system_noise(sample: Tensor) -> Tensor:
    return sample + random.SystemRandom().random()


def make_system_random() -> Dataset[Any]:
    """Noise from the operating system follows no seed: no run can be repeated.

    To mend it: draw with `torch.rand`, which torch seeds in every worker.
    """
    return Numbers(transform=_add_system_noise)


class OwnGenerator(Numbers):
    """Noise from a generator that the dataset holds."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(0)

    def __getitem__(self, index: int) -> Tensor:
        # The index is left out, so that equal noise shows as equal samples.
        return torch.from_numpy(self.generator.standard_normal(4))


def make_copied_generator() -> Dataset[Any]:
    """A generator on the dataset is copied into every worker: all of them draw the same numbers.

    To mend it: draw with `torch.rand`, or seed the generator from `get_worker_info().seed`.
    """
    return OwnGenerator()


class OneBuffer(Numbers):
    """Samples built in a buffer for each worker, of which there is only one."""

    def __init__(self) -> None:
        super().__init__()
        self.buffers = [torch.zeros(4)]

    def __getitem__(self, index: int) -> Tensor:
        worker = get_worker_info()
        buffer = self.buffers[0 if worker is None else worker.id]
        return buffer + index


def make_fails_with_workers() -> Dataset[Any]:
    """Sound with 0 workers and with 1; with more, the second worker raises an IndexError.

    To mend it: a worker has its own copy of the dataset, one buffer is enough.
    """
    return OneBuffer()


def _leave_the_worker(sample: Tensor) -> Tensor:
    if get_worker_info() is not None and sample[0] == 20:
        os._exit(3)
    return sample


def make_dying_worker() -> Dataset[Any]:
    """The worker that reads sample 5 ends without a word, as one killed for its memory does.

    To mend it: find out what ends the process; here, `os._exit(3)`.
    """
    return Numbers(transform=_leave_the_worker)


def _first_with_a_lambda(samples: list[Tensor]) -> dict[str, Any]:
    return {"sample": samples[0], "undo": lambda: samples[0]}


def make_unsendable_batch() -> DataLoader[Any]:
    """A batch that cannot be pickled is lost inside the worker, and the loader waits for ever.

    Run it with `--dl-timeout=10`. To mend it: return tensors, numbers and strings.
    """
    return DataLoader(Numbers(), batch_size=1, collate_fn=_first_with_a_lambda)


class Unsharded(IterableDataset[Tensor]):
    """16 samples of shape (1,), int64, from every worker."""

    def __iter__(self) -> Iterator[Tensor]:
        return (torch.tensor([index]) for index in range(16))


def make_unsharded() -> Dataset[Any]:
    """Every worker reads the whole stream: two workers deliver each sample twice.

    To mend it: let each worker read its share, as sharded_stream.py does.
    """
    return Unsharded()


class StopsEarly(Numbers):
    """Raises StopIteration at sample 8, as a forgotten `next()` does."""

    def __getitem__(self, index: int) -> Any:
        if index == 8:
            next(iter(()))
        return super().__getitem__(index)


def make_stops_early() -> Dataset[Any]:
    """StopIteration out of a sample ends the epoch early, without an error.

    To mend it: catch it where `next()` is called.
    """
    return StopsEarly()
