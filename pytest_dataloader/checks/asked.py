"""What a test asks for: one frozen value a marker, without pytest."""

from __future__ import annotations

from dataclasses import dataclass

ACROSS = ("runs", "start_methods", "num_workers")


@dataclass(frozen=True)
class Picklable:
    """What travels to a worker travels, and weighs at most ``max_bytes`` a worker."""

    max_bytes: int | None = None


@dataclass(frozen=True)
class Deterministic:
    """Same seed, same batches; ``seeds=None`` means the session's."""

    seeds: tuple[int, ...] | None = None
    across: tuple[str, ...] = ("runs", "start_methods")


@dataclass(frozen=True)
class NoRecursiveSpawn:
    """Importing starts no process; ``script`` run as ``__main__`` does not start itself again."""

    script: str | None = None
    args: tuple[str, ...] = ()


@dataclass(frozen=True)
class Throughput:
    """Budgets on the steady state and on the start; None means no budget."""

    min_batches_per_s: float | None = None
    min_samples_per_s: float | None = None
    min_speedup: float | None = None
    max_startup_s: float | None = None


@dataclass(frozen=True)
class Runs:
    """A run comes to its end; asked of every test."""


@dataclass(frozen=True)
class Portable:
    """What works under fork works under the other start methods of the matrix."""


@dataclass(frozen=True)
class Seeding:
    """Workers draw different random numbers, epochs differ, seeds matter."""


@dataclass(frozen=True)
class Complete:
    """Every sample comes exactly once, lengths are true, a second epoch is not empty."""


@dataclass(frozen=True)
class ForkSafe:
    """No handle, lock or thread that a fork would break."""


@dataclass(frozen=True)
class Memory:
    """Unique memory a worker, in MiB; None means no budget. Batches keep little alive."""

    max_worker_mb: float | None = None


Asked = (
    Runs
    | Picklable
    | Deterministic
    | Seeding
    | Complete
    | NoRecursiveSpawn
    | ForkSafe
    | Memory
    | Portable
    | Throughput
)
