"""The observer: runs each thing once, starts truly the first time, and leaves nothing."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from pytest_dataloader.checks.asked import Complete
from pytest_dataloader.checks.evidence import Question
from pytest_dataloader.judge import judge
from pytest_dataloader.matrix import LoaderConfig
from pytest_dataloader.observe.facts import (
    HUNG,
    IN_PROCESS,
    OK,
    TIMED,
    TRUE_START,
    WARM_START,
    RunRequest,
)
from pytest_dataloader.observe.observer import Observer
from pytest_dataloader.pipeline import Pipeline

W0 = LoaderConfig(None, 0)
FORK = LoaderConfig("fork", 2)
SPAWN = LoaderConfig("spawn", 2)

needs_fork = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="fork is not available here"
)


class Numbers(Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


class Broken(Numbers):
    def __getitem__(self, index: int) -> int:
        raise ValueError("broken")


@pytest.fixture
def observer() -> Any:
    found = Observer(timeout_s=30)
    yield found
    found.close()


class Counting:
    """Makes datasets and counts them."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self) -> Numbers:
        self.made += 1
        return Numbers()


def test_what_was_run_is_not_run_again(observer) -> None:
    make = Counting()
    one, same = (Pipeline(f"p{n}", make_dataset=make, key="shared") for n in (1, 2))
    facts = observer.observe(one, RunRequest(W0))
    assert observer.observe(one, RunRequest(W0)) is facts
    assert observer.observe(same, RunRequest(W0)) is facts
    assert make.made == 1


@pytest.mark.parametrize(
    "request_", [RunRequest(W0, seed=1), RunRequest(W0, repeat=1), RunRequest(W0, epochs=2)]
)
def test_another_request_is_another_run(observer, request_) -> None:
    make = Counting()
    pipeline = Pipeline("p", make_dataset=make)
    observer.observe(pipeline, RunRequest(W0))
    assert observer.observe(pipeline, request_).request == request_
    assert make.made == 2


_managers: list[Any] = []


class Cached(Numbers):
    """With a cache in a manager's process, which the first one starts for all."""

    def __init__(self) -> None:
        if not _managers:
            _managers.append(multiprocessing.Manager())
        self.cache = _managers[0].dict()

    def __getitem__(self, index: int) -> int:
        return int(self.cache.setdefault(index, index))


@needs_fork
def test_a_process_that_the_user_s_code_starts_lives_as_long_as_the_observer() -> None:
    observer = Observer(timeout_s=30)
    try:
        pipeline = Pipeline("cached", make_dataset=Cached)
        for request in (RunRequest(W0), RunRequest(FORK), RunRequest(FORK, repeat=1)):
            facts = observer.observe(pipeline, request)
            assert facts.outcome == OK
            assert len(facts.workers) == (request.config.num_workers or 0)
            assert facts.close_s is not None
            assert facts.close_s < 3
        manager = _managers[0]._process
        assert manager.is_alive()
    finally:
        observer.close()
    assert not manager.is_alive()
    _managers.clear()


class Sleeps(Numbers):
    def __getitem__(self, index: int) -> int:
        time.sleep(3600)
        return index


def test_a_run_that_hangs_in_less_than_the_timeout_is_not_kept(observer) -> None:
    sleeps, numbers = (Pipeline(m.__name__, make_dataset=m) for m in (Sleeps, Numbers))
    facts = observer.observe(sleeps, RunRequest(W0), at_most_s=1)
    assert (facts.outcome, facts.reason) == (HUNG, "no batch for 1 s")
    observer.timeout_s = 2
    facts = observer.observe(sleeps, RunRequest(W0), at_most_s=8)
    assert (facts.outcome, facts.reason) == (HUNG, "no batch for 2 s")
    sound = observer.observe(numbers, RunRequest(W0), at_most_s=1)
    assert observer.observe(numbers, RunRequest(W0)) is sound


def test_another_pipeline_is_another_run(observer) -> None:
    make = Counting()
    for name in ("p", "q"):
        observer.observe(Pipeline(name, make_dataset=make), RunRequest(W0))
    assert make.made == 2


def test_a_run_has_a_duration_and_leaves_no_file(observer) -> None:
    facts = observer.observe(Pipeline("p", make_dataset=Numbers), RunRequest(W0))
    assert (facts.outcome, facts.start) == (OK, IN_PROCESS)
    assert 0 < facts.duration_s < 10
    assert list(observer.folder.glob("run-*")) == []


