"""The matrix: which configurations of a loader are run, and which of them this platform offers."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

START_METHODS = ("fork", "spawn", "forkserver")


@dataclass(frozen=True)
class LoaderConfig:
    """One way to run a loader. ``None`` means: as the user's own arguments say.

    With 0 workers there is no start method. A script chooses its own number of workers,
    so its configurations have ``num_workers=None``.
    """

    start_method: str | None
    num_workers: int | None
    persistent_workers: bool | None = None
    prefetch_factor: int | None = None
    pin_memory: bool | None = None

    @property
    def id(self) -> str:
        """The name that test ids carry, such as ``w0``, ``spawn-w2`` or ``fork-w2-persistent``."""
        parts = [self.start_method] if self.start_method else []
        if self.num_workers is not None:
            parts.append(f"w{self.num_workers}")
        if self.persistent_workers is not None:
            parts.append("persistent" if self.persistent_workers else "restarted")
        if self.prefetch_factor is not None:
            parts.append(f"prefetch{self.prefetch_factor}")
        if self.pin_memory is not None:
            parts.append("pinned" if self.pin_memory else "unpinned")
        return "-".join(parts)

    def __str__(self) -> str:
        return self.id

    @property
    def has_workers(self) -> bool:
        """Whether worker processes are started."""
        return self.num_workers != 0

    def with_start_method(self, start_method: str) -> LoaderConfig:
        """The same configuration under another start method."""
        return replace(self, start_method=start_method)

    def without_workers(self) -> LoaderConfig:
        """The loader in the test process: the configuration that others are compared with."""
        return LoaderConfig(None, 0, pin_memory=self.pin_memory)


def available_start_methods() -> tuple[str, ...]:
    """The start methods of this platform, in the order of `START_METHODS`."""
    import multiprocessing

    offered = multiprocessing.get_all_start_methods()
    return tuple(method for method in START_METHODS if method in offered)


def default_start_method() -> str:
    """This interpreter's own start method, read without fixing it for the process."""
    import multiprocessing

    fixed = multiprocessing.get_start_method(allow_none=True)
    return fixed or multiprocessing.get_all_start_methods()[0]


def platform_name() -> str:
    """The platform's name as people write it."""
    names = {"win32": "Windows", "darwin": "macOS", "linux": "Linux"}
    return names.get(sys.platform, sys.platform)


def lacking(config: LoaderConfig) -> str | None:
    """Why this platform cannot run ``config``, or None if it can."""
    method = config.start_method
    if method is None or method in available_start_methods():
        return None
    return f"{method} is not available on {platform_name()}"


def expand_start_methods(words: Iterable[str]) -> tuple[str, ...]:
    """Start methods for words of which some may be ``all`` or ``default``; each once, in order."""
    methods: dict[str, None] = {}
    for word in words:
        named = {"all": START_METHODS, "default": (default_start_method(),)}.get(word, (word,))
        methods.update(dict.fromkeys(named))
    return tuple(methods)


def configurations(
    start_methods: Iterable[str],
    num_workers: Iterable[int],
    persistent_workers: Iterable[bool | None] = (None,),
    prefetch_factor: Iterable[int | None] = (None,),
    pin_memory: Iterable[bool | None] = (None,),
) -> tuple[LoaderConfig, ...]:
    """Every configuration of the axes; 0 workers once, without the axes that need workers."""
    product = itertools.product(
        num_workers,
        expand_start_methods(start_methods),
        persistent_workers,
        prefetch_factor,
        pin_memory,
    )
    return tuple(dict.fromkeys(_normalised(product)))


def _normalised(product: Iterable[tuple[Any, ...]]) -> Iterator[LoaderConfig]:
    for workers, method, persistent, prefetch, pinned in product:
        if workers == 0:
            yield LoaderConfig(None, 0, pin_memory=pinned)
        else:
            yield LoaderConfig(method, workers, persistent, prefetch, pinned)
