"""What the plugin costs a session that uses nothing of it: start, imports, collection, run."""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple

GOAL_MS = 5.0
GOAL_RATIO = 1.10
HEAVY = ("hypothesis", "psutil", "torch")

NAME = "dataloader"
WITH = ()
WITHOUT = ("-p", f"no:{NAME}")

FEW_TESTS = """\
def test_one():
    assert 1 + 1 == 2


def test_two():
    assert "a" + "b" == "ab"


def test_three():
    assert not []
"""

MANY_TESTS = """\
import pytest


@pytest.mark.parametrize("number", range({count}))
def test_number(number):
    pass
"""

LOADED = """\
import sys
import pytest

code = pytest.main(sys.argv[1:])
names = {name.partition(".")[0] for name in sys.modules}
print("LOADED", *sorted(names & set(%r)))
raise SystemExit(code)
"""


def common() -> list[str]:
    """Options of every session: of all installed plugins only ours is loaded.

    It is loaded by its entry point, as it is for whoever has installed it. Naming it by ``-p``
    would make pytest read the metadata of every installed package, which is not our cost.
    """
    installed = {entry.name for entry in entry_points(group="pytest11")}
    blocked = [f"-pno:{name}" for name in sorted(installed - {NAME})]
    return ["-q", "-pno:cacheprovider", *blocked]


def environment(folder: Path) -> dict[str, str]:
    """This process's environment, but bytecode is kept, as an installed package's is."""
    dropped = {"PYTEST_ADDOPTS", "PYTEST_DISABLE_PLUGIN_AUTOLOAD", "PYTHONDONTWRITEBYTECODE"}
    kept = {key: value for key, value in os.environ.items() if key not in dropped}
    return kept | {"PYTHONPYCACHEPREFIX": str(folder.with_name("bytecode"))}


class Taken(NamedTuple):
    """What one session took, from the start of the interpreter to its end."""

    wall_s: float
    cpu_s: float


def session(folder: Path, *options: str) -> Taken:
    command = [sys.executable, "-m", "pytest", *common(), *options]
    began, cpu_before = time.perf_counter(), children_cpu_s()
    subprocess.run(command, cwd=folder, env=environment(folder), check=True, capture_output=True)
    return Taken(time.perf_counter() - began, children_cpu_s() - cpu_before)


def children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def interleaved(folder: Path, pairs: int, *options: str) -> list[tuple[Taken, Taken]]:
    """Sessions with and without the plugin, taken in turn; the order changes with each pair."""
    taken: dict[tuple[str, ...], list[Taken]] = {WITH: [], WITHOUT: []}
    for choice in (WITH, WITHOUT):  # compiles and caches what is not yet
        session(folder, *choice, *options)
    for number in range(pairs):
        for choice in (WITH, WITHOUT) if number % 2 else (WITHOUT, WITH):
            taken[choice].append(session(folder, *choice, *options))
    return list(zip(taken[WITH], taken[WITHOUT], strict=True))


def heavy_modules(folder: Path) -> list[str]:
    """Which heavy modules a session with the plugin has imported when it ends."""
    command = [sys.executable, "-c", LOADED % (HEAVY,), *common(), *WITH]
    done = subprocess.run(
        command, cwd=folder, env=environment(folder), check=True, capture_output=True, text=True
    )
    return done.stdout.rpartition("LOADED")[2].split()


def suite(parent: str, name: str, source: str) -> Path:
    """A folder with one test module, and an ini file that ends pytest's look upwards."""
    folder = Path(parent, name)
    folder.mkdir()
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (folder / f"test_{name}.py").write_text(source, encoding="utf-8")
    return folder


def verdict(fits: bool) -> str:
    return "goal met" if fits else "GOAL MISSED"


def compare_session(folder: Path, pairs: int) -> None:
    taken = interleaved(folder, pairs)
    bare_ms = 1000 * statistics.median(bare.wall_s for _, bare in taken)
    print(f"a session of three tests without the plugin: {bare_ms:.1f} ms ({pairs} pairs)")
    for what, field in (("wall", 0), ("CPU", 1)):
        added = [1000 * (ours[field] - bare[field]) for ours, bare in taken]
        low, median_ms, high = statistics.quantiles(added, n=4)
        print(
            f"added by the plugin, {what} time: {median_ms:+.1f} ms (quartiles {low:+.1f} to "
            f"{high:+.1f}); goal under {GOAL_MS:g} ms: {verdict(median_ms < GOAL_MS)}"
        )


def compare_many(folder: Path, pairs: int, what: str, *options: str) -> None:
    taken = interleaved(folder, pairs, *options)
    with_s = statistics.median(ours.wall_s for ours, _ in taken)
    without_s = statistics.median(bare.wall_s for _, bare in taken)
    wall = statistics.median(ours.wall_s / bare.wall_s for ours, bare in taken)
    cpu = statistics.median(ours.cpu_s / bare.cpu_s for ours, bare in taken)
    print(
        f"{what}: {with_s:.2f} s with, {without_s:.2f} s without ({pairs} pairs), ratio "
        f"{wall:.3f} (of CPU time {cpu:.3f}); goal up to {GOAL_RATIO:g}: "
        f"{verdict(wall <= GOAL_RATIO)}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=60, help="pairs of short sessions")
    parser.add_argument("--long-pairs", type=int, default=7, help="pairs of long sessions")
    parser.add_argument("--tests", type=int, default=10_000, help="tests of a long session")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as parent:
        few = suite(parent, "few", FEW_TESTS)
        many = suite(parent, "many", MANY_TESTS.format(count=chosen.tests))
        heavy = heavy_modules(few)
        print(f"heavy modules imported: {', '.join(heavy) or 'none'}; goal none of {HEAVY}")
        assert not heavy, heavy
        compare_session(few, chosen.pairs)
        tests = f"{chosen.tests:,} trivial tests"
        compare_many(many, chosen.long_pairs, f"collecting {tests}", "--collect-only", "-qq")
        compare_many(many, chosen.long_pairs, f"running {tests}", "-qq")


if __name__ == "__main__":
    main()
