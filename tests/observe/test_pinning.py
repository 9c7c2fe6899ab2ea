"""What pinning leaves as it is: told by the path of the object and of its first tensor."""

from __future__ import annotations

import collections
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data._utils.pin_memory import pin_memory

from pytest_dataloader.observe.pinning import unpinnable

X = torch.zeros(2)


class Plain:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class Slotted:
    __slots__ = ("unset", "x")

    def __init__(self) -> None:
        self.x = X


class Pins(Plain):
    def pin_memory(self) -> Pins:
        return self


class Pair(NamedTuple):
    x: Any
    note: Any


@pytest.mark.parametrize(
    ("batch", "found"),
    [
        (Plain(x=X), ("batch", "Plain", "batch.x")),
        (Slotted(), ("batch", "Slotted", "batch.x")),
        ([X, Plain(parts={"a": [1, X]})], ("batch[1]", "Plain", "batch[1].parts['a'][1]")),
        ({"x": Plain(x=X)}, ("batch['x']", "Plain", "batch['x'].x")),
        (Pair(X, Plain(x=X)), ("batch.note", "Plain", "batch.note.x")),
    ],
)
def test_an_object_that_hides_a_tensor(batch: Any, found: tuple[str, str, str]) -> None:
    assert list(unpinnable(batch)) == [found]


@pytest.mark.parametrize(
    "batch",
    [
        X,
        [X, {"x": (X, "name", 3, None)}],
        Pair(X, "name"),
        collections.UserDict(x=X),
        Pins(x=X),
        Plain(name="no tensor", size=3),
        torch.nn.utils.rnn.pack_sequence([X]),
    ],
)
def test_what_is_pinned_or_holds_no_tensor(batch: Any) -> None:
    assert list(unpinnable(batch)) == []


def test_an_object_that_holds_itself_is_looked_at_once() -> None:
    round_and_round = Plain()
    round_and_round.me = round_and_round
    assert list(unpinnable(round_and_round)) == []


def test_torch_passes_on_what_is_told() -> None:
    """The rule is torch's own; pinning itself needs a GPU, but not for what it leaves."""
    hidden = Plain(x=X)
    assert pin_memory(hidden) is hidden
