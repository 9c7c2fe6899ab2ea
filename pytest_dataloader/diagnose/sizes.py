"""How much objects hold, by path: entries of containers and caches, bytes of arrays.

Runs in the test process and in workers. Reads only: no method of the user's is called.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pytest_dataloader.diagnose.world import module_globals, parts

_MAX_DEPTH = 6
_MOST_PARTS = 5_000
_CONTAINERS: tuple[Any, ...] = (list, dict, set, deque, bytearray)
_CACHE = type(functools.lru_cache(len))
MANY_OBJECTS = 100_000
_LOOKED_AT = 200


def sizes(roots: Mapping[str, Any], modules: Iterable[str] = ()) -> dict[str, int]:
    """Entries of what can grow, by path: containers, caches of functions, and arrays in bytes."""
    found: dict[str, int] = {}
    named = itertools.chain(roots.items(), module_globals(modules))
    everything = (pair for path, value in named for pair in _walk(path, value, 0, set()))
    for path, value in itertools.islice(everything, _MOST_PARTS):
        size = _size(value)
        if size is not None:
            found[path] = size
    return found


def _walk(path: str, value: Any, depth: int, above: set[int]) -> Iterator[tuple[str, Any]]:
    yield path, value
    if depth < _MAX_DEPTH and id(value) not in above and not isinstance(value, _CACHE):
        for inner, item in _opened(path, value):
            yield from _walk(inner, item, depth + 1, above | {id(value)})


def _opened(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of an object; of an object's class its caches too, which all objects share."""
    yield from parts(path, value)
    if type(value).__dictoffset__:
        for name, member in vars(type(value)).items():
            if isinstance(member, _CACHE):
                yield f"{path}.{name}", member


def _size(value: Any) -> int | None:
    if isinstance(value, _CACHE):
        return value.cache_info().currsize
    for kind in _CONTAINERS:
        if isinstance(value, kind):
            return int(kind.__len__(value))
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and type(value) is torch.Tensor and value.layout == torch.strided:
        return int(value.numel() * value.element_size())
    return int(value.nbytes) if numpy is not None and type(value) is numpy.ndarray else None


def many_objects(roots: Mapping[str, Any]) -> Iterator[tuple[str, str, int, int]]:
    """Containers of very many Python objects: the path, the kind, how many entries, and about
    how many bytes they take."""
    for root, value in roots.items():
        for path, item in itertools.islice(_walk(root, value, 0, set()), _MOST_PARTS):
            for kind in (list, dict, tuple, set):
                if type(item) is kind and len(item) >= MANY_OBJECTS:
                    yield path, kind.__name__, len(item), sys.getsizeof(item) + _weight(item)


def _weight(container: Any) -> int:
    """About how many bytes the entries take, from some of them."""
    entries = container.items() if isinstance(container, dict) else container
    step = max(1, len(container) // _LOOKED_AT)
    looked_at = list(itertools.islice(entries, 0, None, step))[:_LOOKED_AT]
    return sum(map(_bytes_of, looked_at)) * len(container) // len(looked_at)


def _bytes_of(value: Any, depth: int = 0) -> int:
    size = sys.getsizeof(value)
    if depth < 3 and type(value) in (list, tuple, set):
        size += sum(_bytes_of(item, depth + 1) for item in itertools.islice(value, 64))
    elif depth < 3 and type(value) is dict:
        pairs = itertools.islice(value.items(), 64)
        size += sum(_bytes_of(part, depth + 1) for pair in pairs for part in pair)
    return size
