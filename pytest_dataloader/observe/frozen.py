"""Runs in the worker process: starts every generator anew for each batch.

What a batch holds then depends on its samples alone, not on how many were made before it: so two
runs are compared by their samples although these are augmented at random.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any


class FrozenStart:
    """A ``worker_init_fn`` that calls the user's own, then starts all generators anew."""

    def __init__(
        self, inner: Callable[[int], None] | None, riders: dict[str, Any], seed: int
    ) -> None:
        self.inner = inner
        self.riders = riders
        self.seed = seed

    def __call__(self, worker_id: int) -> None:
        from torch.utils.data import get_worker_info

        if self.inner is not None:
            self.inner(worker_id)
        info = get_worker_info()
        freeze({"dataset": info and info.dataset, **self.riders}, self.seed)


class FrozenCollate:
    """A ``collate_fn`` that calls the user's own, then starts all generators anew."""

    def __init__(
        self, inner: Callable[[Any], Any], riders: dict[str, Any], dataset: Any = None
    ) -> None:
        self.inner = inner
        self.riders = riders
        # only set where there are no workers, for a worker has its own
        self.dataset = dataset

    def __call__(self, samples: Any) -> Any:
        from torch.utils.data import get_worker_info

        batch = self.inner(samples)
        info = get_worker_info()
        freeze({"dataset": info.dataset if info is not None else self.dataset, **self.riders}, 0)
        return batch


def freeze(roots: dict[str, Any], seed: int) -> None:
    """Start the process's generators and those that the roots hold anew, all at one seed."""
    import torch

    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)
    for _path, generator in held_generators(roots):
        _start_anew(generator, seed)


def held_generators(roots: dict[str, Any]) -> list[tuple[str, Any]]:
    """The generators of random numbers that objects hold, by path."""
    from pytest_dataloader.diagnose.world import fields

    return [
        (inner, value)
        for path, root in roots.items()
        if root is not None
        for inner, value in fields(path, root)
        if _is_generator(value)
    ]


def _is_generator(value: Any) -> bool:
    names = {f"{kind.__module__}.{kind.__name__}" for kind in type(value).__mro__}
    return bool(names & _KINDS) and not isinstance(value, random.SystemRandom)


_KINDS = {
    "random.Random",
    "torch._C.Generator",
    "torch.Generator",
    "numpy.random._generator.Generator",
    "numpy.random.mtrand.RandomState",
}


def _start_anew(generator: Any, seed: int) -> None:
    if hasattr(generator, "bit_generator"):
        bits = generator.bit_generator
        bits.state = type(bits)(seed).state
    elif hasattr(generator, "manual_seed"):
        generator.manual_seed(seed)
    else:
        generator.seed(seed)
