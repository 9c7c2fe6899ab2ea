"""Ranks: a run believes to be one of several, and nothing of it stays."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import distributed
from torch.utils.data import BatchSampler, DataLoader
from torch.utils.data.distributed import DistributedSampler

from pytest_dataloader.observe.errors import from_exception
from pytest_dataloader.observe.ranks import NoRanks, as_rank, lacks_a_job, place

NUMBERS = torch.utils.data.TensorDataset(torch.arange(8))


def told() -> tuple[bool, dict[str, str | None]]:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")
    return distributed.is_initialized(), {name: os.environ.get(name) for name in names}


def test_torch_and_the_environment_answer_as_in_a_group() -> None:
    before = told()
    with as_rank(2, 4):
        assert (distributed.get_rank(), distributed.get_world_size()) == (2, 4)
        assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == ("2", "4")
        assert list(DistributedSampler(NUMBERS, shuffle=False)) == [2, 6]
        distributed.barrier()
    assert told() == before


def test_nothing_stays_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "7")
    before = told()
    with pytest.raises(KeyError), as_rank(0, 2):
        raise KeyError
    assert told() == before


def test_without_a_rank_there_is_no_group() -> None:
    before = told()
    with as_rank(None, None):
        assert told() == before


def test_a_group_that_exists_is_left_alone() -> None:
    with as_rank(0, 2):
        with pytest.raises(NoRanks, match="has a process group already") as caught, as_rank(1, 4):
            pass
        assert str(caught.value) == (
            "torch.distributed has a process group already, in the test process"
        )
        assert distributed.get_world_size() == 2


@pytest.mark.parametrize(
    ("ask", "lacks"),
    [
        (lambda: DistributedSampler(NUMBERS), True),
        (distributed.get_world_size, True),
        (lambda: os.environ["LOCAL_RANK"], True),
        (lambda: os.environ["DATA_ROOT_OF_OURS"], False),
        (lambda: {}["rank"], False),
    ],
)
def test_what_only_a_process_of_a_job_has(monkeypatch, ask, lacks) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    told = None
    try:
        ask()
    except Exception as error:
        told = from_exception(error, "build")
    assert lacks_a_job(told) is lacks


# The rank's own sampler --------------------------------------------------------------------------


def pipeline(loader: Any = None, loader_kwargs: Any = None) -> Any:
    return SimpleNamespace(make_loader=None, loader=loader, loader_kwargs=loader_kwargs or {})


def test_a_sampler_that_is_made_once_is_given_its_rank() -> None:
    sampler = DistributedSampler(NUMBERS, 4, 0, shuffle=False)
    loader = DataLoader(NUMBERS, batch_size=2, sampler=sampler)
    assert place(loader, pipeline(loader), 3) is None
    assert list(loader.batch_sampler) == [[3, 7]]
    assert sampler.rank == 0


def test_samplers_that_are_made_anew_are_left_alone() -> None:
    sampler = DistributedSampler(NUMBERS, 4, 0, shuffle=False)
    loader = DataLoader(NUMBERS, sampler=sampler)
    assert place(loader, pipeline(loader_kwargs=dict), 3) is None
    assert loader.sampler is sampler


def test_torch_s_other_samplers_are_the_same_for_all_ranks() -> None:
    loader = DataLoader(NUMBERS, batch_size=2, shuffle=True)
    assert place(loader, pipeline(loader), 1) is None


class Own(BatchSampler):
    pass


def test_the_user_s_own_sampler_must_be_made_anew() -> None:
    loader = DataLoader(NUMBERS, batch_sampler=Own(range(8), 2, drop_last=False))
    assert place(loader, pipeline(loader), 1) == (
        "the loader's batch_sampler is made once for all ranks; give dl_loader_kwargs as a "
        "function, so that each rank makes its own"
    )
