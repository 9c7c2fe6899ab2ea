"""Markers: one function each, whose signature parses the mark and writes its --markers line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a session without our marks needs their names, not what they say
    from pytest_dataloader.checks.asked import (
        Complete,
        Deterministic,
        ForkSafe,
        Fuzz,
        Memory,
        NoLeaks,
        NoRecursiveSpawn,
        Picklable,
        Portable,
        Resumable,
        Seeding,
        Throughput,
    )
    from pytest_dataloader.marks import Allow, Axes, Conforms


class MarkerError(ValueError):
    """A marker given wrongly; the message names the marker, the argument and the valid values."""


def _need(condition: bool, argument: str, valid: str, got: Any) -> None:
    if not condition:
        raise MarkerError(f"{argument} must be {valid}; got {got!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_path(value: Any) -> bool:
    return isinstance(value, str) or hasattr(value, "__fspath__")


def _is_among(value: Any, names: Container[str]) -> bool:
    return isinstance(value, str) and value in names


def _is_sentence(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _budget(argument: str, value: Any, unit: str) -> None:
    fits = value is None or (_is_number(value) and value > 0)
    _need(fits, argument, f"a number above 0 ({unit})", value)


def _listed(argument: str, value: Any, fits: Callable[[Any], bool], valid: str) -> Any:
    """A tuple of valid values from a single one or a sequence; None stays None."""
    if value is None:
        return None
    items = tuple(value) if isinstance(value, (list, tuple, set, range)) else (value,)
    _need(bool(items) and all(fits(item) for item in items), argument, valid, value)
    return items


def _ranks(world_size: int | None) -> None:
    fits = world_size is None or (_is_count(world_size) and world_size > 1)
    _need(fits, "world_size", "a whole number above 1 (ranks)", world_size)


def dl_picklable(max_bytes: int | None = None) -> Picklable:
    """everything that travels to a worker travels and is at most max_bytes of pickle a worker."""
    from pytest_dataloader.checks.asked import Picklable

    _need(
        max_bytes is None or (_is_count(max_bytes) and max_bytes > 0),
        "max_bytes",
        "a whole number above 0 (bytes)",
        max_bytes,
    )
    return Picklable(max_bytes)


def dl_deterministic(
    seeds: Sequence[int] | None = None, across: Sequence[str] = ("runs", "start_methods")
) -> Deterministic:
    """same seed, same batches, bit for bit; across may add "num_workers"."""
    from pytest_dataloader.checks.asked import ACROSS, Deterministic

    numbers = _listed("seeds", seeds, _is_count, "whole numbers from 0, such as [0, 1]")
    valid = f"some of {', '.join(map(repr, ACROSS))}"
    axes = _listed("across", across, lambda v: v in ACROSS, valid)
    _need(axes is not None, "across", valid, across)
    return Deterministic(numbers, axes)


def dl_seeding(world_size: int | None = None) -> Seeding:
    """workers, and ranks, draw different random numbers, epochs differ, seeds matter."""
    from pytest_dataloader.checks.asked import Seeding

    _ranks(world_size)
    return Seeding(world_size)


def dl_complete(world_size: int | None = None) -> Complete:
    """every sample exactly once, over all ranks, len() true, a second epoch not empty."""
    from pytest_dataloader.checks.asked import Complete

    _ranks(world_size)
    return Complete(world_size)


def dl_resumable() -> Resumable:
    """a loader with state_dict goes on exactly where it was interrupted."""
    from pytest_dataloader.checks.asked import Resumable

    return Resumable()


def dl_fuzz(max_examples: int = 50) -> Fuzz:
    """the verdict holds over max_examples randomly drawn configurations and seeds."""
    from pytest_dataloader.checks.asked import Fuzz

    fits = _is_count(max_examples) and max_examples > 0
    _need(fits, "max_examples", "a whole number above 0", max_examples)
    return Fuzz(max_examples)


def dl_fork_safe() -> ForkSafe:
    """no handle or lock that a fork would break."""
    from pytest_dataloader.checks.asked import ForkSafe

    return ForkSafe()


def dl_portable() -> Portable:
    """same content whatever the directory order, hash seed, default encoding; fork not needed."""
    from pytest_dataloader.checks.asked import Portable

    return Portable()


def dl_no_leaks() -> NoLeaks:
    """no process, thread, file or shared memory is left after an epoch, a break, an exception."""
    from pytest_dataloader.checks.asked import NoLeaks

    return NoLeaks()


def dl_memory(max_worker_mb: float | None = None, max_growth_mb: float | None = None) -> Memory:
    """unique memory per worker of at most max_worker_mb MiB, growing by max_growth_mb an epoch."""
    from pytest_dataloader.checks.asked import Memory

    _budget("max_worker_mb", max_worker_mb, "MiB")
    _budget("max_growth_mb", max_growth_mb, "MiB")
    return Memory(max_worker_mb, max_growth_mb)


def dl_no_recursive_spawn(script: str | None = None, args: Sequence[str] = ()) -> NoRecursiveSpawn:
    """importing what workers import starts no process; script is run as __main__ with args."""
    from pytest_dataloader.checks.asked import NoRecursiveSpawn

    _need(script is None or _is_path(script), "script", "the path of a Python file", script)
    items = _listed("args", args, lambda v: isinstance(v, str), "a list of strings") if args else ()
    return NoRecursiveSpawn(None if script is None else str(script), items)


def dl_throughput(  # noqa: PLR0917 - the signature is the marker's, fixed by the documentation
    min_batches_per_s: float | None = None,
    min_samples_per_s: float | None = None,
    min_speedup: float | None = None,
    max_startup_s: float | None = None,
    step_ms: float | None = None,
    max_stall: float | None = None,
) -> Throughput:
    """budgets on the steady state, on the start, on speed-up over 0 workers, on time waited."""
    from pytest_dataloader.checks.asked import Throughput

    _budget("min_batches_per_s", min_batches_per_s, "batches per second")
    _budget("min_samples_per_s", min_samples_per_s, "samples per second")
    _budget("min_speedup", min_speedup, "times the rate of 0 workers")
    _budget("max_startup_s", max_startup_s, "seconds")
    _budget("step_ms", step_ms, "milliseconds")
    fits = max_stall is None or (_is_number(max_stall) and 0 <= max_stall < 1)
    _need(fits, "max_stall", "a share of time from 0 to below 1, such as 0.1", max_stall)
    if (step_ms is None) != (max_stall is None):
        raise MarkerError(
            "step_ms and max_stall must be given together: the milliseconds that a step takes, and "
            "the largest share of its time that the loop may wait"
        )
    asked = Throughput(
        min_batches_per_s, min_samples_per_s, min_speedup, max_startup_s, step_ms, max_stall
    )
    if asked == Throughput():
        raise MarkerError(
            "at least one budget must be given: min_batches_per_s, min_samples_per_s, min_speedup, "
            "max_startup_s, or step_ms with max_stall"
        )
    return asked


def dl_conforms(skip: Sequence[str] = ()) -> Conforms:
    """every check that needs no budget, but those of the codes or families in skip."""
    from pytest_dataloader.checks.catalogue import UnknownCode, select
    from pytest_dataloader.marks import Conforms

    words = _listed("skip", skip, lambda v: isinstance(v, str), "codes or families") if skip else ()
    try:
        select(words)
    except UnknownCode as error:
        raise MarkerError(f"skip: {error}") from None
    return Conforms(words)


def dl_matrix(
    start_methods: Sequence[str] | None = None,
    num_workers: Sequence[int] | None = None,
    persistent_workers: Sequence[bool] | None = None,
    prefetch_factor: Sequence[int] | None = None,
    pin_memory: Sequence[bool] | None = None,
) -> Axes:
    """this test's own matrix; each argument is a value or a list of values."""
    from pytest_dataloader.marks import Axes
    from pytest_dataloader.matrix import START_METHODS

    words = (*START_METHODS, "all", "default")
    yes_or_no = "True, False or both in a list"

    def is_bool(value: Any) -> bool:
        return isinstance(value, bool)

    return Axes(
        _listed(
            "start_methods", start_methods, lambda v: v in words, f"some of {', '.join(words)}"
        ),
        _listed("num_workers", num_workers, _is_count, "whole numbers from 0, such as [0, 2]"),
        _listed("persistent_workers", persistent_workers, is_bool, yes_or_no) or (None,),
        _listed(
            "prefetch_factor",
            prefetch_factor,
            lambda v: _is_count(v) and v > 0,
            "whole numbers from 1, such as [2, 4]",
        )
        or (None,),
        _listed("pin_memory", pin_memory, is_bool, yes_or_no) or (None,),
    )


