"""Runs of several epochs: which samples came, which random numbers were drawn, what changed."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from typing import Any

from pytest_dataloader.diagnose import pickling, world
from pytest_dataloader.diagnose.sources import sources
from pytest_dataloader.observe.bench import Bench
from pytest_dataloader.observe.epoch import Recording, set_epoch
from pytest_dataloader.observe.errors import belongs_to_user
from pytest_dataloader.observe.facts import (
    DatasetFacts,
    DifferenceFacts,
    EpochFacts,
    FieldFacts,
    RandomnessFacts,
)
from pytest_dataloader.observe.ride import Insight, global_states

_MOST_SAMPLES = 1_000_000
_MOST_FIELDS = 1_000
_METHODS = ("__getitem__", "__getitems__", "__iter__", "__next__", "__len__", "set_epoch")


def prepare(bench: Bench, loader: Any, riders: dict[str, Any]) -> Insight:
    """Note what the loader says of itself, and make what rides to the workers.

    The sampler is replaced in this copy of the loader by one that notes what it gives.
    """
    bench.dataset = _described(loader)
    if not bench.dataset.iterable:
        name = "batch_sampler" if loader.batch_sampler is not None else "sampler"
        loader.__dict__[name] = Recording(getattr(loader, name), bench.records)
    carried = {f"loader.{name}": value for name, value in riders.items()}
    ride = Insight(_sample_key(bench), carried)
    if not bench.request.config.has_workers:
        ride.dataset = loader.dataset
    return ride


def _sample_key(bench: Bench) -> Any:
    """The user's function from a sample to its identity, where it can travel to the workers."""
    key = bench.pipeline.sample_key
    method = bench.request.config.start_method
    if key is None or method in (None, "fork"):
        return key
    if pickling.find_unpicklable({"dl_sample_key": key}, None):
        bench.notes.append("dl_sample_key does not travel to the workers; content is compared")
        return None
    return key


def _described(loader: Any) -> DatasetFacts:
    from torch.utils.data import IterableDataset

    dataset = loader.dataset
    sampler = type(loader.sampler)
    return DatasetFacts(
        kind=type(dataset).__qualname__,
        length=_length(dataset),
        iterable=isinstance(dataset, IterableDataset),
        persistent=loader.persistent_workers,
        drop_last=bool(loader.drop_last),
        sampler=f"{sampler.__module__}.{sampler.__qualname__}",
        told_epochs=_told_epochs(loader),
        places=dict(_places(dataset)),
        iterators=tuple(_iterators(dataset)),
    )


def look_at_build(bench: Bench, loader: Any, riders: dict[str, Any]) -> None:
    """Note what was built, to compare it with another build of the same seed or of another one;
    in a repeat also what the pipeline's code reads besides its data."""
    roots = {
        "dataset": loader.dataset,
        **{f"loader.{name}": value for name, value in riders.items()},
    }
    path, sampler = order_of(loader)
    if type(sampler).__module__.partition(".")[0] != "torch":
        roots[path] = sampler
    if loader.generator is not None:
        roots["loader.generator"] = loader.generator
    if bench.request.repeat:
        bench.sources = sources(roots)
    held = [
        FieldFacts(path, digest, shown, kind == "opaque")
        for path, (digest, shown, kind) in world.held_fields(roots).items()
    ]
    states = [FieldFacts(path, digest, "its state", False) for path, digest in global_states()]
    bench.built = (*held[:_MOST_FIELDS], *states)


def _told_epochs(loader: Any) -> tuple[str, str] | None:
    """The path and class of the sampler that a training loop would tell the epoch."""
    for name in ("batch_sampler", "sampler", "batch_sampler.sampler"):
        sampler = functools.reduce(lambda o, n: getattr(o, n, None), name.split("."), loader)
        if callable(getattr(sampler, "set_epoch", None)):
            return f"loader.{name}", type(sampler).__qualname__
    return None


def order_of(loader: Any) -> tuple[str, Any]:
    """The path and the object that orders the samples: the user's batch sampler, or the sampler."""
    batched = loader.batch_sampler
    if batched is not None and type(batched).__module__.partition(".")[0] != "torch":
        return "loader.batch_sampler", batched
    return "loader.sampler", loader.sampler


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


