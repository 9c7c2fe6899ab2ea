"""Trends of short series, against figures counted by hand."""

from __future__ import annotations

import itertools

import pytest

from pytest_dataloader.checks.trend import trend


@pytest.mark.parametrize(
    ("values", "slope", "p"),
    [
        ([1, 2, 3, 4, 5, 6], 1, 1 / 720),
        ([6, 5, 4, 3, 2, 1], -1, 1),
        ([1, 2, 3, 4, 6, 5], 1, 6 / 720),
        ([3, 3, 3, 3, 3, 3], 0, pytest.approx(0.5, abs=0.15)),
        ([0, 0, 0, 100, 0, 0], 0, pytest.approx(0.5, abs=0.15)),
    ],
)
def test_slope_and_chance(values: list[int], slope: float, p: float) -> None:
    found = trend(values)
    assert (found.slope, found.p) == (slope, p)


@pytest.mark.parametrize("count", [5, 6])
def test_the_chance_is_that_of_all_orders(count: int) -> None:
    values = list(range(count))
    values[0], values[1] = values[1], values[0]

    def score(order: tuple[int, ...]) -> int:
        return sum((b > a) - (b < a) for a, b in itertools.combinations(order, 2))

    orders = list(itertools.permutations(range(count)))
    as_high = sum(score(order) >= score(tuple(values)) for order in orders)
    assert trend(values).p == as_high / len(orders)


def test_what_fills_up_does_not_last() -> None:
    filling = [1 - 0.5**n for n in range(1, 7)]
    assert trend(filling).p < 0.01
    assert not trend(filling).lasting
    assert not trend([1, 5, 5, 5, 5, 5]).lasting


def test_what_rises_on_lasts() -> None:
    assert trend([10, 20, 31, 40, 49, 61]).lasting
    assert trend([1, 2, 4, 8, 16, 32]).lasting
