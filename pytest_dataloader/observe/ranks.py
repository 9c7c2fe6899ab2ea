"""Lets a run believe that it is one rank of several: torch's own stand-in for a process group."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterator, Mapping
from typing import Any

_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class NoRanks(RuntimeError):
    """Ranks cannot be simulated here; the message says why."""


@contextlib.contextmanager
def as_rank(rank: int | None, world_size: int | None) -> Iterator[None]:
    """Be rank ``rank`` of ``world_size``, as ``torchrun`` would make it; None: be no rank.

    ``torch.distributed`` answers as in a real group, in this process and in those forked from
    it; a spawned worker has no group, as in a real job, but the environment. Nothing is
    communicated. Raises `NoRanks` where a group exists already or torch has none.
    """
    if rank is None or world_size is None:
        yield
        return
    with _environment(rank, world_size), _group(rank, world_size):
        yield


def lacks_a_job(error: Any) -> bool:
    """Whether a build failed because it asks for what only a process of a job has: the process
    group, by torch's own words, or a variable of torchrun."""
    if error is None:
        return False
    missing = error.type == "KeyError" and error.message.strip("'\"") in _VARIABLES
    return missing or "process group has not been initialized" in error.message


@contextlib.contextmanager
def _environment(rank: int, world_size: int) -> Iterator[None]:
    """The variables that torchrun sets (PyTorch docs, torchrun, "Environment variables")."""
    values = (rank, rank, world_size, world_size, "127.0.0.1", "29500")
    told = dict(zip(_VARIABLES, values, strict=True))
    before = {name: os.environ.get(name) for name in told}
    os.environ.update({name: str(value) for name, value in told.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _group(rank: int, world_size: int) -> Iterator[None]:
    from torch import distributed

    if not distributed.is_available():
        raise NoRanks("this torch is built without torch.distributed")
    if distributed.is_initialized():
        raise NoRanks("torch.distributed has a process group already, in the test process")
    try:
        from torch.testing._internal.distributed.fake_pg import FakeStore
    except ImportError as error:
        raise NoRanks(f"this torch has no stand-in for a process group: {error}") from None
    distributed.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        yield
    finally:
        distributed.destroy_process_group()


def place(loader: Any, pipeline: Any, rank: int) -> str | None:
    """Give the rank its own sampler where the pipeline makes one for all; why that fails."""
    if _made_afresh(pipeline):
        return None
    for name in ("sampler", "batch_sampler"):
        sampler = getattr(loader, name)
        if hasattr(sampler, "rank") and hasattr(sampler, "num_replicas"):
            own = copy.copy(sampler)
            own.rank = rank
            loader.__dict__[name] = own
            if name == "sampler" and getattr(loader.batch_sampler, "sampler", None) is sampler:
                batches = copy.copy(loader.batch_sampler)
                batches.sampler = own
                loader.__dict__["batch_sampler"] = batches
            return None
        if sampler is not None and type(sampler).__module__.partition(".")[0] != "torch":
            return (
                f"the loader's {name} is made once for all ranks; give dl_loader_kwargs as a "
                "function, so that each rank makes its own"
            )
    return None


def _made_afresh(pipeline: Any) -> bool:
    """Whether each build of the pipeline makes its samplers anew."""
    if pipeline.make_loader is not None:
        return True
    kwargs = pipeline.loader_kwargs
    return pipeline.loader is None and not isinstance(kwargs, Mapping)
