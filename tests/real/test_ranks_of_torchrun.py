"""The simulated ranks, confirmed by a real job: torchrun, two processes, gloo."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pytest_dataloader.checks.asked import Complete
from pytest_dataloader.checks.distributed import needs
from pytest_dataloader.checks.evidence import Question
from pytest_dataloader.judge import judge
from pytest_dataloader.matrix import LoaderConfig
from pytest_dataloader.observe.observer import Observer
from pytest_dataloader.pipeline import Pipeline

PIPELINES = """\
import os
import torch
from torch import distributed
from torch.utils.data import Dataset, IterableDataset, get_worker_info
from torch.utils.data.distributed import DistributedSampler


def world():
    if not distributed.is_initialized():
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


class Table(Dataset):
    def __len__(self):
        return 9

    def __getitem__(self, index):
        return index


class Stream(IterableDataset):
    by = staticmethod(world)

    def __iter__(self):
        rank, ranks = self.by()
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        yield from range(rank * workers + worker, 16, ranks * workers)


class EnvironmentStream(Stream):
    @staticmethod
    def by():
        return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def distributed_sampler():
    rank, ranks = world()
    return {"sampler": DistributedSampler(Table(), ranks, rank), "batch_size": 2}


PIPELINES = {
    "sampler": (Table, distributed_sampler),
    "no sampler": (Table, lambda: {"batch_size": 2}),
    "stream": (Stream, lambda: {"batch_size": 2}),
    "stream by environment": (EnvironmentStream, lambda: {"batch_size": 2}),
}
"""

JOB = """\
import json, sys
import torch
from torch import distributed
from torch.utils.data import DataLoader
from pipelines import PIPELINES

if __name__ == "__main__":
    distributed.init_process_group("gloo")
    told = {}
    for name, (make, kwargs) in PIPELINES.items():
        for method in ("fork", "spawn"):
            loader = DataLoader(
                make(), num_workers=2, multiprocessing_context=method, **kwargs()
            )
            told[f"{name} {method}"] = sorted(i for batch in loader for i in batch.tolist())
    with open(f"{sys.argv[1]}/rank{distributed.get_rank()}.json", "w") as file:
        json.dump(told, file)
    distributed.destroy_process_group()
"""

FAULTY = {"no sampler fork", "no sampler spawn", "stream spawn"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    (folder / "pipelines.py").write_text(PIPELINES, encoding="utf-8")
    (folder / "job.py").write_text(JOB, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def real(folder: Path) -> list[dict[str, list[int]]]:
    """What each rank of a real job gives, by pipeline and start method."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, "job.py", str(folder)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    files = [folder / f"rank{rank}.json" for rank in (0, 1)]
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


@pytest.fixture(scope="module")
def simulated(folder: Path) -> dict[str, tuple[list[int], set[str]]]:
    """How many samples each simulated rank gives, and the codes of the errors."""
    sys.path.insert(0, str(folder))
    observer = Observer()
    try:
        from pipelines import PIPELINES as made

        return {
            f"{name} {method}": _told(observer, name, method, *made[name])
            for name in made
            for method in ("fork", "spawn")
        }
    finally:
        observer.close()
        sys.path.remove(str(folder))


def _told(
    observer: Observer, name: str, method: str, make: Any, kwargs: Any
) -> tuple[list[int], set[str]]:
    pipeline = Pipeline(name, make_dataset=make, loader_kwargs=kwargs)
    config, asked = LoaderConfig(method, 2), Complete(world_size=2)
    question = Question(config, (LoaderConfig(None, 0), config))
    verdict = judge(pipeline, question, [asked], observer, timed=False)
    runs = [observer.observe(pipeline, request) for request in needs(asked, question)]
    samples = [run.epochs[0].samples or 0 for run in runs]
    return samples, {f.code for f in verdict.findings if f.severity == "error"}


def test_ranks_give_as_many_samples_as_in_a_real_job(real: Any, simulated: Any) -> None:
    ours = {name: samples for name, (samples, _codes) in simulated.items()}
    assert ours == {name: [len(rank[name]) for rank in real] for name in ours}


def test_the_verdict_is_what_the_real_job_shows(real: Any, simulated: Any) -> None:
    faulty = {name for name, (_samples, codes) in simulated.items() if "rank-overlap" in codes}
    shared = {
        name
        for name in real[0]
        if any(count > 1 for index, count in Counter(real[0][name] + real[1][name]).items())
        and name.partition(" ")[0] != "sampler"  # which repeats one sample to even the ranks out
    }
    assert faulty == shared == FAULTY
