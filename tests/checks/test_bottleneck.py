"""Where the time of a batch goes, from parts of a known truth."""

from __future__ import annotations

import pytest
from by_hand import FORK, W0, run

from pytest_dataloader.checks import bottleneck
from pytest_dataloader.observe.facts import MakingFacts, PartFacts

NOTHING = PartFacts(0.0, 0.0, 0.0, 0.0)
SLEEPS = PartFacts(0.1, 0.01, 0.0, 0.09)
BURNS = PartFacts(0.3, 0.1, 0.2, 0.0)
BOTH = PartFacts(0.2, 0.1, 0.0, 0.1)


@pytest.mark.parametrize(
    ("part", "told"),
    [
        (SLEEPS, bottleneck.WAITS),
        (BURNS, bottleneck.COMPUTES),
        (BOTH, bottleneck.BOTH),
        (NOTHING, bottleneck.COMPUTES),
    ],
)
def test_time_in_line_for_a_cpu_is_neither_computing_nor_waiting(part, told) -> None:
    assert bottleneck.bound(part) == told


@pytest.mark.parametrize(
    ("config", "making", "pickle_s", "path"),
    [
        (FORK, MakingFacts(4, SLEEPS, NOTHING), None, "dataset"),
        (FORK, MakingFacts(4, NOTHING, SLEEPS), 0.01, "loader.collate_fn"),
        (FORK, MakingFacts(4, NOTHING, BURNS), 0.2, "batch"),
        (W0, MakingFacts(4, SLEEPS, NOTHING), 0.2, "dataset"),
        (FORK, None, None, "dataset"),
    ],
)
def test_the_culprit_is_what_takes_most(config, making, pickle_s, path) -> None:
    assert bottleneck.culprit(run(config, making=making, pickle_s=pickle_s)) == path


def test_without_workers_the_test_process_takes_the_time() -> None:
    base = run(W0, making=MakingFacts(4, BURNS, NOTHING))
    assert bottleneck.told(base) == (
        "; for a batch the test process takes: fetch 300 ms, collate under 0.01 ms, and the fetch "
        "is CPU-bound (100% computing, 0% waiting) besides 67% of its time in line for a CPU"
    )
    assert bottleneck.advice(base, "Then.") == (
        "Fetching computes: workers help up to the number of CPUs, after that only less work a "
        "sample does. Then."
    )


def test_what_was_not_measured_is_not_told() -> None:
    assert bottleneck.told(None) == bottleneck.told(run(FORK)) == ""
    assert bottleneck.advice(run(FORK), "Then.") == "Then."
