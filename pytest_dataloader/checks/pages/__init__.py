"""The pages of the catalogue, a file a family, in the order of the families.

The examples leave out their imports. ``before`` shows the fault with two spawned workers (with
none for fails-without-workers); ``after`` is the same code without it.
"""

from __future__ import annotations

from pytest_dataloader.checks.pages import (
    completeness,
    determinism,
    fork_safety,
    hygiene,
    machine,
    memory,
    picklability,
    portability,
    runs,
    seeding,
    spawning,
    throughput,
)
from pytest_dataloader.checks.pages.code import Code

CODES: tuple[Code, ...] = (
    *picklability.CODES,
    *runs.CODES,
    *determinism.CODES,
    *seeding.CODES,
    *completeness.CODES,
    *spawning.CODES,
    *fork_safety.CODES,
    *hygiene.CODES,
    *memory.CODES,
    *throughput.CODES,
    *portability.CODES,
    *machine.CODES,
)