def dl_allow(
    code: str,
    reason: str,
    start_methods: Sequence[str] | None = None,
    num_workers: Sequence[int] | None = None,
) -> Allow:
    """this finding is expected here and reported as xfail; the test fails once it is gone."""
    from pytest_dataloader.checks.catalogue import BY_NAME
    from pytest_dataloader.marks import Allow
    from pytest_dataloader.matrix import START_METHODS

    _need(_is_among(code, BY_NAME), "code", f"one of {', '.join(BY_NAME)}", code)
    _need(_is_sentence(reason), "reason", "a sentence", reason)
    return Allow(
        code,
        reason,
        _listed(
            "start_methods",
            start_methods,
            lambda v: v in START_METHODS,
            f"some of {', '.join(START_METHODS)}",
        ),
        _listed("num_workers", num_workers, _is_count, "whole numbers from 0, such as [0, 2]"),
    )


MARKERS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        dl_picklable,
        dl_deterministic,
        dl_seeding,
        dl_complete,
        dl_resumable,
        dl_fuzz,
        dl_fork_safe,
        dl_no_leaks,
        dl_portable,
        dl_memory,
        dl_no_recursive_spawn,
        dl_throughput,
        dl_conforms,
        dl_matrix,
        dl_allow,
    )
}


def lines() -> Iterable[str]:
    """The lines for ``pytest --markers``."""
    for name, function in MARKERS.items():
        parameters = inspect.signature(function).parameters.values()
        shown = ", ".join(str(p.replace(annotation=p.empty)) for p in parameters)
        yield f"{name}({shown}): {function.__doc__}"


def parse(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What one mark says. Raises `MarkerError` naming the marker."""
    function = MARKERS[name]
    signature = inspect.signature(function)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        valid = ", ".join(signature.parameters)
        known = f"its arguments are: {valid}" if valid else "it takes none"
        raise MarkerError(f"{name}: {error}; {known}") from None
    try:
        return function(*bound.args, **bound.kwargs)
    except MarkerError as error:
        raise MarkerError(f"{name}: {error}") from None


def unused(names: Iterable[str]) -> str | None:
    """What is wrong with our marks on a test that was collected without a configuration."""
    ours = ", ".join(dict.fromkeys(name for name in names if name in MARKERS))
    if not ours:
        return None
    return (
        f"{ours}: nothing would be checked, as this test takes no parameters; put the marker on a "
        "function or on a method of a plain class, not of a unittest.TestCase, in the source and "
        "not during collection"
    )
