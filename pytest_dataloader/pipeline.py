"""Rebuilds the user's pipeline for a configuration, from fixtures, a DataLoader, or module:attr."""

from __future__ import annotations

import copy
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

    from torch.utils.data import DataLoader

    from pytest_dataloader.matrix import LoaderConfig

NEEDS_WORKERS = ("persistent_workers", "prefetch_factor", "multiprocessing_context", "timeout")


class PipelineError(ValueError):
    """The user's pipeline is given wrongly; the message says what was expected and what came."""


@dataclass(frozen=True)
class Built:
    """A loader for one configuration; ``fresh``: no earlier run has touched its dataset."""

    loader: DataLoader[Any]
    fresh: bool
    notes: tuple[str, ...] = ()


@dataclass
class Pipeline:
    """The user's pipeline: how to get a dataset or a loader, and the loader's own arguments.

    Exactly one of ``dataset``, ``make_dataset``, ``loader`` and ``make_loader`` is set.
    Pipelines of one ``key`` are the same and share their runs. ``sample_key`` is the user's
    function from a sample to its identity. ``target`` is what the pipeline was imported by.
    With ``in_a_job`` all its runs are those of a distributed job, of one rank if none is asked for.
    ``loader_kwargs`` are the arguments of `torch.utils.data.DataLoader`, or a function that
    returns them and may take ``num_workers``.
    """

    id: str
    dataset: Any = None
    make_dataset: Callable[[], Any] | None = None
    loader: DataLoader[Any] | None = None
    make_loader: Callable[..., DataLoader[Any]] | None = None
    loader_kwargs: Mapping[str, Any] | Callable[..., Mapping[str, Any]] = field(
        default_factory=dict
    )
    key: Any = None
    sample_key: Callable[[Any], Any] | None = None
    target: Target | None = None
    in_a_job: bool = False

    def __post_init__(self) -> None:
        self.key = self.id if self.key is None else self.key
        source = self.loader if self.loader is not None else self.loader_kwargs
        self._generators = _GeneratorStates(source)

    @property
    def rebuilds(self) -> bool:
        """Whether each run starts from a dataset built from scratch."""
        return self.make_dataset is not None or self.make_loader is not None

    def of_a_job(self) -> Pipeline:
        """The same pipeline in a distributed job; it shares no runs with this one."""
        other = copy.copy(self)
        other.key, other.in_a_job = ("in a job", self.key), True
        return other

    def build(
        self, config: LoaderConfig, context: BaseContext | None, *, keep: bool = True
    ) -> Built:
        """Build the loader for ``config``; workers are started through ``context``.

        With ``keep=False`` a dataset that cannot be rebuilt is copied first where that is
        possible, so that a run in this process leaves the user's object as it was.
        Raises `PipelineError` for what is no pipeline, and whatever the user's code raises.
        """
        self._generators.restore()
        if self.make_dataset is not None:
            return self._from_kwargs(self.make_dataset(), config, context, fresh=True)
        if self.make_loader is not None:
            made = _call_with_workers(self.make_loader, config.num_workers)
            return _remade(_checked_loader(made, self.id), config, context, fresh=True)
        if self.loader is not None:
            source, fresh = (self.loader, False) if keep else _copied_loader(self.loader)
            return _remade(source, config, context, fresh=fresh)
        dataset, fresh = (self.dataset, False) if keep else _copied(self.dataset)
        return self._from_kwargs(dataset, config, context, fresh=fresh)

    def _from_kwargs(
        self, dataset: Any, config: LoaderConfig, context: BaseContext | None, *, fresh: bool
    ) -> Built:
        from torch.utils.data import DataLoader

        _check_dataset(dataset, self.id)
        given = dict(_kwargs_for(self.loader_kwargs, config.num_workers, self.id))
        kwargs, notes = fit_kwargs(given, config)
        if context is not None:
            kwargs["multiprocessing_context"] = context
        return Built(DataLoader(dataset, **kwargs), fresh, notes)


