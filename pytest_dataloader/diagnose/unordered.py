"""Where code lets an order that is nobody's choice, of a set or a directory, reach what it makes.

Read from the source, by names within a module: a suspicion, which content must then prove.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

_SETS = frozenset({"set", "frozenset"})
_GIVE_SETS = frozenset({"union", "intersection", "difference", "symmetric_difference"})
_KEEP_ORDER_OUT = frozenset(
    {"sorted", "len", "min", "max", "any", "all", "set", "frozenset", "isinstance", "bool"}
    | {"type", "id"}
)
_TAKE_ORDER = frozenset(
    {"list", "tuple", "enumerate", "iter", "next", "zip", "map", "filter", "dict", "join", "chain"}
    | {"fromkeys", "array", "asarray", "tensor", "fromiter", "extend", "choice", "sample", "Series"}
)
_HARMLESS = frozenset(
    {"add", "update", "discard", "remove", "clear", "issubset", "issuperset", "isdisjoint"}
    | {"difference_update", "intersection_update", "symmetric_difference_update"}
    | _GIVE_SETS
)


_LISTINGS = frozenset({"listdir", "scandir", "glob", "iglob", "rglob", "iterdir", "walk"})
_ORDERED, _ESCAPES, _LISTS, _NOTHING = "ordered", "escapes", "lists", ""


@dataclass(frozen=True)
class Uses:
    """Lines of code, as ``file:line``: ``ordered`` take elements in a set's order, ``escaping``
    hand a set on to where no line shows what becomes of it, ``listing`` do not sort what a
    directory holds."""

    ordered: tuple[str, ...] = ()
    escaping: tuple[str, ...] = ()
    listing: tuple[str, ...] = ()


def uses(names: Iterable[str]) -> Uses:
    """How the modules of these names use sets and directories."""
    found: list[tuple[str, str]] = []
    for name in names:
        file = getattr(sys.modules.get(name), "__file__", None)
        tree = _tree(file) if file else None
        if tree is not None:
            found += [(fate, f"{file}:{line}") for fate, line in of_tree(tree)]
    ordered, escaping, listing = (
        tuple(dict.fromkeys(line for fate, line in found if fate == wanted))
        for wanted in (_ORDERED, _ESCAPES, _LISTS)
    )
    return Uses(ordered, escaping, listing)


def _tree(file: str) -> ast.Module | None:
    try:
        with open(file, "rb") as source:
            return ast.parse(source.read())
    except (OSError, SyntaxError, ValueError):
        return None


def of_tree(tree: ast.Module) -> list[tuple[str, int]]:
    """What becomes of the sets and listings of a module, with the lines."""
    reader = _Reader(tree)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and reader.is_set(node):
            found.append((reader.fate(node), node.lineno))
        elif isinstance(node, ast.Call) and _is_listing(node) and not reader.is_sorted(node):
            found.append((_LISTS, node.lineno))
    return sorted({(fate, line) for fate, line in found if fate})


class _Reader:
    """Which expressions of a module are sets, and what becomes of each."""

    def __init__(self, tree: ast.Module) -> None:
        self._parents = {
            id(child): node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)
        }
        self._sorted = {
            _name(node.func.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "sort"
        }
        self._names: set[str] = set()
        for _ in range(2):  # a name may be bound to what another name is
            self._names |= {
                name
                for node in ast.walk(tree)
                if isinstance(node, (ast.Assign, ast.AnnAssign)) and self.is_set(node.value)
                for name in map(_name, _targets(node))
                if name
            }

    def is_set(self, node: Any) -> bool:
        """Whether an expression is a set, as far as its text shows."""
        if isinstance(node, ast.Set):
            return not all(_is_number(item) for item in node.elts)
        if isinstance(node, ast.SetComp):
            return True
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                return node.func.attr in _GIVE_SETS and self.is_set(node.func.value)
            return _name(node.func) in _SETS
        if isinstance(node, ast.BinOp):
            sides = (node.left, node.right)
            binary = isinstance(node.op, (ast.Sub, ast.BitAnd, ast.BitOr, ast.BitXor))
            return binary and any(self.is_set(side) or _is_keys(side) for side in sides)
        loads = isinstance(getattr(node, "ctx", None), ast.Load)
        return loads and _name(node) in self._names

    def fate(self, node: ast.AST) -> str:
        """What becomes of a set: its order is taken, it escapes, or neither."""
        parent: Any = self._parents.get(id(node))
        if isinstance(parent, (ast.For, ast.AsyncFor, ast.comprehension)):
            return _ORDERED if parent.iter is node and not self._forgets(parent) else _NOTHING
        if isinstance(parent, ast.Call):
            return _fate_as_argument(parent, node)
        if isinstance(parent, ast.Attribute):
            return _ORDERED if parent.attr == "pop" else _unless(parent.attr in _HARMLESS)
        if isinstance(parent, ast.Starred):
            return _ORDERED
        if isinstance(parent, (ast.Assign, ast.AnnAssign)):
            return _unless(all(_name(target) for target in _targets(parent)))
        harmless = (ast.Compare, ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.AugAssign, ast.Expr)
        return _unless(isinstance(parent, (*harmless, ast.If, ast.While, ast.IfExp, ast.Assert)))

    def _forgets(self, loop: Any) -> bool:
        """Whether a comprehension's result keeps no order, or is handed to what takes none."""
        if not isinstance(loop, ast.comprehension):
            return False
        whole: Any = self._parents.get(id(loop))
        if isinstance(whole, ast.SetComp):
            return True
        call = self._parents.get(id(whole))
        return isinstance(call, ast.Call) and _takes_no_order(call)

    def is_sorted(self, node: Any) -> bool:
        """Whether an expression's value is sorted or counted, at once or by its name."""
        parent: Any = self._parents.get(id(node))
        if isinstance(parent, (ast.Assign, ast.AnnAssign)):
            return any(_name(target) in self._sorted for target in _targets(parent))
        if isinstance(parent, ast.comprehension):
            whole = self._parents.get(id(parent))
            return isinstance(whole, ast.SetComp) or self.is_sorted(whole)
        if not isinstance(parent, ast.Call) or node is parent.func:
            return False
        name = _name(parent.func)
        return name in _KEEP_ORDER_OUT or (
            name in ("list", "map", "filter") and self.is_sorted(parent)
        )


def _fate_as_argument(call: ast.Call, node: ast.AST) -> str:
    if node is call.func:
        return _NOTHING
    name = _name(call.func)
    if name in _TAKE_ORDER or (name in _KEEP_ORDER_OUT and not _takes_no_order(call)):
        return _ORDERED
    return _unless(name in _KEEP_ORDER_OUT or name in _HARMLESS)


def _takes_no_order(call: ast.Call) -> bool:
    """Whether a call's result is the same in any order; with a key, equals keep theirs."""
    keyed = any(keyword.arg == "key" for keyword in call.keywords)
    return _name(call.func) in _KEEP_ORDER_OUT and not keyed


def _unless(harmless: bool) -> str:
    return _NOTHING if harmless else _ESCAPES


def _targets(node: Any) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def _name(node: Any) -> str:
    """The last part of a dotted name; empty for anything else."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float))


def _is_listing(call: ast.Call) -> bool:
    return _name(call.func) in _LISTINGS


def _is_keys(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _name(node.func) in ("keys", "items")
