"""What ``pin_memory`` leaves as it is: objects of a batch that hold tensors out of its reach."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

_MAX_DEPTH = 32
_MAX_DEPTH_OF_OBJECT = 4
_MOST_PARTS = 1_000


def unpinnable(value: Any, path: str = "batch") -> Iterator[tuple[str, str, str]]:
    """Objects of a batch that `torch.utils.data._utils.pin_memory` passes on as they are though
    they hold tensors: the path, the class, and the path of the first tensor."""
    for part_path, part in itertools.islice(_pinnable_parts(value, path, 0), _MOST_PARTS):
        held = next(_tensors_in(part, part_path, 0, set()), None)
        if held is not None:
            yield part_path, type(part).__qualname__, held


def _pinnable_parts(value: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    """What pinning comes to: it opens mappings and sequences, of whatever class."""
    if hasattr(value, "pin_memory") or isinstance(value, (str, bytes)) or depth > _MAX_DEPTH:
        return
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _pinnable_parts(item, f"{path}[{key!r}]", depth + 1)
    elif isinstance(value, Sequence):
        names = getattr(value, "_fields", None)
        for index, item in enumerate(value):
            inner = f"{path}.{names[index]}" if names else f"{path}[{index}]"
            yield from _pinnable_parts(item, inner, depth + 1)
    else:
        yield path, value


def _tensors_in(value: Any, path: str, depth: int, above: set[int]) -> Iterator[str]:
    """Paths of the tensors that an object holds in its attributes."""
    if isinstance(value, torch.Tensor):
        yield path
        return
    if depth > _MAX_DEPTH_OF_OBJECT or id(value) in above:
        return
    for inner, item in _held_by(value, path):
        yield from _tensors_in(item, inner, depth + 1, above | {id(value)})


def _held_by(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"{path}[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((f"{path}[{index}]", item) for index, item in enumerate(value))
    elif not isinstance(value, type):
        slots = [n for kind in type(value).__mro__ for n in _slots_of(kind)]
        names = [*getattr(value, "__dict__", ()), *slots]
        yield from ((f"{path}.{n}", getattr(value, n)) for n in names if hasattr(value, n))


def _slots_of(kind: type) -> Iterator[str]:
    names = vars(kind).get("__slots__", ())
    yield from (names,) if isinstance(names, str) else names
