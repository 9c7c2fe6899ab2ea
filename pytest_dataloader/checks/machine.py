"""The machine: where the data lies, and what it has for the workers that are asked for."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_dataloader.checks import bottleneck
from pytest_dataloader.checks.catalogue import BY_NAME
from pytest_dataloader.checks.evidence import Evidence
from pytest_dataloader.checks.finding import INFO, WARNING, Finding, NotJudged
from pytest_dataloader.diagnose.machine import (
    HOST,
    LOCAL,
    MEMORY,
    NETWORK,
    OBJECTS,
    ROTATING,
    WINDOWS_DRIVE,
    size,
)
from pytest_dataloader.observe.facts import MachineFacts, RunFacts, StorageFacts

PREFETCH_FACTOR = 2
_FEW_FOR_A_DISK = 2
_NOTICEABLE_S = 0.001

_PLACES = {
    WINDOWS_DRIVE: "a Windows drive, which WSL reaches through the network",
    NETWORK: "a network file system",
    OBJECTS: "an object store that is mounted as a file system",
    HOST: "a folder of the host that this system reaches through a file server",
    ROTATING: "a rotating disk",
}
_ADVICE = {
    WINDOWS_DRIVE: "Move the data into the file system of the distribution, such as ~/data.",
    NETWORK: (
        "Copy the data to a local disk before training, or pack small files into few large ones "
        "and use fewer workers with a larger prefetch_factor."
    ),
    OBJECTS: (
        "Pack small files into few large ones that are read from front to back, and cache them "
        "on a local disk."
    ),
    HOST: "Move the data into a file system of this system, such as a volume of the container.",
    ROTATING: "Use one or two workers, and read few large files from front to back.",
}


def lies_on_a_fast_disk(evidence: Evidence, _asked: object) -> Iterator[Finding | NotJudged]:
    """Files that the dataset names lie on a local disk, or reading them takes little time."""
    run = evidence.base
    told: set[tuple[str, str]] = set()
    for place in run.storage if run is not None else ():
        known = (place.category, place.mount or place.location)
        if place.category in (LOCAL, MEMORY) or known in told or run is None:
            continue
        told.add(known)
        severity = WARNING if _matters(run, place) else INFO
        message = (
            f"expected {place.path} to lie on a local disk, but {place.location} lies on "
            f"{_PLACES[place.category]} ({place.kind} at {place.mount}){bottleneck.told(run)}"
        )
        yield Finding(
            "slow-filesystem",
            severity,
            (evidence.config,),
            place.path,
            message,
            _ADVICE[place.category],
        )


def _matters(run: RunFacts, place: StorageFacts) -> bool:
    """Whether the place is known to cost time: it waits for it, or it is known to be slow."""
    if place.category == ROTATING and (run.config.num_workers or 0) <= _FEW_FOR_A_DISK:
        return False
    if run.making is None:
        return place.category == WINDOWS_DRIVE
    waits = bottleneck.bound(run.making.fetch) != bottleneck.COMPUTES
    return waits and run.making.fetch.blocked_s >= _NOTICEABLE_S


def fits_into_shared_memory(evidence: Evidence, _asked: object) -> Iterator[Finding | NotJudged]:
    """All batches that may be under way at once fit into /dev/shm."""
    run, config = evidence.base, evidence.config
    if run is None or run.machine is None or not config.has_workers or not run.batch_bytes:
        return
    room, workers = run.machine.shm_bytes, config.num_workers or 0
    factor = run.prefetch_factor or PREFETCH_FACTOR
    count = workers * factor + 1
    if room is None or count * run.batch_bytes <= room:
        return
    message = (
        f"expected at least {size(count * run.batch_bytes)} of /dev/shm for {count} batches of "
        f"{size(run.batch_bytes)} under way ({workers} workers * prefetch_factor {factor}, and the "
        f"one in use), got {size(room)}"
    )
    yield _warning("small-shared-memory", evidence, "loader", message)


def has_cpus_for_its_workers(evidence: Evidence, _asked: object) -> Iterator[Finding | NotJudged]:
    """Workers that compute have CPUs to do it on; those that wait may be many."""
    run, workers = evidence.base, evidence.config.num_workers or 0
    allowed = run.machine.cpus_allowed if run is not None and run.machine is not None else None
    if run is None or allowed is None or workers <= max(2 * allowed, allowed + 2):
        return
    if run.making is not None and bottleneck.bound(run.making.fetch) != bottleneck.COMPUTES:
        return
    assert run.machine is not None
    of = f" of {run.machine.cpus}" if run.machine.cpus not in (None, allowed) else ""
    message = (
        f"expected at most {allowed} workers that compute, one for each CPU that this process may "
        f"use{of}{_granted_by(run.machine)}, got {workers}{bottleneck.told(run)}"
    )
    yield _warning("too-many-workers", evidence, "loader.num_workers", message)


def _granted_by(machine: MachineFacts) -> str:
    """Who lets this process have so few CPUs, where it is known."""
    if machine.cpu_quota is not None and machine.cpu_quota < (machine.cpus or 0):
        return f", by the container's limit of {machine.cpu_quota:g}"
    if machine.cpus_allowed != machine.cpus:
        return ", by its CPU affinity"
    # WSL2 runs in a virtual machine, whose size is set on the Windows side.
    return ", which .wslconfig sets for WSL2" if machine.wsl == 2 else ""


def _warning(code: str, evidence: Evidence, culprit: str, message: str) -> Finding:
    return Finding(code, WARNING, (evidence.config,), culprit, message, BY_NAME[code].mend)


CHECKS = (lies_on_a_fast_disk, fits_into_shared_memory, has_cpus_for_its_workers)
