"""Where the time of a batch and of a start goes: loaders of a known truth, run for real."""

from __future__ import annotations

import multiprocessing
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import Dataset, IterableDataset

from pytest_dataloader.checks.bottleneck import COMPUTES, WAITS, bound, slowest
from pytest_dataloader.matrix import LoaderConfig
from pytest_dataloader.observe import making
from pytest_dataloader.observe.facts import TIMED, RunRequest
from pytest_dataloader.pipeline import Pipeline

W0 = LoaderConfig(None, 0)
FORK = LoaderConfig("fork", 2)
SPAWN = LoaderConfig("spawn", 2)
ITEM_S = 0.01

needs_fork = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="fork is not available here"
)
here_or_forked = pytest.mark.parametrize(
    "config", [W0, pytest.param(FORK, marks=needs_fork)], ids=lambda c: c.id
)


def sleep() -> None:
    time.sleep(ITEM_S)


def burn() -> None:
    end = time.process_time() + ITEM_S
    while time.process_time() < end:
        pass


def nothing() -> None: ...


class Doing(Dataset[Any]):
    def __init__(self, do: Any) -> None:
        self.do = do

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> int:
        self.do()
        return index


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        for index in range(12):
            sleep()
            yield index


class CollatesWith:
    def __init__(self, do: Any) -> None:
        self.do = do

    def __call__(self, samples: list[Any]) -> list[Any]:
        self.do()
        return samples


def observed(observer, name: str, config: LoaderConfig, dataset: Any, **kwargs: Any):
    pipeline = Pipeline(
        name, make_dataset=lambda: dataset, loader_kwargs=kwargs | {"batch_size": 2}
    )
    return observer.observe(pipeline, RunRequest(config))


@here_or_forked
def test_a_fetch_that_sleeps_waits(observer, config) -> None:
    run = observed(observer, "sleeps", config, Doing(sleep))
    assert run.making is not None
    assert run.making.batches == (10 if config.has_workers else 11)
    assert run.making.fetch.blocked_s >= 1.5 * ITEM_S
    assert (slowest(run.making)[0], bound(run.making.fetch)) == ("fetch", WAITS)


@here_or_forked
def test_a_fetch_that_burns_computes(observer, config) -> None:
    run = observed(observer, "burns", config, Doing(burn))
    assert run.making is not None
    assert run.making.fetch.cpu_s >= 2 * ITEM_S
    assert (slowest(run.making)[0], bound(run.making.fetch)) == ("fetch", COMPUTES)


def test_a_collate_function_that_burns(observer) -> None:
    run = observed(observer, "collates", W0, Doing(nothing), collate_fn=CollatesWith(burn))
    assert run.making is not None
    assert (slowest(run.making)[0], bound(run.making.collate)) == ("collate", COMPUTES)


def test_a_stream_that_sleeps(observer) -> None:
    run = observed(observer, "stream", W0, Stream())
    assert run.making is not None
    assert (slowest(run.making)[0], bound(run.making.fetch)) == ("fetch", WAITS)


def test_torch_s_fetchers_are_as_they_were(observer) -> None:
    from torch.utils.data._utils import fetch

    before = [vars(getattr(fetch, name))["fetch"] for name in making._FETCHERS]
    observed(observer, "restored", W0, Doing(nothing))
    assert [vars(getattr(fetch, name))["fetch"] for name in making._FETCHERS] == before
    assert making.fetched() is None


def test_the_parts_of_a_start_with_a_slow_import(observer, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "takes_its_time.py").write_text(
        "import multiprocessing, time\n"
        "if getattr(multiprocessing.current_process(), '_inheriting', False): time.sleep(0.7)\n"
        "class Numbers(list): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from takes_its_time import Numbers  # type: ignore[import-not-found]

    run = observed(observer, "slow start", replace(SPAWN, num_workers=1), Numbers(range(8)))
    sys.modules.pop("takes_its_time")

    assert run.startup is not None
    assert run.startup_s is not None
    assert run.startup.slowest is not None
    assert run.startup.slowest[0] == "takes_its_time"
    assert 0.7 <= run.startup.slowest[1] <= run.startup.imports_s
    assert run.startup.interpreter_s > 0
    assert 0 <= run.startup.arrival_s < run.startup_s
    parts = replace(run.startup, slowest=None)
    assert sum(v for v in vars(parts).values() if v is not None) <= run.startup_s + 0.01


def test_the_kind_of_a_dataset_arrives_as_it_was() -> None:
    assert making.kind(0, ()) == 0
    rebuild, given = making.kind(1, ("json", "no_such_module_anywhere")).__reduce__()
    assert (rebuild(*given), type(rebuild(*given))) == (1, int)
    assert {"interpreter_at", "imported_at"} <= making.arrival().keys()
    assert making.arrival()["slowest"][0] == "json"
    making._arrival.clear()


@needs_fork
def test_a_loop_that_is_busy_waits_for_a_slow_loader(observer) -> None:
    pipeline = Pipeline(
        "stalls", make_dataset=lambda: Doing(sleep), loader_kwargs={"batch_size": 8}
    )
    request = RunRequest(FORK, purpose=TIMED, seconds=1.0, step_ms=5)
    run = observer.observe(pipeline, request)
    # Two workers make a batch in 80 ms, one every 40 ms, and a step takes 5 ms.
    assert run.stall is not None
    assert 0.7 < run.stall.low <= run.stall.share <= run.stall.high <= 1
    assert run.rate is None
