"""Resuming with real libraries: torchdata's loader, alone and over Hugging Face's streams."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from pytest_dataloader.checks.asked import Resumable
from pytest_dataloader.checks.evidence import Question, shown_path
from pytest_dataloader.judge import judge
from pytest_dataloader.matrix import LoaderConfig
from pytest_dataloader.observe.observer import Observer
from pytest_dataloader.pipeline import Pipeline

pytest.importorskip("torchdata")
from torchdata.stateful_dataloader import StatefulDataLoader

W0 = LoaderConfig(None, 0)
METHODS = ("fork", "spawn", "forkserver") if sys.platform == "linux" else ("spawn",)
CONFIGS = [W0, *(LoaderConfig(method, 2) for method in METHODS)]
pytestmark = pytest.mark.timeout(600)


class Rows(Dataset[Any]):
    def __init__(self, augment: bool = False) -> None:
        self.augment = augment

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([float(index), random.random() if self.augment else 0.0])


class Stream(IterableDataset[Any]):
    """Each worker's share, from a position that it keeps; ``forget`` leaves it out of the state."""

    def __init__(self, forget: bool = False) -> None:
        self.forget = forget
        self.position = 0

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        start, step = (info.id, info.num_workers) if info else (0, 1)
        for number in itertools.islice(range(start, 24, step), self.position, None):
            self.position += 1
            yield torch.tensor(number)
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        return {} if self.forget else {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state.get("position", 0)


class BeginsAnew(Stream):
    """Has its position in its state, and does not begin from it."""

    def __iter__(self) -> Iterator[Any]:
        self.position = 0
        yield from super().__iter__()


class ShuffledAsItComes(Stream):
    """Draws its order from a generator whose state it does not save."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = random.Random(3)

    def __iter__(self) -> Iterator[Any]:
        for sample in super().__iter__():
            yield sample + self.rng.randrange(1000)


def stateful(dataset: Any, num_workers: int, **more: Any) -> Any:
    return StatefulDataLoader(dataset, batch_size=4, num_workers=num_workers, **more)


def rows(num_workers: int) -> Any:
    return stateful(Rows(), num_workers)


def shuffled_rows(num_workers: int) -> Any:
    return stateful(Rows(), num_workers, shuffle=True)


def persistent_rows(num_workers: int) -> Any:
    return stateful(Rows(), num_workers, shuffle=True, persistent_workers=num_workers > 0)


def stream(num_workers: int) -> Any:
    return stateful(Stream(), num_workers)


def hugging_face(num_workers: int) -> Any:
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_dict({"n": list(range(24))})
    return stateful(made.to_iterable_dataset(num_shards=4), num_workers)


def hugging_face_generator(num_workers: int) -> Any:
    datasets = pytest.importorskip("datasets")
    shards = {"shards": [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]}
    return stateful(
        datasets.IterableDataset.from_generator(numbers, gen_kwargs=shards), num_workers
    )


def numbers(shards: list[list[int]]) -> Iterator[dict[str, int]]:
    for shard in shards:
        for number in shard:
            yield {"n": number}


def augmented_rows(num_workers: int) -> Any:
    return stateful(Rows(augment=True), num_workers)


def forgetful(num_workers: int) -> Any:
    return stateful(Stream(forget=True), num_workers)


def begins_anew(num_workers: int) -> Any:
    return stateful(BeginsAnew(), num_workers)


def shuffled_as_it_comes(num_workers: int) -> Any:
    return stateful(ShuffledAsItComes(), num_workers)


@pytest.fixture(scope="module")
def observer() -> Iterator[Observer]:
    made = Observer(timeout_s=120)
    yield made
    made.close()


def told(observer: Observer, make: Any, config: LoaderConfig) -> list[tuple[str, str]]:
    question = Question(config, (W0, config))
    verdict = judge(
        Pipeline(make.__name__, make_loader=make), question, (Resumable(),), observer, timed=False
    )
    assert verdict.not_judged == ()
    return [(f.severity, f.culprit) for f in verdict.findings]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.id)
@pytest.mark.parametrize(
    "make",
    [rows, shuffled_rows, persistent_rows, stream],
)
def test_a_sound_pipeline_is_clean(observer: Observer, make: Any, config: LoaderConfig) -> None:
    assert told(observer, make, config) == []


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.id)
@pytest.mark.parametrize("make", [hugging_face, hugging_face_generator])
def test_a_stream_of_hugging_face(observer: Observer, make: Any, config: LoaderConfig) -> None:
    """It goes on once. datasets 5.2 loses the place when resumed again (its issue 8308)."""
    question = Question(config, (W0, config))
    pipeline = Pipeline(make.__name__, make_loader=make)
    facts = observer.observe(pipeline, question.resume())

    assert facts.ok
    assert facts.stateful is not None
    assert facts.stateful.loader
    once = [one for one in facts.resumed if len(one.interrupted) == 1]
    assert [one.differs_at for one in once] == [None] * 4
    again = {one.differs_at for one in facts.resumed if len(one.interrupted) == 2}
    assert again <= {None, 3, 4}


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.id)
def test_random_augmentation_is_information(observer: Observer, config: LoaderConfig) -> None:
    assert told(observer, augmented_rows, config) == [("info", "loader.state_dict")]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.id)
@pytest.mark.parametrize(
    ("make", "culprit"),
    [
        (forgetful, "dataset.position"),
        (begins_anew, BeginsAnew.__iter__),
        (shuffled_as_it_comes, "dataset.rng"),
    ],
)
def test_a_faulty_pipeline_is_told(
    observer: Observer, make: Any, culprit: Any, config: LoaderConfig
) -> None:
    if not isinstance(culprit, str):
        culprit = f"{shown_path(__file__)}:{culprit.__code__.co_firstlineno}"
    assert told(observer, make, config) == [("error", culprit)]
