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
    """Budgets on the steady state, on the start, and on the share of its time that a consumer
    waits who is busy for ``step_ms`` a batch; None means no budget."""

    min_batches_per_s: float | None = None
    min_samples_per_s: float | None = None
    min_speedup: float | None = None
    max_startup_s: float | None = None
    step_ms: float | None = None
    max_stall: float | None = None


@dataclass(frozen=True)
class Runs:
    """A run comes to its end; asked of every test. With ``later_epochs`` one of several epochs
    does so too."""

    later_epochs: bool = False


@dataclass(frozen=True)
class Portable:
    """What works here works elsewhere: under the other start methods of the matrix, and whatever
    the order of a directory, the default encoding and the hash seed."""


@dataclass(frozen=True)
class Seeding:
    """Workers draw different random numbers, epochs differ, seeds matter; so do the ranks of a
    job of ``world_size``, if given."""

    world_size: int | None = None


@dataclass(frozen=True)
class Complete:
    """Every sample comes exactly once, over all ranks of a job of ``world_size`` if given;
    lengths are true, a second epoch is not empty."""

    world_size: int | None = None


@dataclass(frozen=True)
class Resumable:
    """A loader goes on from its state where it was interrupted.

    With ``if_stateful`` one without a state is passed over in silence.
    """

    if_stateful: bool = False


@dataclass(frozen=True)
class Fuzz:
    """The verdict holds over ``max_examples`` randomly drawn configurations."""

    max_examples: int = 50


@dataclass(frozen=True)
class ForkSafe:
    """No handle, lock or thread that a fork would break."""


@dataclass(frozen=True)
class NoLeaks:
    """Nothing outlives the loader: no process, thread, file or shared memory."""


@dataclass(frozen=True)
class Memory:
    """Unique memory a worker, and what it grows by an epoch, in MiB; None means no budget."""

    max_worker_mb: float | None = None
    max_growth_mb: float | None = None


Asked = (
    Runs
    | Picklable
    | Deterministic
    | Seeding
    | Complete
    | Resumable
    | Fuzz
    | NoRecursiveSpawn
    | ForkSafe
    | NoLeaks
    | Memory
    | Portable
    | Throughput
)
