"""Facts: frozen values that a run leaves behind, with units in their names. No behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field

from pytest_dataloader.matrix import LoaderConfig

OK, RAISED, DIED, HUNG, SKIPPED = "ok", "raised", "died", "hung", "skipped"

CONTENT, TIMED, SCRIPT, IMPORT = "content", "timed", "script", "import"
PERTURBED = "perturbed"
LISTED, ENCODED, HASHED = "listing order", "default encoding", "hash seed"
#: What a source is, at which stage it is read, and where a seed comes from (`SourceFacts`).
CLOCK, ENTROPY, HASH, LISTING, SEED = "clock", "entropy", "hash", "listing", "seed"
SAMPLE, ORDER, START, BUILD = "sample", "order", "start", "build"
CONSTANT, INDEX, OTHER = "constant", "index", "other"
TRUE_START, WARM_START, IN_PROCESS = "true", "warm", "in-process"


@dataclass(frozen=True)
class RunRequest:
    """What to run. ``content`` passes digest every batch; ``timed`` passes only read the clock."""

    config: LoaderConfig
    seed: int = 0
    repeat: int = 0
    purpose: str = CONTENT
    script: str | None = None
    args: tuple[str, ...] = ()
    seconds: float = 1.0
    epochs: int = 1


@dataclass(frozen=True)
class ArrivalFacts:
    """A worker's exception that reached the test process as one of another type.

    ``constructor`` is that of its own type with its parameters, ``defined`` the user's
    ``file:line`` of it; ``keyword`` says that PyTorch gives the text as ``message=``.
    """

    type: str
    constructor: str | None = None
    defined: str | None = None
    keyword: bool = False


@dataclass(frozen=True)
class ErrorFacts:
    """An exception, wherever it was raised; ``stage`` is build, start, iterate or close.

    ``leave`` is the stage of one that ended a worker, such as ``SystemExit``.
    """

    stage: str
    type: str
    message: str
    traceback: str
    file: str | None = None
    line: int | None = None
    function: str | None = None
    source: str | None = None
    arrival: ArrivalFacts | None = None

    @property
    def where(self) -> str | None:
        """``file:line`` of the innermost line that belongs to the user."""
        return f"{self.file}:{self.line}" if self.file else None


@dataclass(frozen=True)
class LeafFacts:
    """One tensor, array or value inside a batch, by its path from the batch."""

    path: str
    kind: str
    digest: str
    preview: str


@dataclass(frozen=True)
class BatchFacts:
    """What one batch held; ``leaves`` are kept for the first batches only."""

    digest: str
    leaves: tuple[LeafFacts, ...] = ()


@dataclass(frozen=True)
class EpochFacts:
    """One epoch: sizes, content and times. Times are seconds since the epoch began."""

    epoch: int
    batches: int
    samples: int | None
    digest: str | None
    batch_multiset: str | None
    batch_facts: tuple[BatchFacts, ...]
    arrivals_s: tuple[float, ...]
    waits_s: tuple[float, ...]
    not_compared: tuple[str, ...] = ()
    # In runs of several epochs: the identity of each sample, None where one has no content, and
    # for a map-style dataset the indices that the sampler gave.
    sample_ids: tuple[str | None, ...] | None = None
    indices: tuple[int, ...] | None = None
    # How many samples each worker made, in runs of several epochs.
    worker_samples: tuple[int, ...] = ()
    # Seconds from the last batch to the end of the iteration; tensors much smaller than the
    # storage that they keep, as (path, bytes of values, bytes of storage).
    end_s: float | None = None
    oversized: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True)
class RandomnessFacts:
    """The state of one generator in one worker over one epoch, as digests.

    ``path`` leads to it from ``dataset`` or ``loader``, or names a global one. ``first`` is its
    state when the worker had started (None in later epochs of persistent workers), ``states``
    are those seen after its batches.
    """

    path: str
    epoch: int
    pid: int
    first: str | None
    states: tuple[str, ...]

    @property
    def used(self) -> bool:
        """Whether numbers were drawn from it."""
        return len({self.first, *self.states} - {None}) > 1


@dataclass(frozen=True)
class WorkerFacts:
    """One worker process. ``unique_bytes`` is its USS, memory that its end would free."""

    worker_id: int | None
    pid: int
    exit_code: int | None
    batches: int = 0
    samples: int = 0
    cpu_s: float | None = None
    ready_s: float | None = None
    first_batch_s: float | None = None
    unique_bytes: int | None = None
    peak_rss_bytes: int | None = None


@dataclass(frozen=True)
class RateFacts:
    """The steady rate, from after every worker has delivered.

    ``low`` to ``high`` is its 95 % interval.
    """

    batches: int
    samples: int | None
    duration_s: float
    batches_per_s: float
    low: float
    high: float
    samples_per_s: float | None
    windows: int


@dataclass(frozen=True)
class UnpicklableFacts:
    """An object that refuses to travel, by its path from ``dataset`` or ``loader``."""

    path: str
    kind: str
    error: str
    defined: str | None = None
    remedy: str | None = None
    context: bool = False


@dataclass(frozen=True)
class DifferenceFacts:
    """Something that a worker holds otherwise than the test process; ``rank`` 0 is the likeliest
    to reach a sample. ``lost`` says that the worker has nothing, or something empty, there."""

    path: str
    parent: str
    child: str
    rank: int
    lost: bool


@dataclass(frozen=True)
class SourceFacts:
    """A call in the user's code that reads something besides the data, or that seeds.

    ``kind`` is clock, entropy, hash, listing or seed; ``stage`` says whether the code makes
    samples, gives their order, runs at a worker's start or at the build; ``seed`` says of a
    seeding whether its seed is constant, of the index alone or other.
    """

    kind: str
    call: str
    where: str
    stage: str
    seed: str = ""


@dataclass(frozen=True)
class FieldFacts:
    """A field of the dataset or the loader as it was built, or a global generator's state."""

    path: str
    digest: str
    shown: str
    opaque: bool