def fit_kwargs(
    given: dict[str, Any], config: LoaderConfig
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The DataLoader's arguments for ``config``; what of the user's was left out or replaced."""
    kwargs, notes = dict(given), []
    kwargs.pop("dataset", None)
    pinned = kwargs.pop("multiprocessing_context", None)
    if not config.has_workers:
        left_out = [name for name in NEEDS_WORKERS if given.get(name)]
        notes += [f"{name} is left out: there are no workers" for name in left_out]
        for name in NEEDS_WORKERS:
            kwargs.pop(name, None)
    elif pinned is not None:
        notes.append(_replaced_context(pinned, config))
    kwargs["num_workers"] = config.num_workers
    for name in ("persistent_workers", "prefetch_factor", "pin_memory"):
        value = getattr(config, name)
        if value is not None:
            kwargs[name] = value
    return kwargs, tuple(notes)


def _replaced_context(pinned: Any, config: LoaderConfig) -> str:
    name = pinned if isinstance(pinned, str) else pinned.get_start_method()
    return f"multiprocessing_context={name!r} is replaced by the matrix's {config.start_method!r}"


def _kwargs_for(source: Any, num_workers: int | None, owner: str) -> Mapping[str, Any]:
    kwargs = _call_with_workers(source, num_workers) if callable(source) else source
    if not isinstance(kwargs, Mapping):
        raise PipelineError(
            f"{owner}: the loader's arguments must be a dict such as {{'batch_size': 4}}; "
            f"got {type(kwargs).__qualname__}"
        )
    return kwargs


def _call_with_workers(function: Callable[..., Any], num_workers: int | None) -> Any:
    """Call a function that may take the number of workers, as its only argument or by name."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return function()
    if "num_workers" in parameters:
        return function(num_workers=num_workers)
    needed = [p for p in parameters.values() if p.default is p.empty and p.kind < p.VAR_POSITIONAL]
    return function(num_workers) if len(needed) == 1 else function()


def _check_dataset(dataset: Any, owner: str) -> None:
    from torch.utils.data import DataLoader, Dataset

    if isinstance(dataset, DataLoader):
        raise PipelineError(
            f"{owner}: expected a Dataset, got a DataLoader; give it as dl_source_loader"
        )
    if isinstance(dataset, Dataset) or hasattr(dataset, "__getitem__"):
        return
    raise PipelineError(
        f"{owner}: expected a Dataset (with __getitem__ or __iter__), "
        f"got {type(dataset).__qualname__}"
    )


def _checked_loader(loader: Any, owner: str) -> DataLoader[Any]:
    from torch.utils.data import DataLoader

    if isinstance(loader, DataLoader):
        return loader
    raise PipelineError(
        f"{owner}: expected a DataLoader or a callable that returns one, "
        f"got {type(loader).__qualname__}"
    )


def _remade(
    loader: DataLoader[Any], config: LoaderConfig, context: BaseContext | None, *, fresh: bool
) -> Built:
    """A shallow copy of ``loader`` for ``config``: no constructor runs again.

    ``DataLoader.__setattr__`` refuses some attributes after ``__init__``, so they are set in
    the copy's ``__dict__``.
    """
    remade = copy.copy(loader)
    names = ("persistent_workers", "prefetch_factor", "pin_memory", "timeout")
    old_context = loader.multiprocessing_context
    given = {name: getattr(loader, name) for name in names}
    if loader.num_workers == 0:
        given["prefetch_factor"] = None
    wanted, notes = fit_kwargs({**given, "multiprocessing_context": old_context}, config)
    remade.multiprocessing_context = None
    remade.__dict__.update(
        num_workers=config.num_workers,
        _iterator=None,
        persistent_workers=wanted.get("persistent_workers", False),
        prefetch_factor=(wanted.get("prefetch_factor") or 2) if config.has_workers else None,
        pin_memory=wanted["pin_memory"],
        timeout=wanted.get("timeout", 0),
    )
    remade.multiprocessing_context = context
    quiet = [n for n in notes if not n.startswith("prefetch_factor")]
    return Built(remade, fresh, tuple(quiet))


def _copied(dataset: Any) -> tuple[Any, bool]:
    """A deep copy of the dataset, and whether that was possible."""
    try:
        return copy.deepcopy(dataset), True
    except Exception:  # noqa: BLE001 - what a copy meets is the user's: handles, locks, __getattr__ recursion
        return dataset, False


def _copied_loader(loader: DataLoader[Any]) -> tuple[DataLoader[Any], bool]:
    dataset, fresh = _copied(loader.dataset)
    copied = copy.copy(loader)
    copied.__dict__["dataset"] = dataset
    return copied, fresh


class _GeneratorStates:
    """The states of the torch generators in a loader's arguments, to start each run alike."""

    def __init__(self, source: Any) -> None:
        values = source.values() if isinstance(source, Mapping) else [source]
        self._states = [
            (g, g.get_state()) for value in values for g in _generators_of(value, depth=3)
        ]

    def restore(self) -> None:
        for generator, state in self._states:
            generator.set_state(state)


def _generators_of(value: Any, depth: int) -> Iterator[Any]:
    torch = sys.modules.get("torch")
    if torch is None:
        return
    if isinstance(value, torch.Generator):
        yield value
    elif depth:
        for name in ("generator", "sampler", "batch_sampler"):
            inner = getattr(value, "__dict__", {}).get(name)
            if inner is not None:
                yield from _generators_of(inner, depth - 1)


# Targets -------------------------------------------------------------------------------------


class TargetError(PipelineError):
    """A TARGET does not import, has no such attribute or is no pipeline."""


@dataclass(frozen=True)
class Script:
    """A script that is run as ``__main__`` under each start method."""

    id: str
    path: str
    args: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Scripts of one key share their runs."""
        return self.path


@dataclass(frozen=True)
class Target:
    """A parsed TARGET: a module by name or a file by path, and an attribute of it."""

    text: str
    module: str | None
    path: Path | None
    attribute: str | None


def parse_target(text: str) -> Target:
    """Parse ``package.module:attr``, ``path/to/file.py:attr`` or ``path/to/script.py``."""
    where, colon, attribute = text.rpartition(":")
    if text.endswith(".py") or not colon:
        where, attribute = text, ""
    if where.endswith(".py"):
        return Target(text, None, Path(where), attribute or None)
    if not attribute or not where:
        raise TargetError(
            f"{text!r} is no target; expected package.module:attr, path/to/file.py:attr "
            "or path/to/script.py"
        )
    return Target(text, where, None, attribute)


def resolve(target: Target) -> Pipeline | Script:
    """Import the target and make a pipeline of it. Raises `TargetError`."""
    if target.path is not None and not target.path.is_file():
        raise TargetError(f"{target.text}: there is no file {target.path}")
    pipeline_id = f"check:{target.text}"
    if target.attribute is None:
        return Script(pipeline_id, str(target.path))
    module = _import(target)
    try:
        value = _attribute(module, target)
        kwargs = getattr(module, "make_loader_kwargs", {})
        pipeline = pipeline_of(value, target.text, kwargs)
        pipeline.target = target
        return pipeline
    except TargetError:
        raise
    except Exception as error:  # a __getattr__ of the user's
        raise TargetError(
            f"{target.text}: looking at it raised {type(error).__name__}: {error}"
        ) from error


def _import(target: Target) -> Any:
    name, folder = target.module, os.getcwd()
    if target.path is not None:
        name, folder = importable_name(target.path)
    assert name is not None
    if name in sys.modules:
        _check_file(sys.modules[name], target, "a module named {!r} is already imported from")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # pytest's own skip and fail are no Exceptions
        raise TargetError(
            f"{target.text}: importing {name!r} raised {type(error).__name__}: {error}"
        ) from error
    _check_file(module, target, "what sys.path gives first for {!r} is")
    return module


def _check_file(module: Any, target: Target, fact: str) -> None:
    """Refuse a module that is another file's than the target names."""
    if target.path is not None and not _is_file_of(module, target.path):
        found = getattr(module, "__file__", "the interpreter")
        raise TargetError(
            f"{target.text}: {fact.format(module.__name__)} {found}; rename one of the two"
        )


def importable_name(path: Path) -> tuple[str, str]:
    """The dotted name by which workers can import a file, and the folder it needs on sys.path."""
    path = path.resolve()
    parts, folder = [path.stem], path.parent
    while (folder / "__init__.py").is_file():
        parts.append(folder.name)
        folder = folder.parent
    return ".".join(reversed(parts)), str(folder)


def _is_file_of(module: Any, path: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).resolve() == path.resolve()


def _attribute(module: Any, target: Target) -> Any:
    value, seen = module, module.__name__
    for name in (target.attribute or "").split("."):
        try:
            value = getattr(value, name)
        except AttributeError:
            defined = getattr(value, "__dict__", {})
            names = ", ".join(n for n in defined if not n.startswith("_")) or "none"
            raise TargetError(
                f"{target.text}: {seen} has no attribute {name!r}; it defines: {names}"
            ) from None
        seen = f"{seen}.{name}"
    return value


def pipeline_of(value: Any, text: str | None = None, kwargs: Any = None) -> Pipeline:
    """A pipeline of a Dataset, a DataLoader, or what returns one. Raises `TargetError`.

    ``text`` names it in the report; ``kwargs`` are the DataLoader's arguments for a Dataset.
    """
    from torch.utils.data import DataLoader, Dataset

    text = text or getattr(value, "__qualname__", type(value).__qualname__)
    pipeline_id = f"check:{text}"
    kwargs = {} if kwargs is None else kwargs
    if isinstance(value, DataLoader):
        return Pipeline(pipeline_id, loader=value)
    if hasattr(value, "train_dataloader"):
        return Pipeline(pipeline_id, make_loader=_DataModule(value))
    if isinstance(value, type) and issubclass(value, DataLoader):
        return Pipeline(pipeline_id, make_loader=value)
    if isinstance(value, Dataset):
        return Pipeline(pipeline_id, dataset=value, loader_kwargs=kwargs)
    if callable(value):
        return _CallableTarget(value, pipeline_id, kwargs).pipeline()
    if hasattr(value, "__getitem__") and hasattr(value, "__len__"):
        return Pipeline(pipeline_id, dataset=value, loader_kwargs=kwargs)
    raise TargetError(
        f"{text}: expected a Dataset or DataLoader, a class of one, a callable that returns "
        f"one, or a LightningDataModule; got {type(value).__qualname__}"
    )


@dataclass(frozen=True)
class _DataModule:
    """Builds the training loader of a LightningDataModule, class or instance."""

    source: Any

    def __call__(self) -> Any:
        module = self.source() if isinstance(self.source, type) else self.source
        module.prepare_data()
        module.setup("fit")
        return module.train_dataloader()


@dataclass(frozen=True)
class _CallableTarget:
    """A callable whose result decides, at each build, whether it gave a dataset or a loader."""

    call: Callable[..., Any]
    pipeline_id: str
    kwargs: Any

    def pipeline(self) -> Pipeline:
        return _CallablePipeline(
            self.pipeline_id, make_dataset=self.call, loader_kwargs=self.kwargs
        )


def may_bring_a_loader(pipeline: Pipeline) -> bool:
    """Whether the loader may be of another class than torch's own; else it is ours to build."""
    given = pipeline.loader is not None or pipeline.make_loader is not None
    return given or isinstance(pipeline, _CallablePipeline)


class _CallablePipeline(Pipeline):
    """A pipeline whose callable may return a Dataset, a DataLoader or a LightningDataModule."""

    def build(
        self, config: LoaderConfig, context: BaseContext | None, *, keep: bool = True
    ) -> Built:
        from torch.utils.data import DataLoader

        assert self.make_dataset is not None
        self._generators.restore()
        made = _call_with_workers(self.make_dataset, config.num_workers)
        if hasattr(made, "train_dataloader"):
            made = _DataModule(made)()
        if isinstance(made, DataLoader):
            return _remade(made, config, context, fresh=True)
        return self._from_kwargs(made, config, context, fresh=True)
