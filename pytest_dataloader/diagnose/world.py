"""What a process holds: an object's fields, module globals, defaults; to compare two processes.

Runs in the test process and in workers. Reads only: no method of the user's is called, so
objects are opened by their ``__dict__`` and slots and never asked for a state.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import random
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import xxhash

from pytest_dataloader.observe.digest import Walk, kind_of, preview
from pytest_dataloader.observe.errors import belongs_to_user
from pytest_dataloader.observe.facts import DifferenceFacts

_MAX_DEPTH = 6
_MAX_OPENED = 32
_MAX_SHOWN = 8
_MAX_COMPARED = 1_000
_MAX_NODES = 5_000
_MAX_MODULES = 100
_MAX_OBJECTS = 500
_WHOLE_BYTES = 64 * 1024 * 1024
_EDGE = 4096

#: One thing held: its digest, how it is shown, and whether it is ``data``, ``empty`` or ``opaque``.
Held = list[str]


def user_modules() -> list[str]:
    """The names of the user's own modules that this process has imported."""
    return [
        name
        for name, module in list(sys.modules.items())
        if name not in ("__main__", "__mp_main__") and _is_file_of_user(module)
    ]


def modules_near(roots: Iterable[Any]) -> list[str]:
    """The user's modules, or the nearest of very many: those that the roots' code uses come first.

    A test session may have imported hundreds, too many to look at in every run.
    """
    every = user_modules()
    if len(every) <= _MAX_MODULES:
        return every
    values = itertools.chain.from_iterable(map(objects, roots))
    kinds = (k for v in values for k in (getattr(v, "__func__", v), *type(v).__mro__))
    near = reachable(name for name in map(_module_of, kinds) if name is not None)
    return list(dict.fromkeys([*near, *every]))[:_MAX_MODULES]


def reachable(names: Iterable[str]) -> list[str]:
    """The user's modules that these modules use, themselves first."""
    users = set(user_modules())
    found: dict[str, None] = {}
    waiting = [name for name in names if name in users]
    while waiting and len(found) < _MAX_MODULES:
        name = waiting.pop(0)
        if name in found:
            continue
        found[name] = None
        waiting += [n for n in _used_by(sys.modules[name]) if n in users and n not in found]
    return list(found)


def _used_by(module: types.ModuleType) -> Iterator[str]:
    for value in list(vars(module).values()):
        name = value.__name__ if isinstance(value, types.ModuleType) else _module_of(value)
        if name is not None:
            yield name


def _module_of(value: Any) -> str | None:
    """The name of the module that a class or function is defined in."""
    defined = isinstance(value, type) or hasattr(value, "__code__")
    name = getattr(value, "__module__", None) if defined else None
    return name if isinstance(name, str) else None


def _is_file_of_user(module: Any) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and belongs_to_user(file)


def held(roots: Mapping[str, Any], modules: Iterable[str]) -> dict[str, Held]:
    """Everything that may make two processes differ, by path.

    ``roots`` are objects by the name that their paths begin with; ``modules`` are looked at
    where they are imported already.
    """
    found = held_fields(roots)
    for path, value in module_globals(modules):
        found[path] = _held(value)
    found |= _environment()
    for path, read in _DEFAULTS.items():
        value = read()
        if value is not None:
            found[path] = _held(value)
    return found


def held_fields(roots: Mapping[str, Any]) -> dict[str, Held]:
    """The fields of the roots alone, by path."""
    found = (part for path, value in roots.items() for part in fields(path, value))
    return {path: _held(value) for path, value in found}


# Fields --------------------------------------------------------------------------------------


def fields(
    path: str, value: Any, whole: Callable[[Any], bool] = lambda _value: False
) -> Iterator[tuple[str, Any]]:
    """The fields of a value by their paths: objects and small containers are opened.

    What ``whole`` accepts is not opened.
    """
    return _fields(path, value, 0, set(), whole)


def _fields(
    path: str, value: Any, depth: int, above: set[int], whole: Callable[[Any], bool]
) -> Iterator[tuple[str, Any]]:
    """The fields of a value: objects and small containers are opened, data is a field itself."""
    opened = depth < _MAX_DEPTH and id(value) not in above and not whole(value)
    inside = list(parts(path, value)) if opened else []
    if not inside:
        yield path, value
        return
    for inner, item in inside:
        yield from _fields(inner, item, depth + 1, above | {id(value)}, whole)


