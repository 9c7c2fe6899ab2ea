"""Whether a short series of measurements rises, and by how much: exact and without assumptions."""

from __future__ import annotations

import functools
import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_AS_LATE_AS_EARLY = 0.75


@dataclass(frozen=True)
class Trend:
    """The Theil-Sen slope a step; ``p`` of the one-sided Mann-Kendall test against no rise;
    ``lasting`` says that it rises at the end about as fast as at the beginning."""

    slope: float
    p: float
    lasting: bool


def trend(values: Sequence[float]) -> Trend:
    """The trend of at least three values, one a step."""
    score = sum((b > a) - (b < a) for a, b in itertools.combinations(values, 2))
    middle = len(values) // 2
    early, late = _slope(values[: middle + 1]), _slope(values[-middle - 1 :])
    return Trend(
        slope=_slope(values),
        p=_chance_of(len(values), score),
        lasting=late > 0 and late >= _AS_LATE_AS_EARLY * early,
    )


def _slope(values: Sequence[float]) -> float:
    """The median of the slopes between all pairs (Theil and Sen)."""
    pairs = itertools.combinations(enumerate(values), 2)
    return statistics.median((b - a) / (j - i) for (i, a), (j, b) in pairs)


def _chance_of(count: int, score: int) -> float:
    """The chance that ``count`` values in random order have at least this score.

    A score is the number of pairs less twice the number of inversions, and permutations by
    their inversions are counted exactly (Mahonian numbers).
    """
    pairs = count * (count - 1) // 2
    fewest = (pairs - score) // 2
    ways = _by_inversions(count)
    return sum(ways[: fewest + 1]) / sum(ways)


@functools.cache
def _by_inversions(count: int) -> tuple[int, ...]:
    ways = [1]
    for size in range(2, count + 1):
        longer = [0] * (len(ways) + size - 1)
        for inversions, number in enumerate(ways):
            for more in range(size):
                longer[inversions + more] += number
        ways = longer
    return tuple(ways)
