"""What an object that will not travel is in people's words, and what to write instead."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

_PER_PROCESS = (
    "open it in each process on first use: keep the path, set the attribute to None in "
    "__getstate__, and open it where it is used"
)
_PER_WORKER = "make it in each worker (worker_init_fn, or on first use) and drop it in __getstate__"


def kind_and_remedy(value: Any) -> tuple[str, str | None]:
    """What the object is, and the remedy for its kind."""
    for matches, kind, remedy in _KINDS:
        if matches(value):
            return kind.format(name=_name(value)), remedy
    return f"a {_name(value)} object", "leave it out in __getstate__ and make it again on first use"


def _name(value: Any) -> str:
    if isinstance(value, (type, types.FunctionType)):
        return value.__qualname__
    kind = type(value)
    if kind.__module__ in ("builtins", "__main__"):
        return kind.__qualname__
    return f"{kind.__module__.removeprefix('_')}.{kind.__qualname__}"


def _is_lambda(value: Any) -> bool:
    return isinstance(value, types.FunctionType) and value.__name__ == "<lambda>"


def _is_local_function(value: Any) -> bool:
    return isinstance(value, types.FunctionType) and "<locals>" in value.__qualname__


def _is_local_class(value: Any) -> bool:
    return isinstance(value, type) and "<locals>" in value.__qualname__


def _of_local_class(value: Any) -> bool:
    return _is_local_class(type(value))


def _typed(*names: str) -> Callable[[Any], bool]:
    """Matches objects whose class, or a base of it, has one of these dotted names or prefixes."""

    def matches(value: Any) -> bool:
        for kind in type(value).__mro__:
            dotted = f"{kind.__module__}.{kind.__qualname__}"
            if any(
                dotted == name or (name.endswith(".") and dotted.startswith(name)) for name in names
            ):
                return True
        return False

    return matches


_KINDS: tuple[tuple[Callable[[Any], bool], str, str | None], ...] = (
    (_is_lambda, "a lambda", "write a module-level function (or functools.partial of one)"),
    (
        _is_local_function,
        "the function {name}, defined inside another function",
        "move it to module level; pass what it closes over with functools.partial",
    ),
    (_is_local_class, "the class {name}, defined inside a function", "move it to module level"),
    (
        _of_local_class,
        "an instance of {name}, a class defined inside a function",
        "move the class to module level",
    ),
    (
        lambda v: isinstance(v, types.FunctionType),
        "the function {name}, which its own name does not lead to",
        "give the decorated function its own name, or decorate with functools.wraps and @ syntax",
    ),
    (_typed("_io."), "an open file ({name})", _PER_PROCESS),
    (_typed("zipfile.ZipFile", "tarfile.TarFile"), "an open archive ({name})", _PER_PROCESS),
    (_typed("h5py."), "an open HDF5 object ({name})", _PER_PROCESS),
    (
        _typed("lmdb.", "builtins.Environment", "builtins.Transaction", "builtins.Cursor"),
        "an open LMDB object ({name})",
        _PER_PROCESS,
    ),
    (_typed("sqlite3."), "an SQLite object ({name})", _PER_PROCESS),
    (_typed("socket.", "ssl.", "http."), "a network connection ({name})", _PER_WORKER),
    (_typed("threading.Thread"), "a thread ({name})", _PER_WORKER),
    (
        _typed("_thread.", "threading.", "queue.", "_queue."),
        "a lock or queue of threads ({name})",
        _PER_WORKER,
    ),
    (_typed("concurrent.futures."), "a pool or future ({name})", _PER_WORKER),
    (
        _typed("multiprocessing."),
        "a multiprocessing object ({name})",
        "make it with multiprocessing.get_context(method) of the loader's own start method",
    ),
    (
        lambda v: isinstance(
            v, (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
        ),
        "a generator",
        "keep what it is made from, and make it in __iter__",
    ),
    (
        _typed("torch.utils.data.dataloader."),
        "an iterator of an inner DataLoader",
        "keep the loader, and call iter() on it where it is used",
    ),
    (
        lambda v: isinstance(v, types.ModuleType),
        "a module",
        "import it where it is used, or keep its name",
    ),
    (
        _typed("builtins.dict_keys", "builtins.dict_values", "builtins.dict_items"),
        "a view of a dict ({name})",
        "make a list of it",
    ),
    (
        _typed("_ctypes.", "ctypes."),
        "a ctypes object ({name})",
        "keep what it is made from, and load or make it in each process on first use",
    ),
    (
        _typed("weakref.", "_weakref.", "_weakrefset.", "builtins.weakref"),
        "a weak reference",
        "keep a strong reference or drop it in __getstate__",
    ),
)
