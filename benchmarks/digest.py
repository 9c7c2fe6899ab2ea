"""How fast batches of several shapes are digested, in GB/s."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from pytest_dataloader.observe.digest import digest

GOAL_GB_PER_S = 3.0
GOAL_FROM_BYTES = 1_000_000
MIB = 1024 * 1024


def few_big_tensors() -> Any:
    return [torch.rand(32, 3, 224, 224), torch.randint(1000, (32,))]


def one_megabyte() -> Any:
    return torch.rand(MIB // 4)


def dict_of_tensors() -> Any:
    tokens = {name: torch.randint(50_000, (64, 512)) for name in ("input", "mask", "labels")}
    return {**tokens, "lengths": torch.randint(512, (64,))}


def transposed_view() -> Any:
    return torch.rand(32, 224, 224, 3).permute(0, 3, 1, 2)


def many_tensors(count: int, nbytes: int) -> Any:
    return [torch.rand(nbytes // 4) for _ in range(count)]


def numpy_arrays() -> Any:
    random = np.random.default_rng(0)
    return {"image": random.random((32, 128, 128)), "label": random.integers(10, size=32)}


def bytes_objects() -> Any:
    return [bytes([number]) * (64 * 1024) for number in range(32)]


SHAPES: dict[str, Callable[[], Any]] = {
    "few big tensors (19 MB)": few_big_tensors,
    "one tensor of 1 MiB": one_megabyte,
    "dict of tensors (0.8 MB)": dict_of_tensors,
    "permuted view (19 MB, copied first)": transposed_view,
    "256 tensors of 16 KiB": lambda: many_tensors(256, 16 * 1024),
    "1,024 tensors of 1 KiB": lambda: many_tensors(1024, 1024),
    "numpy arrays (4 MB)": numpy_arrays,
    "32 bytes objects of 64 KiB": bytes_objects,
}


def size_of(batch: Any) -> int:
    """Bytes of content."""
    if isinstance(batch, dict):
        return sum(map(size_of, batch.values()))
    if isinstance(batch, list):
        return sum(map(size_of, batch))
    return int(batch.nbytes) if hasattr(batch, "nbytes") else len(batch)


def leaves_of(batch: Any) -> int:
    if isinstance(batch, dict):
        return len(batch)
    return len(batch) if isinstance(batch, list) else 1


def seconds_a_digest(batch: Any, repeats: int) -> float:
    """The median over repeats of at least 20 ms each."""
    digest(batch)
    began = time.perf_counter()
    digest(batch)
    loops = max(1, int(0.02 / (time.perf_counter() - began)))
    return statistics.median(_one(batch, loops) for _ in range(repeats))


def _one(batch: Any, loops: int) -> float:
    began = time.perf_counter()
    for _ in range(loops):
        digest(batch)
    return (time.perf_counter() - began) / loops


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=21)
    repeats = parser.parse_args(arguments).repeats
    print(f"goal at least {GOAL_GB_PER_S:g} GB/s for batches of at least 1 MB")
    for name, make in SHAPES.items():
        batch = make()
        seconds, nbytes = seconds_a_digest(batch, repeats), size_of(batch)
        speed = nbytes / seconds / 1e9
        judged = nbytes >= GOAL_FROM_BYTES
        fits = "goal met" if speed >= GOAL_GB_PER_S else "GOAL MISSED"
        print(
            f"{name:<36} {speed:6.2f} GB/s, {1e6 * seconds / leaves_of(batch):8.2f} us a leaf: "
            f"{fits if judged else 'below 1 MB, not judged'}"
        )


if __name__ == "__main__":
    main()
