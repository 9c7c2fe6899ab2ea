"""Reads the user's code that makes samples: where it asks the clock, seeds, lists folders, hashes.

Nothing is called: functions are found through the objects that a loader holds, and their source
is parsed. What is found is a candidate; whether it matters, the content of the batches shows.
"""

from __future__ import annotations

import ast
import builtins
import functools
import linecache
import random
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_dataloader.diagnose.world import SAMPLING, objects
from pytest_dataloader.observe.errors import belongs_to_user
from pytest_dataloader.observe.facts import (
    BUILD,
    CLOCK,
    COMPLETION,
    CONSTANT,
    ENTROPY,
    HASH,
    INDEX,
    LISTING,
    ORDER,
    OTHER,
    SAMPLE,
    SEED,
    START,
    SourceFacts,
)

_MAX_FUNCTIONS = 500

#: What a call by its dotted name reads.
_CALLS = {
    **dict.fromkeys(
        (
            "time.time",
            "time.time_ns",
            "time.monotonic",
            "time.monotonic_ns",
            "time.perf_counter",
            "time.perf_counter_ns",
            "time.process_time",
            "datetime.datetime.now",
            "datetime.datetime.utcnow",
            "datetime.datetime.today",
            "datetime.date.today",
        ),
        CLOCK,
    ),
    **dict.fromkeys(
        (
            "os.urandom",
            "os.getpid",
            "uuid.uuid1",
            "uuid.uuid4",
            "random.SystemRandom",
            "secrets.token_bytes",
            "secrets.token_hex",
            "secrets.randbelow",
            "secrets.randbits",
            "secrets.choice",
            "secrets.SystemRandom",
            "torch.seed",
        ),
        ENTROPY,
    ),
    **dict.fromkeys(("builtins.hash", "builtins.id"), HASH),
    **dict.fromkeys(
        (
            "concurrent.futures._base.as_completed",
            "concurrent.futures.as_completed",
            "asyncio.tasks.as_completed",
            "asyncio.as_completed",
        ),
        COMPLETION,
    ),
    **dict.fromkeys(
        ("os.listdir", "os.scandir", "os.walk", "glob.glob", "glob.iglob"),
        LISTING,
    ),
}
#: Generators and seedings: without a seed they take the system's entropy.
_SEEDED = {
    "random.Random",
    "random.seed",
    "numpy.random.default_rng",
    "numpy.random.RandomState",
    "numpy.random.seed",
    "numpy.random.SeedSequence",
    "numpy.random.PCG64",
    "numpy.random.Philox",
    "torch.manual_seed",
    "torch.random.manual_seed",
}
_SEEDING_METHODS = ("manual_seed", "seed")
_LISTING_METHODS = ("iterdir", "rglob")
_COMPLETION_METHODS = ("imap_unordered",)
_NO_ORDER_REACHES = (LISTING, COMPLETION)
_PURE = ("int", "abs", "float", "hash", "len")


def sources(roots: Mapping[str, Any]) -> tuple[SourceFacts, ...]:
    """What the code of a pipeline reads besides its data, samples' code first.

    ``roots`` are objects by the name of their path: the dataset, the loader's functions and its
    samplers.
    """
    found: dict[tuple[str, str], SourceFacts] = {}
    for function, stage in _functions(roots):
        for one in _in_function(function, stage):
            known = found.get((one.where, one.call))
            if known is None or _STAGES.index(stage) < _STAGES.index(known.stage):
                found[one.where, one.call] = one
    return tuple(sorted(found.values(), key=lambda one: _STAGES.index(one.stage)))


_STAGES = (SAMPLE, ORDER, START, BUILD)


# Which functions -----------------------------------------------------------------------------


def _functions(roots: Mapping[str, Any]) -> Iterator[tuple[types.FunctionType, str]]:
    """The user's functions that a pipeline runs, and at which stage; each once a stage."""
    seen: set[tuple[types.CodeType, str]] = set()
    waiting = [entry for root in roots.items() for entry in _entries(*root)]
    while waiting and len(seen) < _MAX_FUNCTIONS:
        function, owner, stage = waiting.pop(0)
        code = function.__code__
        if (code, stage) in seen or not belongs_to_user(code.co_filename):
            continue
        seen.add((code, stage))
        yield function, stage
        waiting += [(called, kind, stage) for called, kind in _called(function, owner)]


def _entries(name: str, root: Any) -> Iterator[tuple[types.FunctionType, type | None, str]]:
    stage = {
        "loader.sampler": ORDER,
        "loader.batch_sampler": ORDER,
        "loader.worker_init_fn": START,
    }
    for value in objects(root):
        yield from _entries_of(value, stage.get(name, SAMPLE))


