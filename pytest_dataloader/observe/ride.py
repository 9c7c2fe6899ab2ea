"""Runs in the worker process: which samples a worker makes, and which random numbers it draws.

Rides on a run of several epochs only; a timed pass and a first start carry none of it.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import xxhash

from pytest_dataloader.diagnose.world import fields
from pytest_dataloader.observe.digest import Walk, digest

_MOST_PARTS = 1_000


class Insight:
    """Notes of samples and generators. Picklable: it travels inside the loader's functions.

    ``key`` is the user's function from a sample to its identity, if there is one; ``dataset`` is
    only set where there are no workers, for a worker has its own.
    """

    def __init__(self, key: Callable[[Any], Any] | None, riders: dict[str, Any]) -> None:
        self.key = key
        self.riders = riders
        self.dataset: Any = None
        self._generators: dict[str, Any] | None = None
        self._batches = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"key": self.key, "riders": self.riders}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def states(self) -> dict[str, str]:
        """The state of each generator that the dataset or the functions hold, and of the global
        ones, as digests by path."""
        if self._generators is None:
            roots = {"dataset": self._dataset(), **self.riders}
            self._generators = dict(_generators(roots))
        found = {path: _state(generator) for path, generator in self._generators.items()}
        return found | dict(global_states())

    def of_batch(self, samples: Any, *, batched: bool) -> dict[str, Any]:
        """Identities of a batch's samples; with it, at the first batches, the generators' states.

        The states are looked at in the 1st, 2nd, 4th, ... batch of a worker.
        """
        items = list(samples) if batched and isinstance(samples, (list, tuple)) else [samples]
        told: dict[str, Any] = {"ids": [self._identity(item) for item in items]}
        self._batches += 1
        if self._batches & (self._batches - 1) == 0:
            told["states"] = self.states()
        return told

    def _identity(self, sample: Any) -> str | None:
        if self.key is not None:
            return digest(self.key(sample)).hex[:16]
        walk = _Beginning()
        with contextlib.suppress(_Enough):
            walk.feed(sample, 0)
        return None if walk.not_compared else walk.hasher.hexdigest()[:16]

    def _dataset(self) -> Any:
        from torch.utils.data import get_worker_info

        info = get_worker_info()
        return info.dataset if info is not None else self.dataset


class _Enough(BaseException):
    """As much of a sample as tells it from others has been read."""


class _Beginning(Walk):
    """A digest of a sample's first parts: enough to count samples, and of bounded cost."""

    counts_parts = True

    def __init__(self) -> None:
        super().__init__(xxhash.xxh3_128())
        self._left = _MOST_PARTS

    def feed(self, value: Any, depth: int) -> None:
        """Feed a value, if the budget lasts."""
        self._left -= 1
        if self._left < 0:
            raise _Enough
        super().feed(value, depth)


def _generators(roots: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for path, root in roots.items():
        for inner, value in fields(path, root):
            if _is_generator(value):
                yield inner, value


def _is_generator(value: Any) -> bool:
    kinds: list[Any] = [random.Random]
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy.random")
    if torch is not None:
        kinds.append(torch.Generator)
    if numpy is not None:
        kinds += [numpy.Generator, numpy.RandomState]
    return isinstance(value, tuple(kinds)) and not isinstance(value, random.SystemRandom)


def _state(generator: Any) -> str:
    if isinstance(generator, random.Random):
        return digest(generator.getstate()).hex
    if hasattr(generator, "bit_generator"):
        return digest(generator.bit_generator.state).hex
    return digest(generator.get_state()).hex


def global_states() -> Iterator[tuple[str, str]]:
    """The states of the generators that a process has anyway, as digests by name."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy.random")
    yield "random", digest(random.getstate()).hex
    if numpy is not None:
        yield "numpy.random", digest(numpy.get_state()).hex
    if torch is not None:
        yield "torch", digest(torch.get_rng_state()).hex
