"""Facts written by hand: short ways to build the frozen values that checks look at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from pytest_dataloader.checks.evidence import Evidence, Question
from pytest_dataloader.checks.families import FAMILIES
from pytest_dataloader.checks.finding import Finding, NotJudged
from pytest_dataloader.matrix import LoaderConfig
from pytest_dataloader.observe.facts import (
    IN_PROCESS,
    OK,
    TRUE_START,
    BatchFacts,
    DatasetFacts,
    DifferenceFacts,
    EpochFacts,
    ErrorFacts,
    LeafFacts,
    RandomnessFacts,
    RunFacts,
    RunRequest,
)

W0 = LoaderConfig(None, 0)
FORK = LoaderConfig("fork", 2)
SPAWN = LoaderConfig("spawn", 2)
MATRIX = (W0, FORK, SPAWN)


def question(
    config: LoaderConfig = SPAWN,
    *,
    seeds: tuple[int, ...] = (0, 1),
    matrix: tuple[LoaderConfig, ...] = MATRIX,
) -> Question:
    return Question(config, matrix, seeds)


def run(config: LoaderConfig, seed: int = 0, repeat: int = 0, **facts: Any) -> RunFacts:
    """A run that came to its end, unless `facts` says otherwise."""
    start = TRUE_START if config.has_workers else IN_PROCESS
    request = RunRequest(config, seed, repeat)
    return RunFacts(**{"request": request, "start": start, "outcome": OK, **facts})


def batch(*values: float, leaves: bool = True) -> BatchFacts:
    """A batch of one tensor at ``batch['x']``."""
    leaf = LeafFacts("batch['x']", "tensor", digest=repr(values), preview=repr(list(values)))
    return BatchFacts(digest=repr(values), leaves=(leaf,) if leaves else ())


def epoch(*batches: BatchFacts, not_compared: tuple[str, ...] = (), number: int = 0) -> EpochFacts:
    digests = [one.digest for one in batches]
    return EpochFacts(
        epoch=number,
        batches=len(batches),
        samples=len(batches),
        digest="|".join(digests),
        batch_multiset="|".join(sorted(digests)),
        batch_facts=batches,
        arrivals_s=(),
        waits_s=(),
        not_compared=not_compared,
    )


def sampled(*samples: float, number: int = 0, **facts: Any) -> EpochFacts:
    """An epoch of batches of one sample, whose identities are their values."""
    ids = tuple(map(repr, samples))
    return replace(epoch(*map(batch, samples), number=number), sample_ids=ids, **facts)


def epochs_run(config: LoaderConfig, *epochs: Sequence[float], **facts: Any) -> RunFacts:
    """The run of several epochs, by the samples of each."""
    made = tuple(sampled(*samples, number=number) for number, samples in enumerate(epochs))
    return run(config, **{"request": question(config).epochs(), "epochs": made, **facts})


def dataset(*, iterable: bool = True, **facts: Any) -> DatasetFacts:
    """What a dataset of two methods says of itself."""
    described = {
        "kind": "Words",
        "length": None,
        "iterable": iterable,
        "persistent": False,
        "drop_last": False,
        "sampler": "torch.utils.data.sampler.SequentialSampler",
    }
    return DatasetFacts(**{**described, **facts})


def drawn(
    path: str, *states: str, epoch: int = 0, pid: int = 1, first: str | None = "s0"
) -> RandomnessFacts:
    """A generator that has these states after the batches of a worker."""
    return RandomnessFacts(path, epoch, pid, first, states)


def error(
    stage: str, type_: str, message: str, where: str | None = None, **more: Any
) -> ErrorFacts:
    """An error; `where` is ``file:line``."""
    file, _, line = where.rpartition(":") if where else (None, "", None)
    return ErrorFacts(
        **{
            "stage": stage,
            "type": type_,
            "message": message,
            "traceback": "",
            "file": file,
            "line": int(line) if line else None,
            **more,
        }
    )


def other_in_worker(
    path: str, parent: str, child: str, *, rank: int = 0, lost: bool = False
) -> DifferenceFacts:
    """Something that the worker holds otherwise than the test process."""
    return DifferenceFacts(path, parent, child, rank, lost)


def judged(asked: Any, about: Question, runs: Sequence[RunFacts]) -> list[Finding | NotJudged]:
    """All that the checks of a question say of these runs."""
    return list(_said(asked, Evidence(about, {facts.request: facts for facts in runs})))


def _said(asked: Any, evidence: Evidence) -> Iterator[Finding | NotJudged]:
    for check in FAMILIES[type(asked)].checks:
        yield from check(evidence, asked)
