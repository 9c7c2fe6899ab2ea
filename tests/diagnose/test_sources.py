"""Sources: what the code of a pipeline reads besides its data, and where."""

from __future__ import annotations

import functools
import importlib.util
import textwrap
from pathlib import Path
from typing import Any

import pytest

from pytest_dataloader.diagnose.sources import sources

HEAD = """\
import glob, os, random, secrets, time, uuid
from concurrent.futures import as_completed
from datetime import datetime
from multiprocessing.pool import ThreadPool
from pathlib import Path
import numpy as np
import torch
SYSTEM = random.SystemRandom()
"""


@pytest.fixture
def load(tmp_path: Path) -> Any:
    """Make a module of a body, below the imports that all of them share."""

    def make(body: str) -> Any:
        path = tmp_path / "reading.py"
        path.write_text(HEAD + textwrap.dedent(body), encoding="utf-8")
        spec = importlib.util.spec_from_file_location("reading", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return make


def found(root: Any, name: str = "dataset") -> list[tuple[str, str, str, str]]:
    return [(s.kind, s.call, s.stage, s.seed) for s in sources({name: root})]


def of_expression(load: Any, expression: str) -> list[tuple[str, str, str, str]]:
    body = f"""
    class Numbers:
        seed, epoch = 3, 0
        def __getitem__(self, index):
            other = len(str(index)) + 1
            return {expression}
    """
    return found(load(body).Numbers())


@pytest.mark.parametrize(
    ("expression", "kind", "call"),
    [
        ("time.time_ns()", "clock", "time.time_ns"),
        ("datetime.now()", "clock", "datetime.datetime.now"),
        ("os.urandom(4)", "entropy", "os.urandom"),
        ("uuid.uuid4()", "entropy", "uuid.uuid4"),
        ("secrets.token_hex()", "entropy", "secrets.token_hex"),
        ("random.SystemRandom()", "entropy", "random.SystemRandom"),
        ("np.random.default_rng()", "entropy", "numpy.random.default_rng without a seed"),
        ("random.seed(None)", "entropy", "random.seed without a seed"),
        ("SYSTEM.random()", "entropy", "random.SystemRandom.random"),
        (
            "[f.result() for f in as_completed([])]",
            "completion",
            "the order of completion (as_completed)",
        ),
        (
            "list(ThreadPool(2).imap_unordered(int, '12'))",
            "completion",
            "the order of completion (imap_unordered)",
        ),
        ("hash(str(index))", "hash", "hash"),
        ("[word for word in {'a', 'b'}]", "hash", "the order of a set"),
        ("list(set('ab'))", "hash", "the order of a set"),
        ("os.listdir('.')", "listing", "os.listdir"),
        ("glob.glob('*')", "listing", "glob.glob"),
        ("[p for p in Path('.').iterdir()]", "listing", "iterdir()"),
    ],
)
def test_what_is_read(load: Any, expression: str, kind: str, call: str) -> None:
    assert of_expression(load, expression) == [(kind, call, "sample", "")]


@pytest.mark.parametrize(
    "expression",
    [
        "sorted(os.listdir('.'))",
        "sorted(f.result() for f in as_completed([]))",
        "list(ThreadPool(2).imap(int, '12'))",
        "sorted(set('ab'))",
        "len({'a', 'b'})",
        "random.random()",
        "torch.rand(1)",
        "self.seed",
    ],
)
def test_what_no_order_and_no_clock_reaches(load: Any, expression: str) -> None:
    assert of_expression(load, expression) == []


@pytest.mark.parametrize(
    ("expression", "call", "seed"),
    [
        ("random.seed(0)", "random.seed", "constant"),
        ("np.random.default_rng(self.seed)", "numpy.random.default_rng", "constant"),
        ("random.Random(7 + 1)", "random.Random", "constant"),
        ("torch.manual_seed(0)", "torch.manual_seed", "constant"),
        ("torch.Generator().manual_seed(1234)", "manual_seed", "constant"),
        ("torch.Generator().manual_seed(self.seed + index)", "manual_seed", "index"),
        ("random.Random(self.seed + self.epoch)", "random.Random", "other"),
        ("random.Random(torch.initial_seed())", "random.Random", "other"),
        ("random.Random(other)", "random.Random", "other"),
    ],
)
def test_where_a_seed_comes_from(load: Any, expression: str, call: str, seed: str) -> None:
    assert of_expression(load, expression) == [("seed", call, "sample", seed)]


def test_the_code_that_a_dataset_reaches(load: Any) -> None:
    module = load("""
    def helper():
        return time.time()

    class Transform:
        def __init__(self):
            self.rng = np.random.default_rng()
        def __call__(self, x):
            return self.change(x)
        def change(self, x):
            return x + hash("x")

    class Numbers:
        def __init__(self):
            random.seed(0)
            self.steps = [Transform()]
        def __getitem__(self, index):
            return helper()
        def unused(self):
            return uuid.uuid4()
    """)
    told = sources({"dataset": module.Numbers()})
    assert [(s.call, s.stage) for s in told] == [
        ("time.time", "sample"),
        ("hash", "sample"),
        ("random.seed", "build"),
        ("numpy.random.default_rng without a seed", "build"),
    ]
    assert told[0].where == f"{module.__file__}:{HEAD.count(chr(10)) + 3}"


def test_a_method_that_is_overridden_is_not_run(load: Any) -> None:
    module = load("""
    class First:
        def __iter__(self):
            random.seed(0)
    class Second(First):
        def __iter__(self):
            yield 1
    class Third(First):
        def __iter__(self):
            return super().__iter__()
    """)
    assert found(module.Second()) == []
    assert found(module.Third()) == [("seed", "random.seed", "sample", "constant")]


def test_functions_of_the_loader_and_its_sampler(load: Any) -> None:
    module = load("""
    def start(worker_id):
        np.random.seed(42)
    class Shuffled:
        def __iter__(self):
            generator = torch.Generator()
            generator.manual_seed(0)
    """)
    start = functools.partial(module.start)
    assert found(start, "loader.worker_init_fn") == [
        ("seed", "numpy.random.seed", "start", "constant")
    ]
    assert found(module.Shuffled(), "loader.sampler") == [
        ("seed", "manual_seed", "order", "constant")
    ]


def test_libraries_are_not_read() -> None:
    import torch

    assert found(torch.utils.data.TensorDataset(torch.zeros(1))) == []
