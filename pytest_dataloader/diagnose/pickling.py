"""Names every part of an object that will not travel to a worker, and weighs what does.

A start pickles the dataset with `multiprocessing.reduction.ForkingPickler`. The look here does
the same with a pickler that writes nowhere and leaves tensors where they are: ForkingPickler
would move them into shared memory. A part that fails is opened, and its own parts are tried in
turn, down to the object that refuses.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import inspect
import pickle
import sys
import types
from collections import ChainMap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import context as mp_context
from multiprocessing.reduction import ForkingPickler
from typing import Any

from pytest_dataloader.diagnose.remedies import kind_and_remedy
from pytest_dataloader.observe.facts import UnpicklableFacts

_MAX_FOUND = 50
_MAX_DEPTH = 60
_HEAVY_BYTES = 256 * 1024
# Libraries whose objects are made to hold the user's: what they hold is named, not they.
_COMPOSERS = frozenset(
    {"torch", "torchvision", "torchaudio", "torchdata", "functools", "collections", "builtins"}
    | {"types", "datasets", "webdataset", "lightning", "pytorch_lightning", "albumentations", "monai"}
)


@dataclass(frozen=True)
class Travel:
    """Bytes of pickle for each worker, and the paths that weigh most, heaviest first."""

    bytes: int
    heaviest: tuple[tuple[str, int], ...]


def weigh(roots: dict[str, Any], context: Any) -> Travel | None:
    """Bytes that travel to each worker, or None if something does not travel.

    Tensors count as the handles that travel in their place, arrays with all their bytes.
    """
    pairs = list(_roots(roots))
    total = 0
    with spawning(context):
        for _, value in pairs:
            size = _size(value)
            if size is None:
                return None
            total += size
        heaviest = _heaviest(pairs) if total >= _HEAVY_BYTES else []
    return Travel(total, tuple(heaviest[:5]))


def _heaviest(pairs: Iterable[tuple[str, Any]]) -> list[tuple[str, int]]:
    parts = [part for path, value in pairs for part in _parts(path, value)]
    sizes = [(part.path, _size(part.value) or 0) for part in parts]
    return sorted(sizes, key=lambda pair: -pair[1])


def find_unpicklable(roots: dict[str, Any], context: Any) -> tuple[UnpicklableFacts, ...]:
    """Every part that refuses to travel under ``context``, each by the path from its root."""
    found: dict[str, UnpicklableFacts] = {}
    with spawning(context):
        for path, value in _roots(roots):
            for fact in _search(path, value):
                found.setdefault(fact.path, fact)
                if len(found) == _MAX_FOUND:
                    return tuple(found.values())
    return tuple(found.values())


def _roots(roots: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in roots.items():
        if name == "loader":
            for rider, carried in value.items():
                yield f"loader.{rider}", carried
        else:
            yield name, value


# The look ------------------------------------------------------------------------------------


class _Nowhere:
    """A file that only counts."""

    def __init__(self) -> None:
        self.count = 0

    def write(self, data: Any) -> int:
        self.count += len(data)
        return len(data)


class _Starting:
    """Stands for the process that is being started, so that primitives agree to be pickled."""

    method = "spawn"

    @staticmethod
    def DupFd(fd: int) -> int:
        return fd

    @staticmethod
    def duplicate_for_child(handle: int) -> int:
        return handle


@contextlib.contextmanager
def spawning(context: Any) -> Iterator[None]:
    """Let multiprocessing's primitives be pickled as for a process under ``context``."""
    previous = mp_context.get_spawning_popen()
    mp_context.set_spawning_popen(_Starting())
    try:
        yield
    finally:
        mp_context.set_spawning_popen(previous)


def _stub() -> None:
    """Stands in the stream for what is not pickled by value."""


class _Look(pickle.Pickler):
    """Pickles as a start does, but by value only what a start sends by value."""

    def __init__(self, sink: _Nowhere) -> None:
        super().__init__(sink)  # type: ignore[arg-type]
        extra: Any = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
        self.dispatch_table = ChainMap({}, extra, copyreg.dispatch_table)
        self._sink = sink

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, (torch.Tensor, torch.UntypedStorage)):
            _check_tensor(torch, value)
            return _stub, ()
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.ndarray) and not value.dtype.hasobject:
            self._sink.count += value.nbytes
            return _stub, ()
        return NotImplemented


def _check_tensor(torch: Any, value: Any) -> None:
    """The refusals of `torch.multiprocessing.reductions.reduce_tensor`, without its sharing."""
    if isinstance(value, torch.Tensor) and value.requires_grad and not value.is_leaf:
        raise RuntimeError("a non-leaf tensor that requires grad does not travel; detach() it")


def _size(value: Any) -> int | None:
    sink = _Nowhere()
    return None if _failure(value, sink) is not None else sink.count


def _failure(value: Any, sink: _Nowhere | None = None) -> Exception | None:
    look = _Look(sink or _Nowhere())
    try:
        look.dump(value)
    except Exception as error:  # what comes is what the user's own __getstate__ raises
        return error
    return None


# The search ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """A part of an object by its path from the root, with the objects that lead to it."""

    path: str
    value: Any
    above: tuple[tuple[str, Any], ...] = ()


