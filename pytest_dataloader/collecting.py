"""Collection: which tests take part, and over which configurations."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_dataloader.markers import MARKERS, MarkerError

if TYPE_CHECKING:  # every session looks for our marks; only one that has them needs what follows
    from pytest_dataloader.marks import Marked
    from pytest_dataloader.matrix import LoaderConfig
    from pytest_dataloader.settings import Settings

CHOICES = ("dl_dataset", "dl_make_dataset", "dl_source_loader")
SOURCES = (*CHOICES, "dl_loader_kwargs", "dl_sample_key")
_NEED_PIPELINE = ("dl_loader", "dl_run")


@contextlib.contextmanager
def taking_part(collector: Any, function: Any) -> Iterator[None]:
    """Give a test with our marks or fixtures the fixtures that it does not name itself.

    The user's own source fixtures are among them, so that their parameters count. They are
    given only while the test's items are made: an inherited or imported test is collected
    again elsewhere, beside other fixtures.
    """
    names = _unnamed_fixtures(collector, function)
    if not names:
        yield
        return
    before = vars(function).get("pytestmark")
    pytest.mark.usefixtures(*names)(function)
    try:
        yield
    finally:
        if before is None:
            del function.pytestmark
        else:
            function.pytestmark = before


def _unnamed_fixtures(collector: Any, function: Any) -> list[str]:
    marks = _mark_names(collector, function)
    parameters = _parameters(function)
    piped = bool(marks) or any(name in parameters for name in _NEED_PIPELINE)
    if not piped and "dl_config" not in parameters:
        return []
    names = ["dl_config"]
    if piped and not (marks and _only_scripts(collector, function)):
        names += [*source_fixtures(collector.session, collector), "_dl_pipeline"]
    return names


def _mark_names(collector: Any, function: Any) -> set[str]:
    own = getattr(function, "pytestmark", [])
    marks = [*own, *collector.iter_markers()]
    return {mark.name for mark in marks if mark.name in MARKERS}


def _parameters(function: Any) -> tuple[str, ...]:
    code = inspect.unwrap(function).__code__
    return tuple(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])


def _only_scripts(collector: Any, function: Any) -> bool:
    from pytest_dataloader.marks import marked

    try:
        marks = marked([*getattr(function, "pytestmark", []), *collector.iter_markers()])
    except MarkerError:
        return True
    return marks.only_scripts and not any(n in _parameters(function) for n in _NEED_PIPELINE)


def source_fixtures(session: Any, node: Any) -> tuple[str, ...]:
    """The user's source fixtures that are visible from a node."""
    manager = session._fixturemanager
    return tuple(name for name in SOURCES if manager.getfixturedefs(name, node))


def parametrize(metafunc: pytest.Metafunc, settings: Settings) -> None:
    """Spread a test over its matrix; what the platform lacks is a skip with its reason."""
    from pytest_dataloader.marks import Wrong, marked

    try:
        marks = marked(metafunc.definition.iter_markers())
    except MarkerError as error:
        params = [pytest.param(Wrong(str(error)), id="wrong-marker")]
    else:
        params = [_param(config) for config in configurations_of(marks, settings)]
    metafunc.parametrize("dl_config", params, indirect=True)


def _param(config: LoaderConfig) -> Any:
    from pytest_dataloader.matrix import lacking

    reason = lacking(config)
    marks = [pytest.mark.skip(reason=reason)] if reason else []
    return pytest.param(config, id=config.id, marks=marks)


def configurations_of(marks: Marked, settings: Settings) -> tuple[LoaderConfig, ...]:
    """The matrix of a test: its own axes, else the session's."""
    from pytest_dataloader.marks import Axes
    from pytest_dataloader.matrix import LoaderConfig, configurations, expand_start_methods

    axes = marks.axes or Axes()
    methods = axes.start_methods or settings.start_methods
    if marks.only_scripts:
        return tuple(LoaderConfig(method, None) for method in expand_start_methods(methods))
    return configurations(
        methods,
        settings.num_workers if axes.num_workers is None else axes.num_workers,
        axes.persistent_workers,
        axes.prefetch_factor,
        axes.pin_memory,
    )