@dataclass(frozen=True)
class LastTask:
    """What a worker that died was making: it had made ``made`` batches of that epoch; the number
    of the next one, from 0, and its indices where they are known."""

    worker_id: int
    made: int
    batch: int | None = None
    indices: str | None = None


@dataclass(frozen=True)
class LeftBehind:
    """What was there after a run and had not been there before it."""

    processes: tuple[str, ...] = ()
    threads: tuple[str, ...] = ()
    shared_memory: tuple[str, ...] = ()
    open_files: int = 0


@dataclass(frozen=True)
class EffectFacts:
    """Something that an import did besides defining; ``where`` is the user's ``file:line``."""

    kind: str
    detail: str
    where: str


@dataclass(frozen=True)
class ImportFacts:
    """What importing one module did in a fresh process, and how long it took.

    ``own_s`` is its own time, without what it imports; ``imports`` are those with their own time.
    """

    module: str
    seconds: float
    own_s: float = 0.0
    effects: tuple[EffectFacts, ...] = ()
    imports: tuple[tuple[str, float], ...] = ()
    error: ErrorFacts | None = None


@dataclass(frozen=True)
class HandleFacts:
    """A handle that a forked worker got from its parent, by path, and still had at a batch.

    ``moved`` says whether the offset of its file had changed by then; None where it has none.
    """

    path: str
    kind: str
    moved: bool | None


@dataclass(frozen=True)
class DatasetFacts:
    """What a dataset and its loader say of themselves.

    ``places`` are ``file:line`` of its methods by name, ``iterators`` the paths of one-shot
    iterators that it holds, ``sampler`` the dotted class of the loader's sampler.
    """

    kind: str
    length: int | None
    iterable: bool
    persistent: bool
    drop_last: bool
    sampler: str
    sampler_has_epochs: bool = False
    places: dict[str, str] = field(default_factory=dict)
    iterators: tuple[str, ...] = ()


@dataclass(frozen=True)
class DependenceFacts:
    """Content that came otherwise where nothing but a listing order, default encoding or hash
    seed was another.

    ``on`` says which; ``lines`` are the user's lines that it came in through (``file:line``),
    ``source`` is the first of them; ``settings`` are the usual one and the other. ``batch`` is the
    number of the first that differed, ``usual`` and ``other`` what it held, and ``error`` what was
    raised in its place.
    """

    on: str
    lines: tuple[str, ...]
    source: str | None
    settings: tuple[str, str]
    batch: int
    usual: BatchFacts | None = None
    other: BatchFacts | None = None
    error: ErrorFacts | None = None