def _entries_of(value: Any, stage: str) -> Iterator[tuple[types.FunctionType, type | None, str]]:
    if isinstance(value, functools.partial):
        yield from _entries_of(value.func, stage)
    elif isinstance(value, types.MethodType):
        if isinstance(value.__func__, types.FunctionType):
            yield value.__func__, type(value.__self__), stage
    elif isinstance(value, types.FunctionType):
        yield value, None, stage
    elif not isinstance(value, (type, types.ModuleType)):
        for name, member in _methods(type(value)):
            yield member, type(value), BUILD if name == "__init__" else stage


def _methods(kind: type) -> Iterator[tuple[str, types.FunctionType]]:
    """The methods that are run: of each name the nearest, and those that ``super()`` leads to."""
    done: set[str] = set()
    for base in kind.__mro__:
        for name, member in vars(base).items():
            if isinstance(member, types.FunctionType) and _runs(name) and name not in done:
                yield name, member
                if "super" not in member.__code__.co_names:
                    done.add(name)


def _runs(name: str) -> bool:
    return name in SAMPLING or name == "__init__"


def _called(
    function: types.FunctionType, owner: type | None
) -> Iterator[tuple[types.FunctionType, type | None]]:
    """The user's functions that a function names: globals, and methods of its own class."""
    for name in _names(function.__code__):
        target = function.__globals__.get(name)
        if isinstance(target, types.FunctionType):
            yield target, None
        elif isinstance(target, type):
            init = vars(target).get("__init__")
            if isinstance(init, types.FunctionType):
                yield init, target
        member = getattr(owner, name, None) if owner is not None else None
        if isinstance(member, types.FunctionType):
            yield member, owner


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


# What one function does ----------------------------------------------------------------------


def _in_function(function: types.FunctionType, stage: str) -> Iterator[SourceFacts]:
    code = function.__code__
    for node in _nodes(code.co_filename).get(code.co_firstlineno, ()):
        if isinstance(node, ast.Lambda) or node.name == code.co_name:
            yield from _Reading(function, node, stage).found()


_FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@functools.lru_cache(maxsize=256)
def _nodes(file: str) -> dict[int, list[_FunctionNode]]:
    """The functions of a source file by the line that their code object begins with."""
    text = "".join(linecache.getlines(file))
    found: dict[int, list[_FunctionNode]] = {}
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return found
    for node in ast.walk(tree):
        if isinstance(node, _FunctionNode):
            lines = [d.lineno for d in getattr(node, "decorator_list", ())]
            found.setdefault(min([node.lineno, *lines]), []).append(node)
    return found


