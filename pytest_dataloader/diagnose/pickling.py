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
import itertools
import pickle
import sys
import types
from collections import ChainMap, defaultdict
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
_MOST_WEIGHED = 10_000
_NEARLY_ALL = 0.9  # the share of bytes down to which a part is the place to look
_AT_A_TIME = 4096
_FORKING: Any = ForkingPickler
# Libraries whose objects are made to hold the user's: what they hold is named, not they.
_COMPOSERS = frozenset(
    {"torch", "torchvision", "torchaudio", "torchdata", "functools", "collections", "builtins"}
    | {
        "types",
        "datasets",
        "webdataset",
        "lightning",
        "pytorch_lightning",
        "albumentations",
        "monai",
    }
)


@dataclass(frozen=True)
class Travel:
    """Bytes of pickle for each worker, and the paths that weigh most, heaviest first.

    ``modules`` are those whose classes and functions travel by name, so that a worker imports them.
    """

    bytes: int
    heaviest: tuple[tuple[str, int], ...]
    modules: tuple[str, ...] = ()


def weigh(roots: dict[str, Any], context: Any, *, parts: bool = True) -> Travel | None:
    """Bytes that travel to each worker, or None if something does not travel.

    Tensors count as the handles that travel in their place, arrays with all their bytes.
    Without ``parts`` only the sum is told.
    """
    pairs = list(_roots(roots))
    sink = _Nowhere()
    with spawning(context):
        if any(_failure(value, sink) is not None for _, value in pairs):
            return None
        heaviest = _heaviest(pairs) if parts and sink.count >= _HEAVY_BYTES else []
    return Travel(sink.count, tuple(heaviest[:5]), tuple(sink.modules))


def _heaviest(pairs: Iterable[tuple[str, Any]]) -> list[tuple[str, int]]:
    weighed = _weighed(part for path, value in pairs for part in _weighable(path, value))
    told = [_where_it_weighs(*weighed[0]), *weighed[1:]] if weighed else []
    return [(part.path, size) for part, size in told]


def _weighed(parts: Iterable[Part]) -> list[tuple[Part, int]]:
    """The parts with their bytes, heaviest first."""
    return sorted(((part, _size(part.value) or 0) for part in parts), key=lambda pair: -pair[1])


def _where_it_weighs(part: Part, size: int) -> tuple[Part, int]:
    """The part deep inside that holds nearly all of the bytes: a Subset's dataset's frame."""
    for _ in range(_MAX_DEPTH):
        inner = _weighed(_weighable(part.path, part.value)) if _opens(part.value) else []
        if not inner or inner[0][1] < _NEARLY_ALL * size:
            break
        if inner[0][0].value is part.value or ".__" in inner[0][0].path:
            break  # too many parts to tell apart, or a part that has no name of its own
        part, size = inner[0]
    return part, size


def _opens(value: Any) -> bool:
    """Whether the parts of a value are known by names that the user gave."""
    module = type(value).__module__.partition(".")[0]
    if module == "builtins":
        return type(value) in (dict, list, tuple)
    return _is_users(value) or module in _COMPOSERS


def _weighable(path: str, value: Any) -> list[Part]:
    """The parts of a value, or the value itself where it has too many for one to matter."""
    parts = list(itertools.islice(_parts(path, value), _MOST_WEIGHED + 1))
    return parts if len(parts) <= _MOST_WEIGHED else [Part(path, value)]


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
    """A file that only counts; also keeps the modules of what travels by name."""

    def __init__(self) -> None:
        self.count = 0
        self.modules: dict[str, None] = {}

    def write(self, data: Any) -> int:
        self.count += len(data)
        return len(data)


class _Starting:
    """Stands for the process that is being started, so that primitives agree to be pickled."""

    method = "spawn"

    @staticmethod
    def DupFd(fd: int) -> int:  # noqa: N802 - multiprocessing calls it so
        return fd

    @staticmethod
    def duplicate_for_child(handle: int) -> int:
        return handle


@contextlib.contextmanager
def spawning(context: Any) -> Iterator[None]:
    """Let multiprocessing's primitives be pickled as for a process under ``context``."""
    previous = mp_context.get_spawning_popen()
    standing: Any = _Starting()
    mp_context.set_spawning_popen(standing)
    try:
        yield
    finally:
        mp_context.set_spawning_popen(previous)


def _stub() -> None:
    """Stands in the stream for what is not pickled by value."""


class _Look(pickle.Pickler):
    """Pickles as a start does, but by value only what a start sends by value."""

    def __init__(self, sink: _Nowhere) -> None:
        super().__init__(sink)
        tables: tuple[Any, ...] = (_FORKING._extra_reducers, copyreg.dispatch_table)
        self.dispatch_table = ChainMap({}, *tables)
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
        if isinstance(value, (type, types.FunctionType)):
            self._sink.modules.setdefault(value.__module__)
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
    except Exception as error:  # noqa: BLE001 - what comes is what the user's own __getstate__ raises
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
        if error is None or id(part.value) in seen:
            continue
        seen.add(id(part.value))
        failing = _first_failing(part) if len(part.above) < _MAX_DEPTH else []
        if failing:
            pending.extend(reversed(failing))
        else:
            yield _told(part, error)


def _first_failing(part: Part) -> list[Part]:
    """The failing parts, each object once, up to as many as are told of."""
    found: dict[int, Part] = {}
    for failing in _failing_parts(part):
        found.setdefault(id(failing.value), failing)
        if len(found) == _MAX_FOUND:
            break
    return list(found.values())


def _failing_parts(part: Part) -> Iterator[Part]:
    if _class_refuses(part.value):
        return
    above = (*part.above, (part.path, part.value))
    for some in _suspects(part.path, part.value):
        for failing in _bisect(some):
            yield Part(failing.path, failing.value, above)


def _suspects(path: str, value: Any) -> Iterator[list[Part]]:
    """The parts of a value some at a time; a long list's only from where something fails, since
    naming all of its parts would take longer than pickling them."""
    if type(value) not in (list, tuple):
        parts = _parts(path, value)
        while some := list(itertools.islice(parts, _AT_A_TIME)):
            yield some
        return
    for start in range(0, len(value), _AT_A_TIME):
        items = value[start : start + _AT_A_TIME]
        if _failure(items) is not None:
            yield [Part(f"{path}[{start + i}]", item) for i, item in enumerate(items)]


def _class_refuses(value: Any) -> bool:
    """Whether the object's own class cannot be found by name, so that its parts do not matter."""
    if isinstance(value, type) or type(value).__module__ == "builtins":
        return False  # some builtin types have no name to find, and do not travel themselves
    return _failure(type(value)) is not None


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
        reducer = _FORKING._extra_reducers.get(type(value))
        reduced = reducer(value) if reducer else value.__reduce_ex__(4)
    except Exception:  # noqa: BLE001 - a user's __getstate__ may raise anything
        return
    if isinstance(reduced, str):
        return
    _, args, state, items, pairs = (*reduced, None, None, None)[:5]
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
    if isinstance(value, defaultdict):
        held[id(value.default_factory)] = "default_factory"
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
