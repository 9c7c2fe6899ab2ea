"""The rule of the design: which part of the package imports which."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pytest_dataloader

PACKAGE = Path(pytest_dataloader.__file__).parent
MODULES = {
    ".".join(("pytest_dataloader", *file.relative_to(PACKAGE).with_suffix("").parts)): file
    for file in sorted(PACKAGE.rglob("*.py"))
}
GLUE = {
    f"pytest_dataloader.{name}"
    for name in (
        "collecting",
        "gathering",
        "hookspecs",
        "items",
        "plugin",
        "progress",
        "targets",
    )
}
HEAVY = ("torch", "psutil", "hypothesis", "xxhash", "numpy")


def imported(tree: ast.AST, module: str) -> Iterator[str]:
    """Dotted names that a module's text imports, wherever in it, for types too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parent = module.split(".")[: -node.level] if node.level else []
            base = ".".join([*parent, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def imports_of(module: str) -> set[str]:
    return set(imported(ast.parse(MODULES[module].read_text(encoding="utf-8")), module))


def below(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def modules_of(part: str) -> list[str]:
    found = [module for module in MODULES if below(module, f"pytest_dataloader.{part}")]
    assert found, f"there is no pytest_dataloader.{part}"
    return found


def test_imports_are_read_from_a_text() -> None:
    text = "import a.b\nfrom c import d\ndef f():\n    from . import e\n    from ..g import h"
    assert set(imported(ast.parse(text), "x.y.z")) == {
        "a.b",
        "c",
        "c.d",
        "x.y",
        "x.y.e",
        "x.g",
        "x.g.h",
    }


@pytest.mark.parametrize(
    ("part", "never"),
    [
        ("observe", "checks"),
        ("observe", "report"),
        ("diagnose", "checks"),
        ("diagnose", "report"),
        ("checks", "report"),
    ],
)
def test_facts_flow_one_way(part, never) -> None:
    against = {
        module: sorted(n for n in imports_of(module) if below(n, f"pytest_dataloader.{never}"))
        for module in modules_of(part)
    }
    assert {module: names for module, names in against.items() if names} == {}


def test_nothing_but_the_glue_imports_pytest() -> None:
    importing = {
        module
        for module in MODULES
        if any(below(name, "pytest") or below(name, "_pytest") for name in imports_of(module))
    }
    assert importing <= GLUE
    assert "pytest_dataloader.plugin" in importing


def test_nothing_but_the_glue_imports_the_glue() -> None:
    against = {
        module: sorted(n for n in imports_of(module) if any(below(n, glue) for glue in GLUE))
        for module in MODULES
        if module not in GLUE
    }
    assert {module: names for module, names in against.items() if names} == {}


@pytest.mark.parametrize("module", ["pytest_dataloader", "pytest_dataloader.plugin"])
def test_importing_the_package_or_its_plugin_imports_nothing_heavy(module) -> None:
    code = (
        "import sys\n"
        f"import {module}\n"
        f"print(*sorted(set(sys.modules) & {set(HEAVY)!r}), {module!r} in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "True"
