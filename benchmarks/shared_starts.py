"""What more pipelines of one package cost: a session of 20 against a session of one.

Each pipeline is judged for pickling, determinism, seeding and completeness under {fork, spawn,
forkserver} x {0, 2}; all are defined in one module, so the true starts of the first serve all.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PACKAGE = """\
import torch
from torch.utils.data import Dataset


class Numbers(Dataset):
    def __init__(self, factor):
        self.factor = factor

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((16,), float(index * self.factor)) + torch.rand(16)
"""

SUITE = """\
import functools

import pytest
from numbers_of_ours import Numbers


@pytest.fixture(params=range(1, {count} + 1))
def dl_make_dataset(request):
    return functools.partial(Numbers, request.param)


@pytest.fixture
def dl_loader_kwargs():
    return {{"batch_size": 8, "shuffle": True}}


@pytest.mark.dl_picklable
@pytest.mark.dl_deterministic
@pytest.mark.dl_seeding
@pytest.mark.dl_complete
def test_pipeline():
    pass
"""


def seconds(folder: Path, count: int, *options: str) -> float:
    """Seconds of wall time of a session with so many pipelines."""
    (folder / "numbers_of_ours.py").write_text(PACKAGE, encoding="utf-8")
    (folder / "test_pipelines.py").write_text(SUITE.format(count=count), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider"]
    command += ["--dl-start-methods=all", "--dl-num-workers=0,2", *options]
    began = time.perf_counter()
    # Bytecode is kept, as an installed package's is.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    took = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"the session failed:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    return took


def main() -> None:
    """Print the seconds of both sessions and the median of their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=3, help="how often each session is run")
    parser.add_argument("--pipelines", type=int, default=20, help="how many pipelines")
    options = parser.parse_args()
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.pairs):
            one, many = (seconds(Path(folder), count) for count in (1, options.pipelines))
            ratios.append(many / one)
            print(f"1 pipeline {one:6.1f} s   {options.pipelines} pipelines {many:6.1f} s")
    print(f"{options.pipelines} / 1: {statistics.median(ratios):.2f} (goal: at most 2)")


if __name__ == "__main__":
    main()
