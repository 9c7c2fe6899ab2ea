"""Facts: frozen values that a run leaves behind, with units in their names. No behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field

from pytest_dataloader.matrix import LoaderConfig

OK, RAISED, DIED, HUNG, SKIPPED = "ok", "raised", "died", "hung", "skipped"

CONTENT, TIMED, SCRIPT, IMPORT = "content", "timed", "script", "import"
GROWTH = "growth"
RESUME, REITERATE = "resume", "reiterate"
PERTURBED, LEAKS = "perturbed", "leaks"
LISTED, ENCODED, HASHED = "listing order", "default encoding", "hash seed"
#: What a source is, at which stage it is read, and where a seed comes from (`SourceFacts`).
CLOCK, ENTROPY, HASH, LISTING, SEED = "clock", "entropy", "hash", "listing", "seed"
COMPLETION = "completion"
SAMPLE, ORDER, START, BUILD = "sample", "order", "start", "build"
CONSTANT, INDEX, OTHER = "constant", "index", "other"
#: How a loader came to its end, and what was left behind (`LeakFacts`).
FINISHED, BROKEN_OFF, FAILED = "a full epoch", "an early break", "an exception"
GONE = "the loader and its dataset were let go"
LEFT_PROCESS, LEFT_THREAD, LEFT_OPEN = "process", "thread", "open file"
LEFT_FILE, LEFT_MEMORY = "temporary file", "shared memory"
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
    # Which of several ranks of a distributed job the run believes to be.
    rank: int | None = None
    world_size: int | None = None
    # In a timed pass: the milliseconds that the consumer is busy between two batches.
    step_ms: float | None = None
    # In a timed pass: batches per second that the rate will be held against.
    budget: float | None = None


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
    # How many batches the sampler of a map-style dataset asked for, where it came to its end.
    asked: int | None = None


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
    # How much more the unique memory was at the last look than at the first.
    grown_bytes: int | None = None


@dataclass(frozen=True)
class RateFacts:
    """The steady rate, from after every worker has delivered.

    ``low`` to ``high`` is its 95 % interval; ``wait_p50_s`` and the like are percentiles of the
    waits for a batch. ``first_batch_s`` is the wait for the very first, ``restart_s`` for the first
    of a second epoch where that was asked for, ``blocked_share`` the share of time in which a
    loader without workers neither computed nor was in line for a CPU, ``headspace`` the batches
    per second of the same loader with a batch that is in memory, where a budget was missed.
    ``reference_s`` is what the reference workload took, before and after the pass.
    """

    batches: int
    samples: int | None
    duration_s: float
    batches_per_s: float
    low: float
    high: float
    samples_per_s: float | None
    windows: int
    wait_p50_s: float | None = None
    wait_p95_s: float | None = None
    wait_p99_s: float | None = None
    first_batch_s: float | None = None
    restart_s: float | None = None
    blocked_share: float | None = None
    headspace: float | None = None
    reference_s: float | None = None


@dataclass(frozen=True)
class StallFacts:
    """The share of time that a consumer waits who is busy for ``step_ms`` after each batch.

    It is measured from after every worker has delivered; ``low`` to ``high`` is its 95 % interval.
    """

    step_ms: float
    share: float
    low: float
    high: float
    batches: int
    duration_s: float
    windows: int
    wait_p50_s: float
    wait_p99_s: float


@dataclass(frozen=True)
class PartFacts:
    """Where the time of one part of making a batch goes, as means over batches.

    ``queued_s`` was spent ready to run while others had the CPUs, ``blocked_s`` on waiting for
    anything else: storage, a network, a lock, a sleep.
    """

    seconds: float
    cpu_s: float
    queued_s: float
    blocked_s: float


@dataclass(frozen=True)
class MakingFacts:
    """What it takes to make a batch, without each process's first one if there are others."""

    batches: int
    fetch: PartFacts
    collate: PartFacts


@dataclass(frozen=True)
class StartupFacts:
    """What a new interpreter's first batch waited for, in order, in seconds.

    ``interpreter_s`` is for Python, torch and the main module, ``imports_s`` for the modules that
    the dataset and its functions need (``slowest`` is the slowest of them, with its seconds),
    ``arrival_s`` for unpickling these, ``init_s`` for ``worker_init_fn``.
    """

    interpreter_s: float
    imports_s: float
    arrival_s: float
    init_s: float
    first_fetch_s: float
    delivery_s: float
    slowest: tuple[str, float] | None = None


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
class ThreadFacts:
    """A thread that was alive in the test process as workers were forked.

    ``path`` leads to what holds it from the dataset, the loader or a module, where anything of
    the user's does; ``kind`` says what that is. ``used`` says that the code which makes a sample
    names what leads there, ``gone`` that a worker still held it, without its thread.
    ``runs`` is what the thread runs: the user's ``file:line``, or a library's function. That of
    an ``anonymous`` one is a method of the user's object at ``path``, and nothing holds it.
    """

    name: str
    runs: str
    path: str | None = None
    kind: str = "a thread"
    used: bool = False
    gone: bool = False
    anonymous: bool = False


@dataclass(frozen=True)
class GrowthFacts:
    """One process over several epochs: its unique memory at the end of each, and by path the
    sizes of what became more after the first: entries, or the bytes of an array.

    ``worker_id`` is None for the test process. ``lives_on`` says that the user's own loader keeps
    the process from epoch to epoch.
    """

    worker_id: int | None
    unique_bytes: tuple[int | None, ...]
    sizes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    batches_an_epoch: float = 0.0
    lives_on: bool = True


