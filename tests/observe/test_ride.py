"""What rides along: identities of samples, and the states of generators."""

from __future__ import annotations

import pickle
import random
from typing import Any

import numpy as np
import pytest
import torch

from pytest_dataloader.checks.evidence import GLOBAL_STATES
from pytest_dataloader.observe.digest import digest
from pytest_dataloader.observe.ride import Insight


class Holder:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Opaque:
    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("has no content")


def insight(dataset: Any = None, key: Any = None, **riders: Any) -> Insight:
    made = Insight(key, riders)
    made.dataset = dataset
    return made


def own_states(made: Insight) -> dict[str, str]:
    """The states of the generators that are not global."""
    return {path: s for path, s in made.states().items() if path not in GLOBAL_STATES}


GENERATORS = {
    "Random": (lambda: random.Random(0), lambda g: g.random()),
    "numpy Generator": (lambda: np.random.default_rng(0), lambda g: g.random()),
    "RandomState": (lambda: np.random.RandomState(0), lambda g: g.rand()),
    "torch Generator": (
        lambda: torch.Generator().manual_seed(0),
        lambda g: torch.rand(1, generator=g),
    ),
}
every_generator = pytest.mark.parametrize(
    ("make", "draw"), GENERATORS.values(), ids=list(GENERATORS)
)


# Generators --------------------------------------------------------------------------------------


@every_generator
def test_a_generator_s_state_changes_when_it_is_drawn_from(make, draw) -> None:
    generator = make()
    made = insight(Holder(noise=generator))
    before = own_states(made)
    assert list(before) == ["dataset.noise"]
    assert own_states(made) == before
    draw(generator)
    assert own_states(made) != before


@every_generator
def test_generators_of_one_state_have_one_digest(make, draw) -> None:
    assert own_states(insight(Holder(noise=make()))) == own_states(insight(Holder(noise=make())))


def test_generators_are_found_by_their_paths() -> None:
    steps = [Holder(p=0.5), Holder(rng=random.Random(0))]
    held = random.Random(1)

    def collate(samples: Any) -> Any:
        return held.random(), samples

    made = insight(
        Holder(transform=Holder(steps=steps)), **{"loader.collate_fn": collate, "loader.init": len}
    )
    assert list(own_states(made)) == [
        "dataset.transform.steps[1].rng",
        "loader.collate_fn.__closure__['held']",
    ]


def test_what_has_no_state_is_no_generator() -> None:
    assert own_states(insight(Holder(noise=random.SystemRandom(), seed=0))) == {}


@pytest.mark.parametrize(
    ("path", "draw"),
    [
        ("random", random.random),
        ("numpy.random", np.random.rand),
        ("torch", lambda: torch.rand(1)),
    ],
)
def test_global_generators(path, draw) -> None:
    made = insight(Holder())
    before = made.states()
    assert tuple(before) == GLOBAL_STATES
    draw()
    after = made.states()
    assert [name for name in GLOBAL_STATES if before[name] != after[name]] == [path]


def test_a_look_draws_no_number() -> None:
    generator = random.Random(0)
    made = insight(Holder(noise=generator))
    made.states()
    made.of_batch([1], batched=True)
    assert generator.random() == random.Random(0).random()


# Samples -----------------------------------------------------------------------------------------


def test_each_sample_of_a_batch_has_its_identity() -> None:
    samples = [torch.tensor([1.0]), torch.tensor([2.0]), torch.tensor([1.0])]
    ids = insight().of_batch(samples, batched=True)["ids"]
    assert ids[0] == ids[2] != ids[1]
    assert ids[0] == digest(torch.tensor([1.0])).hex[:16]


@pytest.mark.parametrize(
    ("samples", "batched", "count"),
    [([1, 2], True, 2), ((1, 2), True, 2), ([1, 2], False, 1), ({"x": 1}, True, 1)],
)
def test_how_many_samples_a_batch_has(samples, batched, count) -> None:
    assert len(insight().of_batch(samples, batched=batched)["ids"]) == count


def test_a_sample_without_content_has_no_identity() -> None:
    assert insight().of_batch([1, Opaque()], batched=True)["ids"][1] is None


def test_the_user_s_key_is_the_identity() -> None:
    ids = insight(key=lambda s: s["name"]).of_batch(
        [{"name": "a", "x": 1}, {"name": "a", "x": 2}, {"name": "b", "x": 1}], batched=True
    )["ids"]
    assert ids[0] == ids[1] != ids[2]


def test_states_are_looked_at_ever_more_seldom() -> None:
    made = insight(Holder(noise=random.Random(0)))
    looked = [n for n in range(1, 20) if "states" in made.of_batch([n], batched=True)]
    assert looked == [1, 2, 4, 8, 16]


# The way to the worker ---------------------------------------------------------------------------


def test_it_travels_without_the_dataset_and_begins_anew() -> None:
    made = insight(Holder(noise=random.Random(0)), key=len, **{"loader.collate_fn": digest})
    made.of_batch(["a"], batched=True)
    came = pickle.loads(pickle.dumps(made))
    assert (came.key, came.riders, came.dataset) == (len, {"loader.collate_fn": digest}, None)
    assert "states" in came.of_batch(["a"], batched=True)