@dataclass
class _Reading:
    """Reads the body of one function."""

    function: types.FunctionType
    node: _FunctionNode
    stage: str

    def found(self) -> Iterator[SourceFacts]:
        """The calls and loops of interest, in the order in which they stand."""
        ordered = self._ordered_nodes()
        for node in ast.walk(self.node):
            if isinstance(node, ast.Call):
                yield from self._call(node, within_sorted=id(node) in ordered)
            for loop in _looped_over(node):
                if id(loop) not in ordered and self._is_set(loop):
                    yield self._told(HASH, "the order of a set", loop)

    def _ordered_nodes(self) -> set[int]:
        """What stands inside a ``sorted(...)``, or another call that no order reaches."""
        heads = ("sorted", "len", "sum", "min", "max", "any", "all", "set", "frozenset")
        calls = [n for n in ast.walk(self.node) if isinstance(n, ast.Call)]
        inside = [n for n in calls if isinstance(n.func, ast.Name) and n.func.id in heads]
        return {id(part) for call in inside for arg in call.args for part in ast.walk(arg)}

    def _call(self, call: ast.Call, *, within_sorted: bool) -> Iterator[SourceFacts]:
        name = self._dotted(call.func)
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        kind = _CALLS.get(name)
        if kind is None and method in _LISTING_METHODS and name not in _SEEDED:
            kind, name = LISTING, f"{method}()"
        elif kind is None and name.startswith("random.SystemRandom."):
            kind = ENTROPY
        elif kind is None and method in _COMPLETION_METHODS:
            kind, name = COMPLETION, method
        if kind in _NO_ORDER_REACHES and within_sorted:
            return
        if kind == COMPLETION:
            name = f"the order of completion ({name.rpartition('.')[2]})"
        if kind is not None:
            yield self._told(kind, name.removeprefix("builtins."), call)
        elif name in _SEEDED or (method in _SEEDING_METHODS and not name.startswith("builtins.")):
            yield self._seeding(name if name in _SEEDED else method, call)

    def _seeding(self, name: str, call: ast.Call) -> SourceFacts:
        given = [*call.args, *(k.value for k in call.keywords)]
        nothing = all(isinstance(g, ast.Constant) and g.value is None for g in given)
        if not given or nothing:
            return self._told(ENTROPY, f"{name} without a seed", call)
        return self._told(SEED, name, call, seed=self._seed_of(given))

    def _told(self, kind: str, name: str, node: ast.AST, *, seed: str = "") -> SourceFacts:
        where = f"{self.function.__code__.co_filename}:{getattr(node, 'lineno', 0)}"
        return SourceFacts(kind, name, where, self.stage, seed)

    def _seed_of(self, given: Iterable[ast.AST]) -> str:
        """Whether a seed is a constant, comes from the index alone, or from something else."""
        arguments = self.node.args
        names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        tainted = _assigned_from({name for name in names if name != "self"}, self.node)
        nodes = [node for value in given for node in ast.walk(value)]
        called = [n for n in nodes if isinstance(n, ast.Call)]
        pure = all(isinstance(c.func, ast.Name) and c.func.id in _PURE for c in called)
        words = {n.id for n in nodes if isinstance(n, ast.Name)}
        words |= {n.attr for n in nodes if isinstance(n, ast.Attribute)}
        moving = any(part in word.lower() for word in words for part in ("epoch", "worker", "rank"))
        unknown = (words & _locals(self.node)) - tainted
        if not pure or moving or unknown:
            return OTHER
        return INDEX if words & tainted else CONSTANT

    def _is_set(self, node: ast.AST) -> bool:
        if isinstance(node, (ast.Set, ast.SetComp)):
            return True
        called = isinstance(node, ast.Call) and self._dotted(node.func)
        return called in ("builtins.set", "builtins.frozenset")

    def _dotted(self, node: ast.AST) -> str:
        """The dotted name of what is called, as its module knows it; empty where unknown."""
        names: list[str] = []
        while isinstance(node, ast.Attribute):
            names.insert(0, node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        base = self._imported.get(node.id)
        if base is None:
            base = _name_of(self.function.__globals__.get(node.id, _ABSENT))
        if base is None and hasattr(builtins, node.id):
            base = f"builtins.{node.id}"
        return ".".join([base, *names]) if base is not None else ""

    @functools.cached_property
    def _imported(self) -> dict[str, str]:
        """Names that the function imports itself."""
        found: dict[str, str] = {}
        for node in ast.walk(self.node):
            if isinstance(node, ast.Import):
                found |= {
                    alias.asname or alias.name.partition(".")[0]: alias.name
                    if alias.asname
                    else alias.name.partition(".")[0]
                    for alias in node.names
                }
            elif isinstance(node, ast.ImportFrom) and node.module:
                found |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
        return found


_ABSENT = object()


def _name_of(value: Any) -> str | None:
    """The dotted name of a module, function or class among the globals."""
    if value is _ABSENT:
        return None
    if isinstance(value, types.ModuleType):
        return value.__name__
    if isinstance(value, random.SystemRandom):
        return "random.SystemRandom"
    owner = getattr(value, "__self__", None)
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if owner is not None and not isinstance(owner, types.ModuleType) and name:
        # random.seed and numpy.random.seed are methods of a hidden generator
        module = {"Random": "random", "RandomState": "numpy.random"}.get(type(owner).__name__)
        return f"{module}.{name.rpartition('.')[2]}" if module else ""
    module = getattr(value, "__module__", None)
    return f"{_PUBLIC.get(module, module)}.{name}" if module and name else ""


_PUBLIC = {
    "numpy.random._generator": "numpy.random",
    "numpy.random.mtrand": "numpy.random",
    "torch.random": "torch",
    "posix": "os",
    "nt": "os",
}


def _looped_over(node: ast.AST) -> Iterator[ast.AST]:
    """What is gone through in order: by a loop, a comprehension, ``list()`` or ``enumerate()``."""
    if isinstance(node, (ast.For, ast.comprehension)):
        yield node.iter
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and (
            node.func.id in ("list", "tuple", "enumerate", "iter", "next", "zip", "map")
            and node.args
        )
    ):
        yield node.args[-1]


def _assigned_from(names: set[str], node: ast.AST) -> set[str]:
    """The names, and the local variables that are made of them and of nothing else unknown."""
    found = set(names)
    for inner in ast.walk(node):
        if isinstance(inner, ast.Assign):
            used = {n.id for n in ast.walk(inner.value) if isinstance(n, ast.Name)}
            if used & found and not any(isinstance(n, ast.Call) for n in ast.walk(inner.value)):
                found |= {t.id for t in inner.targets if isinstance(t, ast.Name)}
    return found


def _locals(node: ast.AST) -> set[str]:
    """The names that a function binds itself."""
    return {
        n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