@dataclass(frozen=True)
class DatasetFacts:
    """What a dataset and its loader say of themselves.

    ``places`` are ``file:line`` of its methods by name, ``iterators`` the paths of one-shot
    iterators that it holds, ``sampler`` the dotted class of the loader's sampler; ``told_epochs``
    are the path and the class of the sampler that has ``set_epoch``, where one does.
    """

    kind: str
    length: int | None
    iterable: bool
    persistent: bool
    drop_last: bool
    sampler: str
    told_epochs: tuple[str, str] | None = None
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
class LeakFacts:
    """Something of which each round of the same endings left more.

    ``where`` is the user's ``file:line`` that made it, ``holder`` the attribute or module global
    that holds it, ``counts`` how many each round left.
    """

    kind: str
    what: str
    where: str | None
    in_worker: bool
    endings: tuple[str, ...]
    counts: tuple[int, ...]
    holder: str | None = None


@dataclass(frozen=True)
class MachineFacts:
    """What a run had to work with; None where it could not be read.

    ``cpus_allowed`` are those of the process's affinity and its container's limit, ``cpu_quota``
    is that limit; ``descriptors`` is the number of files that a process may hold open.
    """

    os: str
    wsl: int | None = None
    cpus: int | None = None
    cpus_allowed: int | None = None
    cpu_quota: float | None = None
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    shm_bytes: int | None = None
    descriptors: int | None = None
    descriptors_hard: int | None = None
    sharing_strategy: str | None = None
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True)
class StorageFacts:
    """A file or folder that a field names, by the field's path, and the place where it lies."""

    path: str
    location: str
    kind: str
    category: str
    mount: str = ""


@dataclass(frozen=True)
class StatefulFacts:
    """Whether a loader gives its state and takes it back, and how the pass that resumes it went.

    ``parts`` are the paths of what else has both methods, ``places`` the ``file:line`` of the
    user's own by path, ``unpicklable`` what in the state will not travel, ``generators`` those
    that the dataset holds. ``forgotten`` are the fields that a state leaves out, generators
    apart. ``random_only`` says that nothing differs where each batch begins with the same
    generators; ``disturbed`` that to ask for the state
    changes what comes.
    """

    loader: bool
    parts: tuple[str, ...] = ()
    places: dict[str, str] = field(default_factory=dict)
    batches: int = 0
    whole: bool = True
    in_order: bool = True
    repeatable: bool = True
    disturbed: bool = False
    random_only: bool = False
    unpicklable: tuple[UnpicklableFacts, ...] = ()
    generators: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()
    forgotten_generators: tuple[str, ...] = ()


@dataclass(frozen=True)
class ResumeFacts:
    """What came after a loader was built afresh and given its state.

    ``interrupted`` is after how many batches of the epoch, once or twice; ``differs_at`` the
    number of the first batch that is another one, from 0. Of the epoch after it: the number of
    batches as usual and now, whether it is another one, and whether usual epochs are alike.
    """

    interrupted: tuple[int, ...]
    came: int
    differs_at: int | None = None
    usual: BatchFacts | None = None
    other: BatchFacts | None = None
    next_batches: tuple[int, int] | None = None
    next_differs: bool = False
    epochs_alike: bool = False


@dataclass(frozen=True)
class AgainFacts:
    """An epoch and ``how`` it came: its samples, those of a usual one that it lacks, and those
    that it has too many."""

    how: str
    samples: int
    lost: int
    more: int


@dataclass(frozen=True)
class ReiterateFacts:
    """Epochs after an early break and beside one another, against the samples of a usual one.

    ``kept`` are the fields that a half-used iterator leaves changed, ``places`` the ``file:line``
    of the user's methods by path.
    """

    samples: int
    again: tuple[AgainFacts, ...]
    kept: tuple[str, ...] = ()
    places: dict[str, str] = field(default_factory=dict)


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
    # In a timed pass with a busy consumer; in content passes, what making a batch and the first
    # one of a new interpreter took.
    stall: StallFacts | None = None
    making: MakingFacts | None = None
    startup: StartupFacts | None = None
    # What the run had to work with: the machine, where its data lies, bytes of shared memory that
    # its first batch took, and the loader's prefetch_factor.
    machine: MachineFacts | None = None
    storage: tuple[StorageFacts, ...] = ()
    batch_bytes: int | None = None
    prefetch_factor: int | None = None
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
    # The path of what orders the samples of a map-style dataset: the user's own, or torch's.
    order: str = "loader.sampler"
    exit_code: int | None = None
    most_processes: int = 0
    recursive_at: str | None = None
    world: tuple[DifferenceFacts, ...] = ()
    # In runs of several epochs: generators; fields of the dataset in this process that an epoch
    # changed in place, and all that it changed; fields that set_epoch changed; and where the
    # dataset's methods stand.
    randomness: tuple[RandomnessFacts, ...] = ()
    drifted: tuple[DifferenceFacts, ...] = ()
    changed: tuple[DifferenceFacts, ...] = ()
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
    live_threads: tuple[ThreadFacts, ...] = ()
    # Threads of workers that are no daemons: a worker's end waits for them.
    worker_threads: tuple[str, ...] = ()
    # What the first worker that died was at, and what pinning leaves as it is: its path in the
    # batch, its class, and the path of a tensor in it.
    last_task: LastTask | None = None
    growth: tuple[GrowthFacts, ...] = ()
    # In passes that resume: what keeps a state, and what came after each interruption.
    stateful: StatefulFacts | None = None
    resumed: tuple[ResumeFacts, ...] = ()
    reiterated: ReiterateFacts | None = None
    # Under fork: containers of very many Python objects, as (path, kind, entries, bytes).
    many_objects: tuple[tuple[str, str, int, int], ...] = ()
    unpinnable: tuple[tuple[str, str, str], ...] = ()
    imports: tuple[ImportFacts, ...] = ()
    leaks: tuple[LeakFacts, ...] = ()
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
