"""The reference workload: always the same work."""

from __future__ import annotations

import statistics
import time

from pytest_dataloader.observe.reference import reference_s


def test_it_is_as_long_as_a_clock_beside_it_says() -> None:
    began = time.perf_counter()
    told = [reference_s() for _ in range(5)]
    assert 0.7 * (time.perf_counter() - began) < sum(told) <= time.perf_counter() - began


def test_it_takes_milliseconds() -> None:
    assert 0.001 < statistics.median(reference_s() for _ in range(5)) < 0.2