@dataclass(frozen=True)
class RunFacts:
    """Everything that one run left behind; an end without an error is not yet a verdict."""

    request: RunRequest
    start: str
    outcome: str
    reason: str | None = None
    error: ErrorFacts | None = None
    epochs: tuple[EpochFacts, ...] = ()
    workers: tuple[WorkerFacts, ...] = ()
    startup_s: float | None = None
    all_workers_s: float | None = None
    close_s: float | None = None
    rate: RateFacts | None = None
    no_rate_reason: str | None = None
    expected_batches: int | None = None
    travel_bytes: int | None = None
    heaviest: tuple[tuple[str, int], ...] = ()
    unpicklable: tuple[UnpicklableFacts, ...] = ()
    warnings: tuple[str, ...] = ()
    stderr_tail: str = ""
    stuck: str = ""
    left_behind: LeftBehind = field(default_factory=LeftBehind)
    notes: tuple[str, ...] = ()
    in_order: bool = True
    exit_code: int | None = None
    most_processes: int = 0
    recursive_at: str | None = None
    world: tuple[DifferenceFacts, ...] = ()
    # In runs of several epochs: generators; fields of the dataset in this process that an epoch
    # changed in place; fields that set_epoch changed; and where the dataset's methods stand.
    randomness: tuple[RandomnessFacts, ...] = ()
    drifted: tuple[DifferenceFacts, ...] = ()
    epoch_fields: tuple[str, ...] = ()
    dataset: DatasetFacts | None = None
    # What the dataset, the samplers and the global generators held when they had been built; and,
    # in repeats, what the pipeline's code reads besides its data.
    built: tuple[FieldFacts, ...] = ()
    sources: tuple[SourceFacts, ...] = ()
    # What it costs to send a batch: seconds and bytes of pickling the first one, and the median
    # CPU seconds that a worker spends a batch on making and sending it.
    pickle_s: float | None = None
    pickle_bytes: int | None = None
    batch_cpu_s: float | None = None
    # Under fork: handles that workers share, locks held and threads alive as they were forked.
    handles: tuple[HandleFacts, ...] = ()
    held_locks: tuple[str, ...] = ()
    threads: tuple[str, ...] = ()
    # Threads of workers that are no daemons: a worker's end waits for them.
    worker_threads: tuple[str, ...] = ()
    # What the first worker that died was at, and what pinning leaves as it is: its path in the
    # batch, its class, and the path of a tensor in it.
    last_task: LastTask | None = None
    unpinnable: tuple[tuple[str, str, str], ...] = ()
    imports: tuple[ImportFacts, ...] = ()
    dependences: tuple[DependenceFacts, ...] = ()
    duration_s: float = 0.0

    @property
    def config(self) -> LoaderConfig:
        """The configuration that was run."""
        return self.request.config

    @property
    def ok(self) -> bool:
        """Whether the run came to its end by itself without an error."""
        return self.outcome == OK

    @property
    def batches(self) -> int:
        """Batches over all epochs."""
        return sum(epoch.batches for epoch in self.epochs)

    @property
    def samples(self) -> int | None:
        """Samples over all epochs, or None where they could not be counted."""
        counts = [epoch.samples for epoch in self.epochs]
        known = [count for count in counts if count is not None]
        return sum(known) if counts and len(known) == len(counts) else None

    @property
    def digest(self) -> str | None:
        """Digest of the content in order, over all epochs."""
        digests = [epoch.digest for epoch in self.epochs if epoch.digest]
        return "-".join(digests) if digests else None

    @property
    def batches_per_s(self) -> float | None:
        """The steady rate, or None where there is no data for one."""
        return self.rate.batches_per_s if self.rate else None

    @property
    def samples_per_s(self) -> float | None:
        """The steady rate in samples, or None where there is no data for one."""
        return self.rate.samples_per_s if self.rate else None

    @property
    def worker_unique_bytes(self) -> int | None:
        """The largest unique memory of a worker, or None where it could not be read."""
        sizes = [w.unique_bytes for w in self.workers if w.unique_bytes is not None]
        return max(sizes, default=None)
