"""Evidence: all facts of one pipeline, as the checks of one configuration look at them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_dataloader.matrix import LoaderConfig, lacking
from pytest_dataloader.observe.facts import (
    CONTENT,
    GROWTH,
    IMPORT,
    LEAKS,
    PERTURBED,
    REITERATE,
    RESUME,
    SCRIPT,
    TIMED,
    DifferenceFacts,
    EpochFacts,
    ErrorFacts,
    FieldFacts,
    RunFacts,
    RunRequest,
    SourceFacts,
)

#: The generators that a process has anyway, by the names that facts give them.
GLOBAL_STATES = ("random", "numpy.random", "torch")


#: A pass for the report alone, when no budget is asked for.
REPORT_SECONDS = 0.5


@dataclass(frozen=True)
class Question:
    """Which configuration is judged, within which matrix, with which seeds."""

    config: LoaderConfig
    matrix: tuple[LoaderConfig, ...]
    seeds: tuple[int, ...] = (0, 1)

    def base(self, config: LoaderConfig | None = None) -> RunRequest:
        """The run that every check looks at: the first seed, truly started."""
        return RunRequest(config or self.config, seed=self.seeds[0])

    def timed(
        self,
        seconds: float = REPORT_SECONDS,
        config: LoaderConfig | None = None,
        budget: float | None = None,
    ) -> RunRequest:
        """The pass that only reads the clock, and ends once a budget is clearly met or missed."""
        return RunRequest(
            config or self.config,
            seed=self.seeds[0],
            purpose=TIMED,
            seconds=seconds,
            budget=budget,
        )

    def stalls(self, step_ms: float, seconds: float) -> RunRequest:
        """The pass that only reads the clock, with a consumer that is busy after each batch."""
        return replace(self.timed(seconds), step_ms=step_ms)

    def epochs(self, config: LoaderConfig | None = None) -> RunRequest:
        """A run of three epochs that notes samples and generators."""
        return RunRequest(config or self.config, seed=self.seeds[0], repeat=1, epochs=3)

    def perturbed(self) -> RunRequest:
        """The pass without workers that looks for what else the content depends on."""
        config = self.config.without_workers()
        return RunRequest(config, seed=self.seeds[0], purpose=PERTURBED)

    def growth(self, seconds: float) -> RunRequest:
        """A run of eight epochs, if so many end in time, that only looks at memory."""
        return RunRequest(
            self.config, seed=self.seeds[0], purpose=GROWTH, seconds=seconds, epochs=8
        )

    def resume(self) -> RunRequest:
        """The run that is interrupted and resumed."""
        return RunRequest(self.config, seed=self.seeds[0], purpose=RESUME)

    def reiterate(self) -> RunRequest:
        """The run that breaks an epoch off, and runs two at once."""
        return RunRequest(self.config, seed=self.seeds[0], purpose=REITERATE)

    def leaks(self) -> RunRequest:
        """The run that comes to each kind of end several times, to see what stays."""
        return RunRequest(self.config, seed=self.seeds[0], purpose=LEAKS)

    def script(self, script: str, args: tuple[str, ...]) -> RunRequest:
        """The script under this configuration's start method."""
        config = LoaderConfig(self.config.start_method, None)
        return RunRequest(config, purpose=SCRIPT, script=script, args=args)

    def imports(self) -> RunRequest:
        """The import of the user's modules in a fresh process."""
        return RunRequest(LoaderConfig("spawn", None), purpose=IMPORT)

    @property
    def reference(self) -> LoaderConfig | None:
        """The first start method of the matrix with the same other axes, if it is another one."""
        if not self.config.start_method:
            return None
        for config in self.matrix:
            same = config.has_workers and not lacking(config)
            if same and replace(config, start_method=self.config.start_method) == self.config:
                return None if config == self.config else config
        return None

    @property
    def with_workers(self) -> LoaderConfig | None:
        """The first configuration of the matrix that has workers and that this platform offers."""
        return next((c for c in self.matrix if c.has_workers and not lacking(c)), None)


