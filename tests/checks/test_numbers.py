"""Numbers as people read them."""

from __future__ import annotations

import math

import pytest

from pytest_dataloader.checks.numbers import milliseconds, readable


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (22791.3, "22,790"),
        (1e6, "1,000,000"),
        (999.96, "1,000"),
        (431.26, "431.3"),
        (50.0, "50"),
        (1.2, "1.2"),
        (0.012345, "0.01235"),
        (0.00001, "0.00001"),
        (0.0, "0"),
        (math.inf, "inf"),
    ],
)
def test_four_digits_that_count(value, text) -> None:
    assert readable(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1.5, "1,500 ms"),
        (0.0804, "80 ms"),
        (0.00123, "1.2 ms"),
        (0.0001, "0.1 ms"),
        (1e-6, "under 0.01 ms"),
    ],
)
def test_milliseconds(seconds, text) -> None:
    assert milliseconds(seconds) == text