def test_progress_is_wiped_out_after_each_run() -> None:
    told: list[str] = []
    observer = Observer(timeout_s=30, progress=told.append)
    observer.observe(Pipeline("p", make_dataset=Numbers), RunRequest(W0))
    observer.close()
    assert told == [""]


def test_closing_removes_the_folder() -> None:
    observer = Observer()
    folder = Path(observer.folder)
    assert folder.is_dir()
    observer.close()
    assert not folder.exists()


def test_the_modules_that_workers_import_are_noted(observer) -> None:
    observer.observe(Pipeline("p", make_dataset=Numbers), RunRequest(W0))
    assert observer.modules == {"p": (__name__,)}


# Starts ------------------------------------------------------------------------------------------


def starts(observer: Observer, *requests: RunRequest) -> list[str]:
    return [observer.start_of("p", request)[1] for request in requests]


@needs_fork
def test_the_first_content_run_starts_truly_and_repeats_are_warm(observer) -> None:
    first, again, other = RunRequest(SPAWN), RunRequest(SPAWN, repeat=1), RunRequest(SPAWN, seed=1)
    assert starts(observer, first, again, other) == [TRUE_START, WARM_START, WARM_START]
    assert observer.start_of("q", first)[1] == TRUE_START


@needs_fork
def test_a_timed_pass_is_warm_and_is_no_first_start(observer) -> None:
    timed, content = RunRequest(SPAWN, purpose=TIMED), RunRequest(SPAWN)
    assert starts(observer, timed, content, content) == [WARM_START, TRUE_START, WARM_START]


@needs_fork
def test_a_fork_is_always_a_true_start(observer) -> None:
    requests = RunRequest(FORK), RunRequest(FORK, repeat=1)
    assert starts(observer, *requests) == [TRUE_START, TRUE_START]
    assert starts(observer, RunRequest(W0)) == [IN_PROCESS]


def test_without_warm_starts_every_start_is_true() -> None:
    observer = Observer(true_starts=True)
    try:
        assert starts(observer, RunRequest(SPAWN), RunRequest(SPAWN, repeat=1)) == [TRUE_START] * 2
    finally:
        observer.close()


def of_modules(observer: Observer, key: str, *modules: str) -> Pipeline:
    observer.modules[key] = modules
    return Pipeline(key, make_dataset=Numbers)


@needs_fork
def test_pipelines_of_the_same_modules_share_a_true_start(observer) -> None:
    one, two = (of_modules(observer, key, __name__) for key in "ab")
    other = of_modules(observer, "c", __name__, "of_its_own")
    first, broken = RunRequest(SPAWN), Pipeline("d", make_dataset=Broken)
    observer.modules["d"] = (__name__,)

    assert [observer.observe(p, first).start for p in (one, two)] == [TRUE_START, WARM_START]
    assert not observer.shares_a_start("c", first)
    assert observer.observe(other, first).start == TRUE_START
    assert observer.observe(two, RunRequest(SPAWN, seed=1)).start == WARM_START
    # what fails is told from a true start
    assert (observer.observe(broken, first).start, observer.observe(broken, first).ok) == (
        TRUE_START,
        False,
    )

    observer.start_truly("b", SPAWN)
    assert observer.observe(two, first).start == TRUE_START
    observer.start_truly("b", SPAWN)
    assert observer.start_of("b", first)[1] == WARM_START


def test_a_pipeline_whose_modules_are_not_known_shares_no_start(observer) -> None:
    observer.observe(of_modules(observer, "a"), RunRequest(SPAWN))
    assert not observer.shares_a_start("b", RunRequest(SPAWN))


# A job of one ------------------------------------------------------------------------------------


def shared_out(num_workers: int) -> Any:
    """Cannot be made outside of a distributed job."""
    numbers = TensorDataset(torch.arange(8))
    return DataLoader(numbers, sampler=DistributedSampler(numbers), num_workers=num_workers)


@pytest.mark.parametrize(
    ("asked", "codes"),
    [((Complete(world_size=2),), []), ((Complete(),), ["raises"])],
)
def test_a_pipeline_that_needs_a_job_is_judged_in_one_where_ranks_are_asked_for(
    observer: Observer, asked: Any, codes: list[str]
) -> None:
    pipeline = Pipeline("shared-out", make_loader=shared_out)
    verdict = judge(pipeline, Question(W0, (W0,)), asked, observer, timed=False)
    assert ([f.code for f in verdict.findings], verdict.not_judged) == (codes, ())
    assert not distributed.is_initialized()