@dataclass(frozen=True)
class Evidence:
    """The question and the facts that were gathered for it."""

    question: Question
    runs: Mapping[RunRequest, RunFacts]

    @property
    def config(self) -> LoaderConfig:
        """The configuration that is judged."""
        return self.question.config

    def get(self, request: RunRequest) -> RunFacts | None:
        """The facts of a request, or None if it was not run."""
        return self.runs.get(request)

    @property
    def base(self) -> RunFacts | None:
        """The base run of the configuration."""
        return self.get(self.question.base())

    @property
    def epochs(self) -> RunFacts | None:
        """The run of several epochs, if it came to its end."""
        run = self.get(self.question.epochs())
        return run if run is not None and run.ok and len(run.epochs) > 1 else None

    @property
    def epochs_in_process(self) -> RunFacts | None:
        """The run of several epochs without workers, if it came to its end."""
        run = self.get(self.question.epochs(self.config.without_workers()))
        return run if run is not None and run.ok and len(run.epochs) > 1 else None

    @property
    def contents(self) -> list[RunFacts]:
        """All content runs of this configuration, the base run first."""
        found = [
            facts
            for request, facts in self.runs.items()
            if request.config == self.config and request.purpose == CONTENT
        ]
        return sorted(found, key=lambda f: (f.request.seed, f.request.repeat))


def samples_of(epoch: EpochFacts) -> Counter[str | None] | str | None:
    """What the samples of an epoch are, whatever their order and their batches."""
    return Counter(epoch.sample_ids) if epoch.sample_ids else epoch.batch_multiset


def causes(run: RunFacts | None) -> list[DifferenceFacts]:
    """What a worker held otherwise than the test process and its code uses, likeliest first."""
    return [d for d in (run.world if run is not None else ()) if d.rank <= 2]


def told_cause(cause: DifferenceFacts) -> str:
    """A cause in words."""
    return f"{cause.path} is {cause.parent} in the test process and {cause.child} in the worker"


def unlike_builds(one: RunFacts, other: RunFacts) -> list[FieldFacts]:
    """The fields that two builds hold otherwise, generators first; global states last."""
    before = {field.path: field for field in one.built}
    changed = [
        field
        for field in other.built
        if not field.opaque
        and field.path in before
        and not before[field.path].opaque
        and before[field.path].digest != field.digest
    ]
    return sorted(changed, key=lambda f: (f.path in GLOBAL_STATES, not is_generator(f)))


def is_generator(field: FieldFacts) -> bool:
    """Whether a field is a generator of random numbers, by its kind."""
    return shows_generator(field.shown)


def shows_generator(shown: str) -> bool:
    """Whether what is shown of a value is that of a generator of random numbers."""
    return shown.split(" ", maxsplit=1)[0].rpartition(".")[2] in (
        "Generator",
        "RandomState",
        "Random",
    )


def told_source(source: SourceFacts) -> str:
    """A call of the user's code in words."""
    return f"{source.call} at {shown_path(source.where)}"


def closing_seconds(run: RunFacts) -> float:
    """Seconds from the last batch until all workers were gone."""
    return sum(epoch.end_s or 0.0 for epoch in run.epochs) + (run.close_s or 0.0)


def names_full_shared_memory(error: ErrorFacts | None) -> bool:
    """Whether an error is torch's or Python's own of a shared memory with no room left."""
    if error is None or "No space left" not in error.message:
        return False
    words = ("shared memory", "</torch_", "SemLock")
    return any(word in error.message or word in error.traceback for word in words)


def names_too_many_files(error: ErrorFacts | None) -> bool:
    """Whether an error is that of a process with no descriptors left to take a batch's memory."""
    if error is None:
        return False
    words = ("Too many open files", "received 0 items of ancdata", "Errno 24")
    return any(word in error.message or word in error.traceback for word in words)


def shown_path(path: str) -> str:
    """A path as people write it: relative to the working directory where it lies below it."""
    file, colon, line = path.rpartition(":")
    if not (colon and line.isdigit()):
        file, colon, line = path, "", ""
    try:
        file = Path(file).resolve().relative_to(Path.cwd()).as_posix()
    except (ValueError, OSError):
        file = Path(file).as_posix()
    return f"{file}{colon}{line}"


def place(error: ErrorFacts) -> str | None:
    """``file:line`` of an error, as people write it."""
    return shown_path(error.where) if error.where else None


def quoted(error: ErrorFacts) -> str:
    """An error on one line: its type and message, where it was raised, and that source line."""
    text = f"{error.type}: {error.message}" if error.message else error.type
    where = place(error)
    if where is None:
        return text
    inside = f" in {error.function}" if error.function and error.function != "<module>" else ""
    source = f", `{error.source}`" if error.source else ""
    return f"{text}{inside} at {where}{source}"
