"""Many runs in one process: descriptors, threads, processes and memory stay flat.

Each run is a small loader with one forked worker, observed as a test session observes it.
"""

from __future__ import annotations

import argparse
import gc
import threading
import time

import psutil
import torch
from torch.utils.data import Dataset

from pytest_dataloader.matrix import LoaderConfig
from pytest_dataloader.observe.facts import RunRequest
from pytest_dataloader.observe.observer import Observer
from pytest_dataloader.pipeline import Pipeline


class Numbers(Dataset[torch.Tensor]):
    """Eight numbers."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


def state() -> dict[str, int]:
    """What this process has open and holds."""
    gc.collect()
    process = psutil.Process()
    return {
        "descriptors": process.num_fds(),
        "threads": threading.active_count(),
        "processes": len(process.children(recursive=True)),
        "unique KiB": process.memory_full_info().uss // 1024,
    }


def main() -> None:
    """Print the state after a tenth of the runs, and after all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    runs = parser.parse_args().runs
    observer, began = Observer(timeout_s=60), time.monotonic()
    pipeline = Pipeline("numbers", make_dataset=Numbers, loader_kwargs={"batch_size": 4})
    for number in range(1, runs + 1):
        request = RunRequest(LoaderConfig("fork", 1), seed=number)
        facts = observer.observe(pipeline, request)
        assert facts.ok, facts.reason
        if number in (runs // 10, runs // 2, runs):
            seconds = time.monotonic() - began
            print(f"after {number} runs ({seconds:.0f} s): {state()}", flush=True)
    observer.close()
    print(f"closed: {state()}")


if __name__ == "__main__":
    main()
