"""What objects hold, by path: entries, cached results, bytes."""

from __future__ import annotations

import functools
import sys
from collections import OrderedDict, deque
from typing import Any

import numpy as np
import torch

from pytest_dataloader.diagnose.sizes import MANY_OBJECTS, many_objects, sizes


class Holder:
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


class Cached(Holder):
    @functools.lru_cache(maxsize=8)  # noqa: B019 - what it is about
    def load(self, index: int) -> int:
        return index


def test_containers_arrays_and_what_lies_in_them() -> None:
    fields = {
        "seen": [1, 2, 3],
        "parts": {"a": Holder(inner=deque([1, 2])), "b": OrderedDict(x=1)},
        "rows": torch.zeros(3, 2),
        "table": np.zeros(4),
        "name": "no container",
        "fixed": (1, 2),
    }
    assert sizes({"dataset": Holder(**fields)}) == {
        "dataset.seen": 3,
        "dataset.parts": 2,
        "dataset.parts['a'].inner": 2,
        "dataset.parts['b']": 1,
        "dataset.rows": 24,
        "dataset.table": 32,
    }


def test_a_cache_of_a_method_is_found_on_each_object_of_the_class() -> None:
    dataset = Cached()
    assert sizes({"dataset": dataset}) == {"dataset.load": 0}
    dataset.load(1)
    dataset.load(2)
    assert sizes({"dataset": dataset}) == {"dataset.load": 2}


SEEN_HERE = [1, 2]


def test_globals_of_modules() -> None:
    assert sizes({}, [__name__])[f"{__name__}.SEEN_HERE"] == 2


def test_an_object_that_holds_itself_and_one_that_refuses_to_be_asked() -> None:
    class Refuses:
        def __len__(self) -> int:
            raise AssertionError("no method of the user's is called")

        def __getattr__(self, name: str) -> Any:
            raise AssertionError(name)

    round_and_round = Holder(refuses=Refuses())
    round_and_round.me = round_and_round
    assert sizes({"dataset": round_and_round}) == {}


def test_containers_of_very_many_objects_with_their_weight() -> None:
    many = [(f"row{n}", n) for n in range(MANY_OBJECTS)]
    few = list(range(MANY_OBJECTS - 1))
    dataset = Holder(many=many, few=few, array=np.zeros(MANY_OBJECTS))
    ((path, kind, count, size),) = many_objects({"dataset": dataset})
    exact = sys.getsizeof(many) + sum(
        sys.getsizeof(row) + sum(map(sys.getsizeof, row)) for row in many
    )
    assert (path, kind, count) == ("dataset.many", "list", MANY_OBJECTS)
    assert abs(size - exact) < exact / 50