def _places(dataset: Any) -> Iterator[tuple[str, str]]:
    for name in _METHODS:
        code = getattr(inspect.unwrap(getattr(type(dataset), name, len)), "__code__", None)
        if code is not None and belongs_to_user(code.co_filename):
            yield name, f"{code.co_filename}:{code.co_firstlineno}"


def _iterators(dataset: Any) -> Iterator[str]:
    """Fields that can be gone through once only."""
    for path, value in world.fields("dataset", dataset):
        if hasattr(type(value), "__next__") and value is not dataset:
            yield path


def tell_epoch(bench: Bench, loader: Any, epoch: int) -> None:
    """Tell the dataset the epoch. Note the fields that it has at the first, and those that
    ``set_epoch`` changes at the second."""
    held = world.held({"dataset": loader.dataset}, ())
    if epoch == 0:
        bench.held_before = held
    set_epoch(loader, epoch)
    if epoch == 1:
        after = world.held({"dataset": loader.dataset}, ())
        paths = (path for path in after if after[path][0] != held.get(path, [""])[0])
        bench.epoch_fields = tuple(p for p in paths if p.startswith("dataset"))


def after(bench: Bench, loader: Any) -> None:
    """Note the data that the epochs changed in place in this process."""
    held = world.held({"dataset": loader.dataset}, ())
    changed = world.differences(bench.held_before, held, {})
    bench.drifted = tuple(d for d in changed if _is_stored_data(d, bench.epoch_fields))
    bench.changed = tuple(
        d for d in changed if d.path.startswith("dataset") and d.path not in bench.epoch_fields
    )


def _is_stored_data(change: DifferenceFacts, epoch_fields: tuple[str, ...]) -> bool:
    """A tensor or array that is still of its kind and shape, but holds other values."""
    if change.path in epoch_fields or change.lost or not change.path.startswith("dataset"):
        return False
    kinds = [shown.partition(" [")[0] for shown in (change.parent, change.child)]
    shapes = [shown.partition("] ")[0] for shown in (change.parent, change.child)]
    is_data = " tensor of shape" in change.parent or " array of shape" in change.parent
    return is_data and kinds[0] == kinds[1] and shapes[0] == shapes[1]


# From the workers' notes ---------------------------------------------------------------------


def _of_epoch(bench: Bench, told: list[dict[str, Any]], index: int) -> list[dict[str, Any]]:
    """The notes that were made while an epoch went on."""
    begins = [record.began for record in bench.records]
    end = begins[index + 1] if index + 1 < len(begins) else float("inf")
    return [n for n in told if "at" in n and begins[index] <= n["at"] < end]


def epochs(bench: Bench, told: list[dict[str, Any]]) -> tuple[EpochFacts, ...]:
    """The epochs with the identity of each sample."""
    found = []
    for index, record in enumerate(bench.records):
        made = [n for n in _of_epoch(bench, told, index) if n["kind"] == "batch"]
        ids = [i for note in made for i in note.get("ids", ())]
        by_worker: dict[int, int] = {}
        for note in made:
            by_worker[note["pid"]] = by_worker.get(note["pid"], 0) + note["samples"]
        count = sum(by_worker.values())
        kept = tuple(ids) if count <= _MOST_SAMPLES else None
        found.append(record.facts(count, kept, tuple(by_worker.values())))
    return tuple(found)


def randomness(bench: Bench, told: list[dict[str, Any]]) -> tuple[RandomnessFacts, ...]:
    """Each generator's states in each worker and epoch."""
    if bench.request.epochs == 1:
        return ()
    found = []
    for index, record in enumerate(bench.records):
        notes = [n for n in _of_epoch(bench, told, index) if "states" in n]
        for pid in dict.fromkeys(n["pid"] for n in notes):
            found += _states(pid, record.epoch, [n for n in notes if n["pid"] == pid])
    return tuple(found)


def _states(pid: int, epoch: int, notes: list[dict[str, Any]]) -> list[RandomnessFacts]:
    firsts: dict[str, str] = next((n["states"] for n in notes if n["kind"] == "states"), {})
    later = [n["states"] for n in notes if n["kind"] == "batch"]
    paths = dict.fromkeys(path for states in (firsts, *later) for path in states)
    return [
        RandomnessFacts(
            path, epoch, pid, firsts.get(path), tuple(s[path] for s in later if path in s)
        )
        for path in paths
    ]