def _search(path: str, value: Any) -> Iterator[UnpicklableFacts]:
    pending = [Part(path, value)]
    seen: set[int] = set()
    while pending:
        part = pending.pop()
        error = _failure(part.value)
        if error is None or id(part.value) in seen or len(part.above) > _MAX_DEPTH:
            continue
        seen.add(id(part.value))
        failing = list(_failing_parts(part))
        if failing:
            pending.extend(reversed(failing))
        else:
            yield _told(part, error)


def _failing_parts(part: Part) -> Iterator[Part]:
    if _class_refuses(part.value):
        return
    above = (*part.above, (part.path, part.value))
    parts = [Part(p.path, p.value, above) for p in _parts(part.path, part.value)]
    yield from _bisect(parts)


def _class_refuses(value: Any) -> bool:
    """Whether the object's own class cannot be found by name, so that its parts do not matter."""
    return not isinstance(value, type) and _failure(type(value)) is not None


def _bisect(parts: Sequence[Part]) -> Iterator[Part]:
    """The failing ones of many parts, with few looks where few of them fail."""
    if not parts or _failure([part.value for part in parts]) is None:
        return
    if len(parts) == 1:
        yield parts[0]
        return
    middle = len(parts) // 2
    yield from _bisect(parts[:middle])
    yield from _bisect(parts[middle:])


def _parts(path: str, value: Any) -> Iterator[Part]:
    """The parts that are pickled for a value, by the names that people know them by."""
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)):
        return
    if type(value) is dict:
        for key, item in value.items():
            yield Part(f"{path}[{_short(key)}]", item)
            yield Part(f"{path} key {_short(key)}", key)
    elif type(value) in (list, tuple):
        for index, item in enumerate(value):
            yield Part(f"{path}[{index}]", item)
    elif type(value) in (set, frozenset):
        for item in value:
            yield Part(f"{path} element {_short(item)}", item)
    elif isinstance(value, functools.partial):
        yield Part(f"{path}.func", value.func)
        yield from _parts(f"{path}.args", value.args)
        yield from _parts(f"{path}.keywords", value.keywords)
    elif isinstance(value, types.MethodType):
        yield Part(f"{path}.__self__", value.__self__)
    else:
        yield from _reduced_parts(path, value)


def _reduced_parts(path: str, value: Any) -> Iterator[Part]:
    try:
        reducer = ForkingPickler._extra_reducers.get(type(value))  # type: ignore[attr-defined]
        reduced = reducer(value) if reducer else value.__reduce_ex__(4)
    except Exception:
        return
    if isinstance(reduced, str):
        return
    function, args, state, items, pairs = (*reduced, None, None, None)[:5]
    given = [a for a in args if not isinstance(a, type)]
    names = _attribute_names(value, given)
    for name, arg in zip(names, given, strict=True):
        yield Part(f"{path}.{name}", arg)
    yield from _state_parts(path, value, state)
    yield from _parts(path, list(items) if items is not None else [])
    yield from _parts(path, dict(pairs) if pairs is not None else {})


def _attribute_names(value: Any, args: Sequence[Any]) -> list[str]:
    """For each constructor argument the attribute that holds it, where there is one."""
    held = {id(v): k for k, v in getattr(value, "__dict__", {}).items()}
    return [held.get(id(arg), f"__reduce__()[1][{index}]") for index, arg in enumerate(args)]


def _state_parts(path: str, value: Any, state: Any) -> Iterator[Part]:
    for part in state if isinstance(state, tuple) and len(state) == 2 else (state,):
        if isinstance(part, dict):
            for name, item in part.items():
                yield Part(f"{path}.{name}", item)
        elif part is not None:
            yield Part(f"{path}.__getstate__()", part)


def _short(key: Any) -> str:
    text = repr(key)
    return text if len(text) <= 40 else text[:37] + "..."


# The telling ---------------------------------------------------------------------------------


def _told(part: Part, error: Exception) -> UnpicklableFacts:
    path, value = _as_the_user_put_it(part)
    kind, remedy = kind_and_remedy(value)
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    bound = "in a fork context" in str(error) or "forking was enabled" in str(error)
    return UnpicklableFacts(path, kind, text, defined_at(value), remedy, context=bound)


def _as_the_user_put_it(part: Part) -> tuple[str, Any]:
    """The outermost library object around the refusing one: a Thread, not the lock inside it."""
    if _is_users(part.value):
        return part.path, part.value
    chosen = (part.path, part.value)
    for path, value in reversed(part.above):
        if _is_users(value):
            break
        if type(value).__module__.partition(".")[0] not in _COMPOSERS:
            chosen = (path, value)
    return chosen


def _is_users(value: Any) -> bool:
    from pytest_dataloader.observe.errors import belongs_to_user

    if not isinstance(value, (type, types.FunctionType)):
        value = type(value)
    module = sys.modules.get(value.__module__)
    file = getattr(module, "__file__", None)
    return value.__module__ == "__main__" or (file is not None and belongs_to_user(file))


def defined_at(value: Any) -> str | None:
    """``file:line`` where a function, or the class of an object of the user's, is defined."""
    if not isinstance(value, (type, types.FunctionType)):
        value = type(value)
    if isinstance(value, types.FunctionType):
        return f"{value.__code__.co_filename}:{value.__code__.co_firstlineno}"
    if not _is_users(value):
        return None
    try:
        return f"{inspect.getsourcefile(value)}:{inspect.getsourcelines(value)[1]}"
    except (OSError, TypeError):
        return None
