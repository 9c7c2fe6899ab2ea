"""Which lines let the order of a set or a directory reach what they make."""

from __future__ import annotations

import ast
import importlib
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_dataloader.diagnose import unordered, world

ORDERED = [
    "[word for word in set(words)]",
    "{word: n for n, word in enumerate(set(words))}",
    "list({word.lower() for word in words})",
    "for word in {'cat', 'dog'}: print(word)",
    "first = set(words).pop()",
    "both = [*frozenset(words)]",
    "','.join(set(words))",
    "dict.fromkeys(set(words))",
    "sorted(set(words), key=len)",
    "sorted((word for word in set(words)), key=len)",
    "sum(weights[word] for word in set(words))",
    "for word in set(words) - {'the'}: print(word)",
    "for word in set(words).union(more): print(word)",
    "for key in first.keys() & second.keys(): print(key)",
    "known = set(words)\nfor word in known: print(word)",
    "class Data:\n def __init__(self): self.known = set()\n def all(self): return list(self.known)",
    "known = set(words)\nothers = known | more\nprint(tuple(others))",
]
ESCAPING = [
    "def words(): return set('ab')",
    "handed_on(set(words))",
    "holder[0] = {'a', 'b'}",
    "pair = [1, {'a', 'b'}]",
    "known = set(words)\nhanded_on(known)",
]
HARMLESS = [
    "sorted(set(words))",
    "sorted(word for word in set(words))",
    "len({word for word in words})",
    "max(len(word) for word in set(words))",
    "known = {word.lower() for word in set(words)}",
    "found = 'a' in {'a', 'b'}",
    "known = set()\nknown.add(1)\nknown |= {2}\nif known: print(len(known))",
    "if set(words) == set(others): print()",
    "for n in {1, 2, 3}: print(n)",
    "known: set[str]",
    "isinstance(words, (set, frozenset))",
    "x = [a - b for a in words]",
]
LISTS = [
    "os.listdir(folder)",
    "names = [path.name for path in folder.iterdir()]",
    "for path in folder.rglob('*.png'): print(path)",
    "paths = list(glob.glob('*'))",
]
SORTED = [
    "sorted(os.listdir(folder))",
    "sorted(path.name for path in folder.iterdir())",
    "sorted([path for path in folder.glob('*') if path.is_file()])",
    "len(list(folder.iterdir()))",
    "paths = list(folder.rglob('*'))\npaths.sort()",
    "self.paths = [path for path in folder.iterdir()]\nself.paths.sort()",
    "names = {path.name for path in folder.iterdir()}",
]


def found(source: str) -> list[tuple[str, int]]:
    return unordered.of_tree(ast.parse(source))


@pytest.mark.parametrize("source", ORDERED)
def test_the_order_of_a_set_is_taken(source) -> None:
    lines = source.splitlines()
    assert ("ordered", len(lines)) in found(source)


@pytest.mark.parametrize("source", ESCAPING)
def test_a_set_is_handed_on(source) -> None:
    assert found(source) == [("escapes", len(source.splitlines()))]


@pytest.mark.parametrize("source", HARMLESS)
def test_a_set_of_which_nobody_takes_the_order(source) -> None:
    assert found(source) == []


@pytest.mark.parametrize("source", LISTS)
def test_a_listing_that_is_not_sorted(source) -> None:
    assert found(source) == [("lists", 1)]


@pytest.mark.parametrize("source", SORTED)
def test_a_listing_that_is_sorted(source) -> None:
    assert found(source) == []


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    sources = {
        "uo_first": "import uo_second\nfrom uo_third import number\nimport os",
        "uo_second": "def take(words):\n    return list(set(words))",
        "uo_third": "import uo_first\n\n\ndef number(folder):\n    return folder.iterdir()",
        "uo_apart": "list(set('ab'))",
    }
    for name, source in sources.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source), encoding="utf-8")
    for name in sources:
        importlib.import_module(name)
    yield tmp_path
    for name in sources:
        del sys.modules[name]


def test_modules_that_are_used_are_read_too(modules) -> None:
    names = world.reachable(["uo_first", "no_such_module"])
    assert names == ["uo_first", "uo_second", "uo_third"]
    uses = unordered.uses(names)
    assert uses.ordered == (f"{modules / 'uo_second.py'}:2",)
    assert uses.escaping == ()
    assert uses.listing == (f"{modules / 'uo_third.py'}:5",)


def test_a_module_without_readable_source_says_nothing(modules) -> None:
    (modules / "uo_apart.py").write_text("def (", encoding="utf-8")
    assert unordered.uses(["uo_apart", "sys", "no_such_module"]) == unordered.Uses()