def parts(path: str, value: Any) -> Iterable[tuple[str, Any]]:
    """What an object or a small container holds, one level down, by path; data holds nothing."""
    if type(value) is dict:
        return _container_parts(path, value.items(), len(value))
    if type(value) in (list, tuple):
        return _container_parts(path, enumerate(value), len(value))
    if isinstance(value, types.MethodType):
        return [(f"{path}.__self__", value.__self__)]
    if isinstance(value, types.FunctionType) and value.__closure__:
        return list(_closure_parts(path, value))
    if isinstance(value, (type, types.FunctionType, types.ModuleType)) or _is_data(value):
        return []
    return [(f"{path}.{name}", item) for name, item in _attributes(value).items()]


def _container_parts(
    path: str, pairs: Iterable[tuple[Any, Any]], count: int
) -> list[tuple[str, Any]]:
    """A container is opened only where it holds objects; plain data is compared as a whole."""
    if not 0 < count <= _MAX_OPENED:
        return []
    items = list(pairs)
    if all(_is_data(item) for _, item in items):
        return []
    return [(f"{path}[{key!r}]", item) for key, item in items]


def _closure_parts(path: str, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function closes over, by the names in its code."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a cell that is not filled yet
            yield f"{path}.__closure__[{name!r}]", cell.cell_contents


def _is_data(value: Any) -> bool:
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, bytearray)):
        return True
    if isinstance(value, (random.Random, set, frozenset, range)):
        return True
    if _class_names(value) & _DATA_CLASSES:
        return True
    kinds = type(value).__mro__
    slotted = any("__slots__" in vars(kind) and _is_of_user(kind) for kind in kinds)
    return not slotted and type(value).__dictoffset__ == 0


def _class_names(value: Any) -> set[str]:
    return {f"{kind.__module__}.{kind.__qualname__}" for kind in type(value).__mro__}


def _is_of_user(kind: type) -> bool:
    return _is_file_of_user(sys.modules.get(kind.__module__))


_ARRAYS = {"torch.Tensor", "numpy.ndarray"}
_DATA_CLASSES = {
    "torch.Tensor",
    "torch._C.TensorBase",
    "torch._C.Generator",
    "numpy.ndarray",
    "numpy.generic",
    "numpy.random._generator.Generator",
    "numpy.random.mtrand.RandomState",
    "logging.Logger",
}


def _attributes(value: Any) -> dict[str, Any]:
    """The attributes of an object by name, read without calling anything of the user's."""
    try:
        found = dict(object.__getattribute__(value, "__dict__"))
    except AttributeError:
        found = {}
    for kind in type(value).__mro__:
        for name, member in vars(kind).items():
            if isinstance(member, types.MemberDescriptorType) and not name.startswith("__"):
                with contextlib.suppress(AttributeError):  # a slot that is not filled
                    found.setdefault(name, member.__get__(value))
    return found


# Globals and defaults ------------------------------------------------------------------------


