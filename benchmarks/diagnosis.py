"""What it costs to find what will not travel, and to weigh what does, in a big dataset."""

from __future__ import annotations

import argparse
import pickle
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

GOAL = 5.0


class Samples:
    """A dataset of many small Python objects, with a transform beside them."""

    def __init__(self, samples: list[Any], transform: Any) -> None:
        self.samples = samples
        self.transform = transform


def fine(count: int) -> Any:
    return Samples([(i, i + 1, "label") for i in range(count)], None)


def lambda_elsewhere(count: int) -> Any:
    return Samples([(i, i + 1, "label") for i in range(count)], lambda sample: sample)


def lambda_in_the_middle(count: int) -> Any:
    dataset = fine(count)
    dataset.samples[count // 2] = (0, lambda sample: sample, "label")
    return dataset


def plain_list(count: int) -> Any:
    return fine(count).samples


def dumps(dataset: Any, _count: int) -> str:
    return f"{len(pickle.dumps(dataset, protocol=4)):,} bytes"


def find(dataset: Any, count: int) -> str:
    import multiprocessing

    from pytest_dataloader.diagnose.pickling import find_unpicklable

    found = find_unpicklable({"dataset": dataset}, multiprocessing.get_context("spawn"))
    names = [fact.path for fact in found]
    expected = ["dataset.transform", f"dataset.samples[{count // 2}][1]"]
    assert [name in expected for name in names] == [True], names
    return names[0]


def weigh(dataset: Any, _count: int) -> str:
    import multiprocessing

    from pytest_dataloader.diagnose import pickling

    travel = pickling.weigh({"dataset": dataset}, multiprocessing.get_context("spawn"))
    assert travel is not None
    return f"{travel.bytes:,} bytes, heaviest {travel.heaviest[0][0]}"


CASES: dict[str, tuple[Callable[[int], Any], Callable[[Any, int], str]]] = {
    "pickle.dumps": (fine, dumps),
    "find: a lambda beside the list": (lambda_elsewhere, find),
    "find: a lambda in the middle of the list": (lambda_in_the_middle, find),
    "weigh": (fine, weigh),
    "weigh: the dataset is a list": (plain_list, weigh),
}


def run_case(name: str, count: int) -> None:
    """Runs in a process of its own, whose peak memory then is this case's; prints three lines."""
    make, action = CASES[name]
    dataset = make(count)
    before = peak_bytes()
    began = time.perf_counter()
    said = action(dataset, count)
    print(time.perf_counter() - began, peak_bytes() - before, said, sep="\n", flush=True)


def peak_bytes() -> int:
    """The most memory that this process has had; Linux counts it in KiB, macOS in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def measured(name: str, count: int) -> tuple[float, int, str]:
    command = [sys.executable, __file__, "--objects", str(count), "--case", name]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    seconds, grown, said = done.stdout.splitlines()[:3]
    return float(seconds), int(grown), said


def compare(count: int, rounds: int) -> None:
    """The best of several rounds of all cases, so that a busy moment does not count."""
    taken: dict[str, list[tuple[float, int, str]]] = {name: [] for name in CASES}
    for _ in range(rounds):
        for name in CASES:
            taken[name].append(measured(name, count))
    base_s = min(taken["pickle.dumps"])[0]
    print(f"{count:,} tuples; goal: within {GOAL:g} times pickle.dumps")
    for name, results in taken.items():
        seconds, grown, said = min(results)
        fits = "goal met" if seconds <= GOAL * base_s else "GOAL MISSED"
        print(
            f"{name:<42} {seconds:6.2f} s, ratio {seconds / base_s:5.2f}, peak memory "
            f"{grown / 1e6:+7.0f} MB ({said}): {fits}"
        )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--case", choices=CASES, help="run this case alone, in this process")
    chosen = parser.parse_args(arguments)
    if chosen.case:
        run_case(chosen.case, chosen.objects)
    else:
        compare(chosen.objects, chosen.rounds)


if __name__ == "__main__":
    main()
