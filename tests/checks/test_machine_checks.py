"""The machine: slow places, small shared memory, workers without CPUs."""

from __future__ import annotations

import dataclasses

import pytest
from by_hand import FORK, SPAWN, W0, judged, question, run

from pytest_dataloader.checks.asked import Runs
from pytest_dataloader.checks.catalogue import BY_NAME
from pytest_dataloader.checks.finding import INFO, WARNING, Finding
from pytest_dataloader.diagnose.machine import LOCAL, NETWORK, ROTATING, WINDOWS_DRIVE
from pytest_dataloader.observe.facts import MachineFacts, MakingFacts, PartFacts, StorageFacts

MIB = 2**20
NOTHING = PartFacts(0.0, 0.0, 0.0, 0.0)
WAITS = MakingFacts(8, PartFacts(0.05, 0.005, 0.0, 0.045), NOTHING)
COMPUTES = MakingFacts(8, PartFacts(0.05, 0.05, 0.0, 0.0), NOTHING)
MACHINE = MachineFacts("Linux", cpus=8, cpus_allowed=2, shm_bytes=64 * MIB)


def said(config=SPAWN, **facts):
    return judged(Runs(), question(config), [run(config, **facts)])


# slow-filesystem -----------------------------------------------------------------------------


def at(category, kind="9p", mount="/mnt/c", path="dataset.root"):
    return StorageFacts(path, f"{mount}/data", kind, category, mount)


def test_data_on_a_windows_drive() -> None:
    twice = (at(WINDOWS_DRIVE), at(WINDOWS_DRIVE, path="dataset.labels"))
    assert said(storage=twice, making=WAITS) == [
        Finding(
            "slow-filesystem",
            WARNING,
            (SPAWN,),
            "dataset.root",
            "expected dataset.root to lie on a local disk, but /mnt/c/data lies on a Windows "
            "drive, which WSL reaches through the network (9p at /mnt/c); for a batch a worker "
            "takes: fetch 50 ms, collate under 0.01 ms, and the fetch is I/O-bound (10% computing, "
            "90% waiting)",
            "Move the data into the file system of the distribution, such as ~/data.",
        )
    ]


@pytest.mark.parametrize(
    ("category", "making", "config", "severity"),
    [
        (NETWORK, WAITS, SPAWN, WARNING),
        (NETWORK, COMPUTES, SPAWN, INFO),
        (NETWORK, None, SPAWN, INFO),
        (WINDOWS_DRIVE, None, SPAWN, WARNING),
        (ROTATING, WAITS, SPAWN, INFO),
        (ROTATING, WAITS, dataclasses.replace(FORK, num_workers=4), WARNING),
    ],
)
def test_a_slow_place_is_a_warning_where_it_was_measured_to_cost_time(
    category, making, config, severity
) -> None:
    [finding] = said(config, storage=(at(category),), making=making)
    assert (finding.code, finding.severity) == ("slow-filesystem", severity)


def test_a_local_disk_is_none_even_if_a_fetch_waits() -> None:
    assert said(storage=(at(LOCAL),), making=WAITS) == []


# small-shared-memory -------------------------------------------------------------------------


def test_batches_that_do_not_fit() -> None:
    assert said(machine=MACHINE, batch_bytes=24 * MIB, prefetch_factor=4) == [
        Finding(
            "small-shared-memory",
            WARNING,
            (SPAWN,),
            "loader",
            "expected at least 216 MiB of /dev/shm for 9 batches of 24 MiB under way (2 workers * "
            "prefetch_factor 4, and the one in use), got 64 MiB",
            BY_NAME["small-shared-memory"].mend,
        )
    ]


@pytest.mark.parametrize(
    ("config", "facts"),
    [
        (SPAWN, {"machine": MACHINE, "batch_bytes": 12 * MIB}),
        (SPAWN, {"machine": MACHINE}),
        (SPAWN, {"batch_bytes": 100 * MIB}),
        (SPAWN, {"machine": MachineFacts("Darwin"), "batch_bytes": 100 * MIB}),
        (W0, {"machine": MACHINE, "batch_bytes": 100 * MIB}),
    ],
)
def test_batches_that_fit_or_need_no_shared_memory(config, facts) -> None:
    assert said(config, **facts) == []


# too-many-workers ----------------------------------------------------------------------------


def with_workers(count, **facts):
    return said(dataclasses.replace(FORK, num_workers=count), **facts)


def test_more_workers_than_cpus() -> None:
    [finding] = with_workers(6, machine=MACHINE, making=COMPUTES)
    assert (finding.code, finding.severity) == ("too-many-workers", WARNING)
    assert (finding.culprit, finding.advice) == (
        "loader.num_workers",
        BY_NAME["too-many-workers"].mend,
    )
    assert finding.message == (
        "expected at most 2 workers that compute, one for each CPU that this process may use of 8, "
        "by its CPU affinity, got 6; for a batch a worker takes: fetch 50 ms, collate under 0.01 "
        "ms, and the fetch is CPU-bound (100% computing, 0% waiting)"
    )


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (MachineFacts("Linux", cpus=2, cpus_allowed=2), "may use, got 6"),
        (
            MachineFacts("Linux", wsl=2, cpus=2, cpus_allowed=2),
            "may use, which .wslconfig sets for WSL2, got 6",
        ),
        (
            MachineFacts("Linux", wsl=2, cpus=8, cpus_allowed=2, cpu_quota=1.5),
            "may use of 8, by the container's limit of 1.5, got 6",
        ),
    ],
)
def test_who_grants_the_cpus(facts, words) -> None:
    [finding] = with_workers(6, machine=facts, making=COMPUTES)
    assert words in finding.message


@pytest.mark.parametrize(
    ("count", "facts"),
    [
        (2, {"machine": MACHINE}),
        (4, {"machine": MACHINE, "making": COMPUTES}),
        (2, {"machine": MachineFacts("Linux", cpus=1, cpus_allowed=1)}),
        (16, {"machine": MACHINE, "making": WAITS}),
        (16, {"machine": MachineFacts("Linux")}),
        (16, {}),
    ],
)
def test_workers_that_have_cpus_or_wait_or_of_an_unknown_machine(count, facts) -> None:
    assert with_workers(count, **facts) == []