def module_globals(modules: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """The globals of imported modules and the data of their classes, by dotted name."""
    for name in modules:
        module = sys.modules.get(name)
        if module is None:
            continue
        for attribute, value in list(vars(module).items()):
            if attribute.startswith(("__", "@")) or isinstance(value, types.ModuleType):
                continue
            yield f"{name}.{attribute}", value
            if isinstance(value, type) and value.__module__ == name:
                yield from _class_data(f"{name}.{attribute}", value)


def _class_data(path: str, kind: type) -> Iterator[tuple[str, Any]]:
    for name, value in vars(kind).items():
        if not name.startswith("__") and not callable(value) and not hasattr(value, "__get__"):
            yield f"{path}.{name}", value


def _environment() -> dict[str, Held]:
    """Environment variables by digest; their values are nobody's to show."""
    return {
        f"os.environ[{name!r}]": [xxhash.xxh3_64_hexdigest(os.fsencode(value)), "set", "data"]
        for name, value in os.environ.items()
        if not name.startswith("PYTEST_")
    }


def _torch(name: str) -> Callable[[], Any]:
    def read() -> Any:
        reader = getattr(sys.modules.get("torch"), name, None)
        return str(reader()) if reader is not None else None

    return read


def _numpy_errors() -> Any:
    numpy = sys.modules.get("numpy")
    return str(numpy.geterr()) if numpy is not None else None


def _locale() -> Any:
    locale = sys.modules.get("locale")
    return locale.setlocale(locale.LC_ALL) if locale is not None else None


def _setting(module: str, usual: Any, read: Callable[[Any], Any]) -> Callable[[], Any]:
    """A setting of a module's, which is the usual one where nobody has imported the module."""

    def value() -> Any:
        imported = sys.modules.get(module)
        return str(usual if imported is None else read(imported))

    return value


def _decimal(module: Any) -> Any:
    context = module.getcontext()
    return context.prec, context.rounding


_DEFAULTS: dict[str, Callable[[], Any]] = {
    "torch.get_default_dtype()": _torch("get_default_dtype"),
    "torch.get_default_device()": _torch("get_default_device"),
    "torch.are_deterministic_algorithms_enabled()": _torch("are_deterministic_algorithms_enabled"),
    "numpy.geterr()": _numpy_errors,
    "locale.setlocale(locale.LC_ALL)": _locale,
    "logging.getLogger().level": lambda: logging.getLogger().level,
    "sys.getrecursionlimit()": sys.getrecursionlimit,
    "csv.field_size_limit()": _setting("csv", 131072, lambda csv: csv.field_size_limit()),
    "decimal.getcontext()": _setting("decimal", (28, "ROUND_HALF_EVEN"), _decimal),
    "PIL.ImageFile.LOAD_TRUNCATED_IMAGES": _setting(
        "PIL.ImageFile", False, lambda image_file: image_file.LOAD_TRUNCATED_IMAGES
    ),
    "PIL.Image.MAX_IMAGE_PIXELS": _setting(
        "PIL.Image", 89478485, lambda image: image.MAX_IMAGE_PIXELS
    ),
}


# One value -----------------------------------------------------------------------------------


class _Enough(BaseException):
    """The part of a value that is looked at has been looked at."""


class _Look(Walk):
    """A walk that opens objects by their fields, within a budget of nodes."""

    counts_parts = True

    def __init__(self) -> None:
        super().__init__(xxhash.xxh3_128())
        self._left = _MAX_NODES
        self.opaque = False

    def fresh(self) -> Walk:
        """A look with a budget of its own."""
        return _Look()

    def feed(self, value: Any, depth: int) -> None:
        """Feed a value, if the budget lasts."""
        self._left -= 1
        if self._left < 0:
            raise _Enough
        super().feed(self._lessened(value), depth)

    def _lessened(self, value: Any) -> Any:
        """A large array's edges in its place: a look must not read a memory map through."""
        if not _class_names(value) & _ARRAYS or value.nbytes <= _WHOLE_BYTES:
            return value
        try:
            flat = value.reshape(-1)
            return [str(value.dtype), tuple(value.shape), flat[:_EDGE], flat[-_EDGE:]]
        except (RuntimeError, ValueError, TypeError):
            return [str(value.dtype), tuple(value.shape)]

    def describe(self, value: Any, depth: int) -> None:
        """Objects of other kinds: generators by their state, others by class and fields."""
        for names, state in _STATES:
            kind = type(value)
            if kind.__qualname__ in names and hasattr(kind, state) and not _is_of_user(kind):
                member = getattr(value, state)
                self.tag("state", kind.__qualname__)
                self.feed(_state_of(member), depth)
                return
        attributes = _attributes(value)
        self.opaque = self.opaque or not attributes
        self.tag("object", type(value).__qualname__)
        self.feed(attributes, depth)


_STATES = (
    (("Generator",), "bit_generator"),
    (("RandomState", "Generator"), "get_state"),
    (("Random", "SystemRandom"), "getstate"),
)


def _state_of(member: Any) -> Any:
    try:
        return member() if callable(member) else member.state
    except NotImplementedError:
        return None


def _held(value: Any) -> Held:
    if isinstance(value, (types.FunctionType, type)):
        return [_identity(value), f"{value.__module__}.{value.__qualname__}", "data"]
    look = _Look()
    try:
        look.feed(value, 0)
    except _Enough:
        pass
    except Exception:  # noqa: BLE001 - a field of the user's that cannot be read is no evidence
        return ["", kind_of(value), "opaque"]
    kind = "empty" if value is None or _is_empty(value) else "opaque" if look.opaque else "data"
    shown = kind_of(value)
    if _is_data(value) and _may_be_shown(value):
        shown = f"{shown} {preview(value)}"
    return [look.hasher.hexdigest(), _short(shown) if kind != "empty" else repr(value), kind]


def _may_be_shown(value: Any, depth: int = 0) -> bool:
    """Whether to show a value is to call no method of the user's.

    Of sequences only the first items are shown; all of what has no order is compared to sort it.
    """
    if type(value) in (list, tuple):
        items = value[:_MAX_SHOWN]
    elif type(value) in (dict, set, frozenset):
        items = [*value, *value.values()] if type(value) is dict else [*value]
    else:
        return not _is_of_user(type(value))
    few = len(items) <= _MAX_COMPARED and depth < _MAX_DEPTH
    return few and all(_may_be_shown(item, depth + 1) for item in items)


def _short(text: str) -> str:
    return text if len(text) <= 100 else text[:97] + "..."


def _is_empty(value: Any) -> bool:
    return isinstance(value, (list, tuple, dict, set, frozenset, str, bytes)) and not value


def _identity(value: Any) -> str:
    """What tells two functions of one name apart: a patch is defined elsewhere."""
    code = getattr(value, "__code__", None)
    line = code.co_firstlineno if code is not None else 0
    return f"{value.__module__}:{value.__qualname__}:{line}"


# Comparison ----------------------------------------------------------------------------------


def differences(
    parent: Mapping[str, Held], child: Mapping[str, Held], used: Mapping[str, int]
) -> tuple[DifferenceFacts, ...]:
    """Where a child holds something else than its parent, the likeliest cause first.

    ``used`` ranks attribute and global names by how near to the reading of a sample they are
    used. What the child lacks because it never imported the module is left out, and so are
    handles, which cannot be compared.
    """
    found = []
    modules = {path.rpartition(".")[0] for path in child}
    for path, ours in parent.items():
        theirs = child.get(path)
        if theirs is None:
            if _never_there(path, modules, child):
                continue
            theirs = ["", "missing", "empty"]
        if ours[0] == theirs[0] or "opaque" in (ours[2], theirs[2]):
            continue
        found.append(
            DifferenceFacts(path, ours[1], theirs[1], _rank(path, used), theirs[2] == "empty")
        )
    return tuple(
        sorted(found, key=lambda d: (d.rank, not d.path.startswith(("dataset", "loader"))))
    )


def _never_there(path: str, modules: set[str], child: Mapping[str, Held]) -> bool:
    """Whether the path's owner itself is missing or is something else in the child."""
    if path.startswith("os.environ["):
        return False
    if path.startswith(("dataset", "loader")):
        return any(path.startswith((f"{p}.", f"{p}[")) for p in child)
    return path.rpartition(".")[0] not in modules


def _rank(path: str, used: Mapping[str, int]) -> int:
    if path in _DEFAULTS:
        return 2
    name = path.rpartition(".")[2].partition("[")[0]
    if path.startswith("os.environ["):
        name = path.split("'")[1]
    return used.get(name, 3)


def names_used(roots: Iterable[Any]) -> dict[str, int]:
    """The attribute and global names, and the names of environment variables, that code uses.

    Of the roots and of the objects that they hold: 0 for names in what makes a sample
    (``__getitem__``, ``__iter__``, ``__call__``, collate functions), 1 for names elsewhere in the
    same classes and modules.
    """
    ranks: dict[str, int] = {}
    for rank, code in dict.fromkeys(_codes(roots)):
        for name in _names(code):
            ranks[name] = min(rank, ranks.get(name, rank))
    return ranks


SAMPLING = ("__getitem__", "__getitems__", "__iter__", "__next__", "__call__", "forward")


def objects(root: Any) -> Iterator[Any]:
    """The root and what it holds, opened by fields and small containers; each object once."""
    waiting: list[tuple[Any, int]] = [(root, 0)]
    seen: set[int] = set()
    while waiting and len(seen) < _MAX_OBJECTS:
        value, depth = waiting.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield value
        if depth < _MAX_DEPTH:
            waiting += [(part, depth + 1) for _, part in parts("", value)]


def _codes(roots: Iterable[Any]) -> Iterator[tuple[int, types.CodeType]]:
    modules: dict[str, None] = {}
    kinds: dict[type, None] = {}
    for value in itertools.chain.from_iterable(map(objects, roots)):
        function = getattr(value, "__func__", value) if type(value) is types.MethodType else value
        if isinstance(function, types.FunctionType):
            yield 0, function.__code__
            modules[function.__module__] = None
        kinds |= dict.fromkeys(type(value).__mro__)
    for kind in kinds:
        if belongs_to_user(getattr(sys.modules.get(kind.__module__), "__file__", None) or "<"):
            yield from _class_codes(kind)
            modules[kind.__module__] = None
    for name in modules:
        yield from _module_codes(name)


def _class_codes(kind: type) -> Iterator[tuple[int, types.CodeType]]:
    for name, member in vars(kind).items():
        if isinstance(member, types.FunctionType):
            yield (0 if name in SAMPLING else 1), member.__code__


def _module_codes(name: str) -> Iterator[tuple[int, types.CodeType]]:
    for member in list(vars(sys.modules.get(name, types)).values()):
        if getattr(member, "__module__", None) != name:
            continue
        if isinstance(member, types.FunctionType):
            yield 1, member.__code__
        elif isinstance(member, type):
            yield from ((1, code) for _, code in _class_codes(member))


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
        elif isinstance(constant, str) and constant.isupper():
            yield constant
