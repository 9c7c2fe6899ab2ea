"""The pytest plugin: hooks in the order of a session, and fixtures. Glue only.

Nothing heavy is imported before a test needs it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, Literal

import pytest

from pytest_dataloader import settings as dl_settings

if TYPE_CHECKING:
    from pytest_dataloader.items import ItemState
    from pytest_dataloader.matrix import LoaderConfig
    from pytest_dataloader.observe.facts import RunFacts
    from pytest_dataloader.observe.observer import Observer
    from pytest_dataloader.pipeline import Pipeline
    from pytest_dataloader.settings import Settings

# The session's settings; filled in pytest_configure.
SETTINGS = pytest.StashKey["Settings"]()
# The session's observer; made when the first test needs it, closed by a cleanup of the config.
OBSERVER = pytest.StashKey["Observer"]()
# An item's marks, pipeline and verdict; filled from the item's setup on.
STATE = pytest.StashKey["ItemState"]()


# Start ---------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the one table, each with its ini key."""
    group = parser.getgroup("dataloader", "PyTorch data loading (pytest-dataloader)")
    for option in dl_settings.OPTIONS:
        keywords: dict[str, Any] = {"metavar": option.metavar}
        if option.action == "store_const":
            keywords = {"const": True}
        group.addoption(
            option.flag,
            dest=option.key,
            action=option.action,
            default=None,
            help=option.help,
            **keywords,
        )
        if option.has_ini:
            repeatable = option.action == "append"
            kind: Literal["linelist", "string"] = "linelist" if repeatable else "string"
            parser.addini(option.key, f"{option.flag}: {option.help}", type=kind, default=None)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Offer ``pytest_dl_report``."""
    from pytest_dataloader import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """With --dl-explain, print a code's page in the place of a session."""
    code = config.option.dl_explain
    return None if code is None else _explain(config, code)


def _explain(config: pytest.Config, code: str) -> int:
    from pytest_dataloader.checks.catalogue import UnknownCode, explain

    try:
        page = explain(code)
    except UnknownCode as error:
        raise pytest.UsageError(f"--dl-explain: {error}") from None
    sys.stdout.write(f"{page}\n")  # pytest has no terminal reporter before its configuration
    return 0


def pytest_configure(config: pytest.Config) -> None:
    """Resolve the settings, announce the markers, and gather results where there is no worker."""
    config.stash[SETTINGS] = _settings(config)
    from pytest_dataloader import gathering, markers

    for line in markers.lines():
        config.addinivalue_line("markers", line)
    if not hasattr(config, "workerinput"):  # under xdist the controller gathers
        gatherer = gathering.Gatherer(config, config.stash[SETTINGS])
        config.pluginmanager.register(gatherer, "dataloader-gatherer")


def _settings(config: pytest.Config) -> Settings:
    def ini(key: str) -> str | None:
        value = config.getini(key)
        return "\n".join(value) if isinstance(value, list) else value

    try:
        return dl_settings.resolve(lambda key: getattr(config.option, key, None), ini)
    except dl_settings.SettingError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_report_header(config: pytest.Config) -> list[str] | None:
    """Name the session's matrix, if the user asked for anything of ours; with -v the machine."""
    chosen = config.stash[SETTINGS]
    if not chosen.was_asked:
        return None
    methods, workers = ",".join(chosen.start_methods), ",".join(map(str, chosen.num_workers))
    lines = [f"dataloader: start methods {methods}, workers {workers}"]
    if config.get_verbosity() > 0:
        from pytest_dataloader.diagnose import machine

        lines.append(f"dataloader: {machine.told(machine.facts())}")
    return lines


# Collection ----------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """With --dl-check and no arguments, collect the targets alone, not ``testpaths``."""
    config = session.config
    given = config.args_source is pytest.Config.ArgsSource.ARGS
    if config.option.dl_check and not given:
        config.args = []


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(
    collector: pytest.Collector, name: str, obj: object
) -> Generator[None, Any, Any]:
    """Give a test with our marks its fixtures, before pytest reads which ones it uses."""
    function = obj.__func__ if isinstance(obj, (staticmethod, classmethod)) else obj
    if not inspect.isfunction(function) or not collector.funcnamefilter(name):  # type: ignore[attr-defined]
        return (yield)
    from pytest_dataloader import collecting

    with collecting.taking_part(collector, function):
        return (yield)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Spread a test that takes part over its matrix."""
    if "dl_config" in metafunc.fixturenames:
        from pytest_dataloader import collecting

        collecting.parametrize(metafunc, metafunc.config.stash[SETTINGS])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add the items of the --dl-check targets, which no file holds."""
    if config.stash[SETTINGS].check:
        from pytest_dataloader import targets

        items += targets.collect(session, config.stash[SETTINGS], STATE)


# One test ------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Parse the marks of a test that takes part; a wrong one fails it before its fixtures run."""
    if "dl_config" in getattr(getattr(item, "callspec", None), "params", {}):
        from pytest_dataloader import items

        item.stash[STATE] = items.state_of(item, item.config.stash[SETTINGS])


@pytest.fixture
def dl_config(request: pytest.FixtureRequest) -> LoaderConfig:
    """The LoaderConfig of this test: parametrised over the matrix."""
    config: LoaderConfig = request.param
    return config


@pytest.fixture(name="_dl_pipeline")
def dl_pipeline(request: pytest.FixtureRequest) -> Pipeline:
    """The pipeline of this test, from the user's fixtures."""
    from pytest_dataloader import items

    state: ItemState = request.node.stash[STATE]
    pipeline = items.pipeline_from_fixtures(request, state.pipeline_id)
    state.pipeline = pipeline
    return pipeline


@pytest.fixture
def dl_loader(dl_config: LoaderConfig, _dl_pipeline: Pipeline) -> Iterator[Any]:
    """The unmodified DataLoader under dl_config."""
    from pytest_dataloader import items

    yield from items.loader(_dl_pipeline, dl_config)


@pytest.fixture
def dl_run(request: pytest.FixtureRequest, _dl_pipeline: Pipeline) -> RunFacts:
    """The observed epoch under dl_config: facts to assert on."""
    from pytest_dataloader import items

    return items.run(request.node.stash[STATE], observer_of(request.config))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Judge a test after its body; a failed body keeps its failure, with the findings beside."""
    from pytest_dataloader import markers

    if STATE not in item.stash:
        unused = markers.unused(mark.name for mark in item.iter_markers())
        if unused:
            pytest.fail(f"{item.nodeid}: {unused}", pytrace=False)
        return (yield)
    from pytest_dataloader import items

    try:
        result = yield
    except (Exception, pytest.fail.Exception):
        items.judge_after_failure(item, item.stash[STATE], observer_of(item.config))
        raise
    try:
        items.judge_item(item.stash[STATE], observer_of(item.config))
    finally:
        items.tune(item.stash[STATE], observer_of(item.config))
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put what a test found on its report, the one road that xdist also travels."""
    report = yield
    if STATE in item.stash:
        from pytest_dataloader import items

        items.tell(item.stash[STATE], report)
    return report


def observer_of(config: pytest.Config) -> Observer:
    """The session's observer, made on first use."""
    if OBSERVER not in config.stash:
        from pytest_dataloader import progress
        from pytest_dataloader.observe.observer import Observer

        chosen = config.stash[SETTINGS]
        observer = Observer(
            timeout_s=chosen.timeout,
            true_starts=chosen.true_starts,
            progress=progress.for_session(config),
        )
        config.stash[OBSERVER] = observer
        config.add_cleanup(observer.close)
    return config.stash[OBSERVER]
