"""Whether the cause of a slow loader is told right, every time, on a machine that does other work.

Loaders with a known truth: a sleep a sample, computing a sample, batches of Python objects, a slow
import. Each run has an observer of its own, so that nothing is kept from one to the next.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from pytest_dataloader.checks.asked import Throughput
from pytest_dataloader.checks.evidence import Question
from pytest_dataloader.checks.finding import Finding
from pytest_dataloader.judge import judge
from pytest_dataloader.matrix import LoaderConfig
from pytest_dataloader.observe.observer import Observer
from pytest_dataloader.pipeline import Pipeline

W0, FORK, SPAWN = LoaderConfig(None, 0), LoaderConfig("fork", 2), LoaderConfig("spawn", 2)
SLOW_IMPORT = """\
import time

time.sleep(1)


class Imported:
    def __len__(self):
        return 16

    def __getitem__(self, index):
        return index
"""


class Numbers(Dataset[Any]):
    """48 samples."""

    def __len__(self) -> int:
        return 48


class Sleeps(Numbers):
    """As one that waits for storage."""

    def __getitem__(self, index: int) -> int:
        time.sleep(0.005)
        return index


class Burns(Numbers):
    """As one that decodes."""

    def __getitem__(self, index: int) -> int:
        for _ in range(8):
            hashlib.sha256(bytes(200_000)).digest()
        return index


class Objects(Numbers):
    """Many Python objects a sample, which are pickled one by one."""

    ROWS = tuple(tuple((str(n), float(n), n) for n in range(20_000)) for _ in range(4))

    def __getitem__(self, index: int) -> Any:
        return self.ROWS[index % 4]


def as_list(samples: list[Any]) -> list[Any]:
    """Collate nothing."""
    return samples


@dataclass(frozen=True)
class Truth:
    """A loader, what is asked of it, and what must be said: a code, a culprit and words."""

    name: str
    make: Callable[[], Any]
    config: LoaderConfig
    asked: Throughput
    code: str
    culprit: str
    words: str = ""

    def told(self, findings: tuple[Finding, ...]) -> bool:
        """Whether this and nothing else of the family is said."""
        family = ("slow", "slow-start", "no-speedup", "stalls", "slow-transfer")
        found = [f for f in findings if f.code in family]
        return len(found) == 1 and all(
            (f.code, f.culprit) == (self.code, self.culprit) and self.words in f.message
            for f in found
        )


def truths(imported: Callable[[], Any]) -> list[Truth]:
    """All loaders with their truths."""
    slow, busy = Throughput(min_batches_per_s=1e6), Throughput(step_ms=1, max_stall=0.1)
    waits, computes = "the fetch is I/O-bound", "the fetch is CPU-bound"
    start = Throughput(max_startup_s=0.5)
    return [
        Truth("sleeps, w0", Sleeps, W0, slow, "slow", "dataset", waits),
        Truth("sleeps, fork-w2", Sleeps, FORK, slow, "slow", "dataset", waits),
        Truth("sleeps, stalls", Sleeps, FORK, busy, "stalls", "dataset", waits),
        Truth("computes, w0", Burns, W0, slow, "slow", "dataset", computes),
        Truth("computes, fork-w2", Burns, FORK, slow, "slow", "dataset", computes),
        Truth("computes, stalls", Burns, FORK, busy, "stalls", "dataset", computes),
        Truth("objects, fork-w2", Objects, FORK, Throughput(), "slow-transfer", "batch"),
        Truth("import, spawn-w2", imported, SPAWN, start, "slow-start", "slowly_imported"),
    ]


def findings_of(truth: Truth) -> tuple[Finding, ...]:
    """What is said of a loader by an observer of its own."""
    observer = Observer(timeout_s=60)
    try:
        kwargs = {"batch_size": 4, "collate_fn": as_list}
        pipeline = Pipeline(truth.name, make_dataset=truth.make, loader_kwargs=kwargs)
        question = Question(truth.config, (W0, truth.config))
        return judge(pipeline, question, [truth.asked], observer, timed=False).findings
    finally:
        observer.close()


def main() -> None:
    """Print for each loader how often its cause was told right, of how many runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50, help="how often each loader is judged")
    runs = parser.parse_args().runs
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "slowly_imported.py").write_text(SLOW_IMPORT, encoding="utf-8")
        sys.path.insert(0, folder)
        for truth in truths(importlib.import_module("slowly_imported").Imported):
            right = 0
            for _ in range(runs):
                findings = findings_of(truth)
                right += truth.told(findings)
                if not truth.told(findings):
                    print([f"{f.code} {f.culprit}: {f.message}" for f in findings], flush=True)
            wrong += runs - right
            print(f"{truth.name:20} {right:3} / {runs}", flush=True)
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
