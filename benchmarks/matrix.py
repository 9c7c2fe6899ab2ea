"""What a matrix costs: the same checks by hand, with the plugin, and the floor of the starts.

The checks are those of an engineer's own test file: the dataset pickles, two seeds give the same
batches twice, the training script ends under each start method, and there are enough batches a
second; over {fork, spawn, forkserver} x {0, 2} workers on ``examples/stdlib_corpus.py``.
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

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"

COMMON = """\
import pickle
import random
import subprocess
import sys
import time

import pytest
import torch
from stdlib_corpus import StdlibCorpus, collate_documents
from torch.utils.data import DataLoader

SCRIPT = EXAMPLES + "/train_guarded.py"
METHODS = ["fork", "spawn", "forkserver"]


def loader(method, workers):
    context = method if workers else None
    return DataLoader(
        StdlibCorpus(limit=64), batch_size=8, shuffle=True, collate_fn=collate_documents,
        num_workers=workers, multiprocessing_context=context,
    )
"""

BY_HAND = """

@pytest.fixture(params=[("fork", 0), ("fork", 2), ("spawn", 2), ("forkserver", 2)], ids=str)
def config(request):
    return request.param


def test_pickles(config):
    pickle.loads(pickle.dumps(StdlibCorpus(limit=64)))
    pickle.loads(pickle.dumps(collate_documents))


@pytest.mark.parametrize("seed", [0, 1])
def test_deterministic(config, seed):
    runs = []
    for _ in range(2):
        random.seed(seed)
        torch.manual_seed(seed)
        runs.append([batch.tokens for batch in loader(*config)])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_throughput(config):
    loaded = loader(*config)
    batches = iter(loaded)
    for _ in range(4):
        next(batches)
    began = time.perf_counter()
    rest = sum(1 for _ in batches)
    assert rest / (time.perf_counter() - began) > 1


@pytest.mark.parametrize("method", METHODS)
def test_script_is_guarded(method):
    code = (
        "import multiprocessing, runpy, sys; multiprocessing.set_start_method(sys.argv.pop(1)); "
        "sys.argv = sys.argv[1:]; sys.path.insert(0, EXAMPLES); "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    ).replace("EXAMPLES", repr(EXAMPLES))
    command = [sys.executable, "-c", code, method, SCRIPT, "--workers", "2", "--steps", "3"]
    subprocess.run(command, check=True, timeout=300)
"""

WITH_US = """

@pytest.fixture
def dl_make_dataset():
    return make


def make():
    return StdlibCorpus(limit=64)


@pytest.fixture
def dl_loader_kwargs():
    return {"batch_size": 8, "shuffle": True, "collate_fn": collate_documents}


@pytest.mark.dl_picklable
@pytest.mark.dl_deterministic(seeds=[0, 1])
@pytest.mark.dl_throughput(min_batches_per_s=1)
def test_pipeline():
    pass


@pytest.mark.dl_no_recursive_spawn(script=SCRIPT, args=["--workers", "2", "--steps", "3"])
def test_script():
    pass
"""

FLOOR = """

@pytest.mark.parametrize(
    "config", [("fork", 0), ("fork", 2), ("spawn", 2), ("forkserver", 2)], ids=str
)
def test_epoch(config):
    for batch in loader(*config):
        pass
"""

SUITES = {"by hand": BY_HAND, "with us": WITH_US, "floor": FLOOR}


def environment() -> dict[str, str]:
    """This process's environment, but bytecode is kept, as an installed package's is."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}


def seconds(folder: Path, name: str) -> float:
    """Seconds of wall time that one suite takes, in a pytest session of its own."""
    file = folder / f"test_{name.replace(' ', '_')}.py"
    head = f"import sys\nEXAMPLES = {str(EXAMPLES)!r}\nsys.path.insert(0, EXAMPLES)\n"
    file.write_text(head + COMMON + SUITES[name], encoding="utf-8")
    options = ["--dl-start-methods=all", "--dl-num-workers=0,2"] if name == "with us" else []
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", str(file), *options]
    began = time.perf_counter()
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )
    took = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    return took


def main() -> None:
    """Print the seconds of each suite and the medians of their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5, help="how often each suite is run")
    pairs = parser.parse_args().pairs
    took: dict[str, list[float]] = {name: [] for name in SUITES}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(pairs):
            for name in SUITES:
                took[name].append(seconds(Path(folder), name))
                print(f"{name:8} {took[name][-1]:6.1f} s", flush=True)
    hand, ours, floor = (took[name] for name in SUITES)
    gained = [a / b for a, b in zip(hand, ours, strict=True)]
    over = [a / b for a, b in zip(ours, floor, strict=True)]
    print(f"by hand / with us: {statistics.median(gained):.2f} (goal: at least 4)")
    print(f"with us / floor:   {statistics.median(over):.2f} (goal: at most 1.3)")


if __name__ == "__main__":
    main()
