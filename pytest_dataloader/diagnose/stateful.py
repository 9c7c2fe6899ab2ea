"""What in a pipeline keeps its state, and what that state forgets. Found by its methods alone."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from pytest_dataloader.diagnose import world
from pytest_dataloader.observe.errors import belongs_to_user
from pytest_dataloader.observe.frozen import held_generators

_METHODS = ("state_dict", "load_state_dict", "__iter__")
_SAMPLES_TAKEN = 3


def is_stateful(value: Any) -> bool:
    """Whether an object has both halves: it gives its state and takes it back."""
    halves = (getattr(value, name, None) for name in ("state_dict", "load_state_dict"))
    return all(callable(half) for half in halves)


def described(loader: Any) -> dict[str, Any]:
    """Who of a loader's parts keeps a state, and where the methods of the user's stand."""
    parts = _parts(loader)
    return {
        "loader": is_stateful(loader),
        "parts": tuple(path for path, part in parts if is_stateful(part)),
        "places": {
            f"{path}.{name}": place
            for path, part in (("loader", loader), *parts)
            for name, place in _places(part)
        },
    }


def _parts(loader: Any) -> list[tuple[str, Any]]:
    named = (
        ("dataset", loader.dataset),
        ("loader.sampler", loader.sampler),
        ("loader.batch_sampler", loader.batch_sampler),
    )
    return [(path, part) for path, part in named if part is not None]


def _places(part: Any) -> Iterator[tuple[str, str]]:
    for name in _METHODS:
        method = inspect.unwrap(getattr(type(part), name, len))
        code = getattr(method, "__code__", None)
        if code is not None and belongs_to_user(code.co_filename):
            yield name, f"{code.co_filename}:{code.co_firstlineno}"


def forgotten(fresh: Callable[[], Any]) -> dict[str, Any]:
    """What the state of a dataset or sampler leaves out.

    One is advanced by some samples; its state is given to another that was built afresh. Fields
    that still differ are not in the state. ``fresh`` builds a loader of its own each time.
    """
    fields: list[str] = []
    generators: list[str] = []
    for path in [path for path, part in _parts(fresh()) if is_stateful(part)]:
        used, new, plain = (dict(_parts(fresh()))[path] for _ in range(3))
        always = _unlike(path, new, plain)
        if not _advance(used):
            continue
        new.load_state_dict(used.state_dict())
        differ = [p for p in _unlike(path, used, new) if p not in always]
        of_generators = [p for p, _ in held_generators({path: used})]
        generators += [p for p in of_generators if _differs(p, differ)]
        fields += [p for p in differ if not any(_differs(g, [p]) for g in of_generators)]
    return {"forgotten": tuple(fields), "forgotten_generators": tuple(generators)}


def drawn_from(dataset: Any) -> list[str]:
    """The generators that a dataset holds and draws from as it makes samples, by path."""
    before = world.held_fields({"dataset": dataset})
    _advance(dataset)
    after = world.held_fields({"dataset": dataset})
    changed = [path for path in after if after[path][0] != before.get(path, [""])[0]]
    return [p for p, _ in held_generators({"dataset": dataset}) if _differs(p, changed)]


def _unlike(path: str, part: Any, another: Any) -> list[str]:
    one, other = (world.held_fields({path: each}) for each in (part, another))
    return [p for p in one if p in other and one[p][0] != other[p][0]]


def _differs(path: str, differ: list[str]) -> bool:
    return any(p == path or p.startswith(f"{path}.") for p in differ)


def _advance(part: Any) -> bool:
    """Take some samples as a loader without workers would."""
    if hasattr(type(part), "__iter__"):
        for _sample in itertools.islice(iter(part), _SAMPLES_TAKEN):
            pass
        return True
    if hasattr(type(part), "__getitem__"):
        for index in range(min(_SAMPLES_TAKEN, len(part))):
            part[index]
        return True
    return False
