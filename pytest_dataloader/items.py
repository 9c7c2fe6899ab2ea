"""One test: its marks and pipeline, its judgement, and what it tells the report."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from pytest_dataloader.checks.asked import Asked, Fuzz, NoRecursiveSpawn
from pytest_dataloader.checks.evidence import Question
from pytest_dataloader.checks.finding import ERROR, Finding
from pytest_dataloader.collecting import CHOICES, configurations_of, source_fixtures
from pytest_dataloader.judge import Verdict, judge
from pytest_dataloader.marks import Allow, Marked, Wrong, marked
from pytest_dataloader.matrix import LoaderConfig, lacking
from pytest_dataloader.observe import processes
from pytest_dataloader.observe.facts import RunFacts
from pytest_dataloader.observe.observer import Observer
from pytest_dataloader.observe.starting import can_warm_start
from pytest_dataloader.pipeline import Pipeline, PipelineError, Script
from pytest_dataloader.report import schema
from pytest_dataloader.report.terminal import finding_lines
from pytest_dataloader.settings import Settings


@dataclass
class ItemState:
    """What is known of one test as it runs."""

    marked: Marked
    config: LoaderConfig
    question: Question
    settings: Settings
    pipeline_id: str
    pipeline: Pipeline | Script | None = None
    uses_run: bool = False
    one_family: bool = False
    verdict: Verdict | None = None
    expected: tuple[Finding, ...] = ()
    recommendation: dict[str, Any] | None = None
    sections: list[str] = field(default_factory=list)


def state_of(item: Any, settings: Settings) -> ItemState:
    """The state of a test that takes part; a wrong marker fails it here."""
    config = item.callspec.params["dl_config"]
    if isinstance(config, Wrong):
        pytest.fail(f"{item.nodeid}: {config.why}", pytrace=False)
    marks = _with_scripts_found(marked(item.iter_markers()), item)
    matrix = configurations_of(marks, settings)
    seeds = settings.seeds
    pipeline_id = _without_configuration(item, config)
    state = ItemState(marks, config, Question(config, matrix, seeds), settings, pipeline_id)
    state.uses_run = "dl_run" in item.fixturenames
    if marks.only_scripts and "_dl_pipeline" not in item.fixturenames:
        state.pipeline = Script(pipeline_id, "")
    return state


def _with_scripts_found(marks: Marked, item: Any) -> Marked:
    return replace(marks, asked=tuple(_with_script_found(one, item) for one in marks.asked))


def _with_script_found(one: Asked, item: Any) -> Asked:
    if isinstance(one, NoRecursiveSpawn) and one.script is not None:
        return replace(one, script=_found_script(one.script, item))
    return one


def _found_script(script: str, item: Any) -> str:
    """The script's path from the working directory, or else from the test's folder."""
    for candidate in (Path(script), item.path.parent / script):
        if candidate.is_file():
            return os.fspath(candidate)
    pytest.fail(
        f"{item.nodeid}: dl_no_recursive_spawn: script must be the path of a Python file, from the "
        f"working directory or the test's folder; there is no file {script!r}",
        pytrace=False,
    )


def _without_configuration(item: Any, config: LoaderConfig) -> str:
    """The node id without the configuration's part of the brackets."""
    base = item.nodeid.removesuffix(f"[{item.callspec.id}]")
    rest = list(item.callspec._idlist)
    rest.remove(config.id)
    return f"{base}[{'-'.join(rest)}]" if rest else base


# The pipeline --------------------------------------------------------------------------------


def pipeline_from_fixtures(request: pytest.FixtureRequest, pipeline_id: str) -> Pipeline:
    """The pipeline that the user's fixtures give; a wrong choice of them fails the test."""
    given = source_fixtures(request.node.session, request.node)
    chosen = [name for name in CHOICES if name in given]
    if len(chosen) != 1:
        pytest.fail(_wrong_choice(request.node, chosen), pytrace=False)
    values = {name: request.getfixturevalue(name) for name in given}
    with _clean_errors():
        pipeline = _pipeline(values, pipeline_id, _key(request, given))
        pipeline.sample_key = _sample_key(values, pipeline_id)
        return pipeline


@contextlib.contextmanager
def _clean_errors() -> Iterator[None]:
    """Tell a pipeline that is given wrongly in its own words, without our frames."""
    try:
        yield
    except PipelineError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None


def _wrong_choice(item: Any, chosen: list[str]) -> str:
    names = ", ".join(CHOICES)
    if chosen:
        return (
            f"{item.nodeid}: expected one of the fixtures {names}; got {len(chosen)}: "
            f"{', '.join(chosen)}; remove all but one"
        )
    return (
        f"{item.nodeid}: expected a pipeline from one of the fixtures {names}; none is defined for "
        "this test; define one in the test's module or a conftest.py"
    )


def _pipeline(values: dict[str, Any], pipeline_id: str, key: Any) -> Pipeline:
    kwargs = values.get("dl_loader_kwargs", {})
    if "dl_source_loader" in values:
        if "dl_loader_kwargs" in values:
            raise PipelineError(
                f"{pipeline_id}: dl_source_loader brings its own arguments; remove dl_loader_kwargs"
            )
        source = values["dl_source_loader"]
        if callable(source) and not hasattr(source, "dataset"):
            return Pipeline(pipeline_id, make_loader=source, key=key)
        return Pipeline(pipeline_id, loader=_loader_of(source, pipeline_id), key=key)
    if "dl_make_dataset" in values:
        make = values["dl_make_dataset"]
        if not callable(make):
            raise PipelineError(
                f"{pipeline_id}: dl_make_dataset must give a callable that builds a Dataset; got "
                f"{type(make).__qualname__}"
            )
        return Pipeline(pipeline_id, make_dataset=make, loader_kwargs=kwargs, key=key)
    return Pipeline(pipeline_id, dataset=values["dl_dataset"], loader_kwargs=kwargs, key=key)


def _sample_key(values: dict[str, Any], pipeline_id: str) -> Any:
    key = values.get("dl_sample_key")
    if key is None or callable(key):
        return key
    raise PipelineError(
        f"{pipeline_id}: dl_sample_key must give a function from a sample to its identity; got "
        f"{type(key).__qualname__}"
    )


def _loader_of(source: Any, pipeline_id: str) -> Any:
    from torch.utils.data import DataLoader

    if isinstance(source, DataLoader):
        return source
    raise PipelineError(
        f"{pipeline_id}: dl_source_loader must give a DataLoader or a callable that builds one; "
        f"got {type(source).__qualname__}"
    )


def _key(request: pytest.FixtureRequest, given: tuple[str, ...]) -> Any:
    """What a pipeline is made of: tests for which all of it is the same share their runs.

    That is every fixture of the user's in reach, as a class may override one that the source
    fixtures ask for, and every parameter by its identity.
    """
    item = request.node
    manager = item.session._fixturemanager
    names = [n for n in item.fixturenames if n in given or not n.lstrip("_").startswith("dl_")]
    found = ((name, manager.getfixturedefs(name, item)) for name in names)
    params = item.callspec.params.items()
    return (
        frozenset((name, id(definitions[-1])) for name, definitions in found if definitions),
        frozenset((name, id(value)) for name, value in params if name != "dl_config"),
    )


def loader(pipeline: Pipeline, config: LoaderConfig) -> Iterator[Any]:
    """The user's own loader under a configuration; its workers are ended when the test is over."""
    import gc
    import multiprocessing

    before = multiprocessing.active_children()
    context = multiprocessing.get_context(config.start_method) if config.start_method else None
    with _clean_errors():
        built = pipeline.build(config, context)
    try:
        yield built.loader
    finally:
        built.loader.__dict__["_iterator"] = None
        del built
        gc.collect()
        processes.end(processes.new_children(before))


def run(state: ItemState, observer: Observer) -> RunFacts:
    """The base run of a test's configuration, with the rate of its timed pass."""
    assert state.pipeline is not None
    facts = observer.observe(state.pipeline, state.question.base())
    if not facts.ok or not can_warm_start():
        return facts
    timed = observer.observe(state.pipeline, state.question.timed())
    return replace(facts, rate=timed.rate, no_rate_reason=timed.no_rate_reason)


# Judgement -----------------------------------------------------------------------------------


def judge_item(state: ItemState, observer: Observer) -> None:
    """Judge a test whose body has passed; fails, skips or xfails it."""
    verdict = _judged(state, observer)
    if verdict is None:
        return
    expected, rest = _expected(state, verdict)
    missing = _missing(state, expected)
    errors = [finding for finding in rest if finding.severity == ERROR]
    if errors or missing:
        pytest.fail("\n".join([*_told(state, rest), *missing]), pytrace=False)
    if expected:
        reasons = dict.fromkeys(a.reason for a in _allowed_here(state))
        pytest.xfail("; ".join(reasons))
    if verdict.nothing_judged:
        pytest.skip(f"not judged: {'; '.join(verdict.not_judged)}")


def tune(state: ItemState, observer: Observer) -> None:
    """With --dl-tune, measure what is worth it for a pipeline that works: once a session."""
    pipeline, verdict = state.pipeline, state.verdict
    if not state.settings.tune or not isinstance(pipeline, Pipeline) or verdict is None:
        return
    if pipeline.key in observer.tuned or not all(run.ok for run in verdict.runs):
        return
    from pytest_dataloader import advise

    observer.tuned.add(pipeline.key)
    settings = state.settings
    found = advise.tune(pipeline, observer, settings.start_methods, seed=settings.seeds[0])
    state.recommendation = found.to_dict()


def judge_after_failure(item: pytest.Item, state: ItemState, observer: Observer) -> None:
    """Judge a test whose body has failed: its findings are shown beside the failure."""
    verdict = _judged(state, observer)
    if verdict is not None and verdict.findings:
        item.add_report_section(
            "call", "dataloader findings", "\n".join(_told(state, verdict.findings))
        )


def _judged(state: ItemState, observer: Observer) -> Verdict | None:
    marks = state.marked
    wanted = marks.asked or marks.axes is not None or marks.allowed or state.uses_run
    if state.pipeline is None or not wanted:
        return None
    settings = state.settings
    state.verdict = judge(
        state.pipeline,
        state.question,
        marks.asked,
        observer,
        counts=lambda code: settings.counts(code) and code not in marks.skipped_codes,
        timed=can_warm_start() and not settings.true_starts,
        one_family=state.one_family,
    )
    state.verdict = _with_drawn(state, observer, state.verdict)
    return state.verdict


def _with_drawn(state: ItemState, observer: Observer, verdict: Verdict) -> Verdict:
    """The verdict with the findings of drawn configurations, where they are asked for."""
    asked = [one for one in state.marked.asked if isinstance(one, Fuzz)]
    failed = any(finding.severity == ERROR for finding in verdict.findings)
    if not asked or failed or not isinstance(state.pipeline, Pipeline):
        return verdict  # what fails as it is needs no drawing
    from pytest_dataloader.fuzz import fuzzed

    def counts(code: str) -> bool:
        return state.settings.counts(code) and code not in state.marked.skipped_codes

    found = fuzzed(state.pipeline, state.question, asked[0], observer, counts=counts)
    return replace(verdict, findings=(*verdict.findings, *found))


def _allowed_here(state: ItemState) -> list[Allow]:
    config = state.config
    return [
        allow
        for allow in state.marked.allowed
        if allow.covers(config.start_method, config.num_workers)
        and state.settings.counts(allow.code)
    ]


def _expected(state: ItemState, verdict: Verdict) -> tuple[list[Finding], list[Finding]]:
    codes = {allow.code for allow in _allowed_here(state)}
    expected = [finding for finding in verdict.findings if finding.code in codes]
    state.expected = tuple(expected)
    return expected, [finding for finding in verdict.findings if finding.code not in codes]


def _missing(state: ItemState, expected: list[Finding]) -> list[str]:
    seen = {finding.code for finding in expected}
    return [
        f"dl_allow: expected {allow.code} under {state.config.id} ({allow.reason}), but it no "
        "longer occurs; remove the marker"
        for allow in _allowed_here(state)
        if allow.code not in seen
    ]


def _told(state: ItemState, findings: Any) -> list[str]:
    """The findings of a test, errors first, as its failure shows them."""
    shown = list(findings)
    counts = ", ".join(
        f"{sum(f.severity == severity for f in shown)} {severity}"
        for severity in dict.fromkeys(f.severity for f in shown)
    )
    lines = [f"{state.pipeline_id} under {state.config.id}: {counts}"] if shown else []
    for finding in shown:
        lines += finding_lines(schema.finding_to_dict(finding), width=100)
    return lines


# The telling ---------------------------------------------------------------------------------


def tell(state: ItemState, report: pytest.TestReport) -> None:
    """Put what a test found on its report as plain data; pytest carries it on, also under xdist."""
    if report.when == "teardown" or (report.when == "setup" and report.passed):
        return
    told = schema.told(
        state.pipeline_id,
        state.config,
        state.verdict,
        expected=state.expected,
        lacking=lacking(state.config),
        recommendation=state.recommendation,
    )
    report.dataloader = schema.finite(told)  # type: ignore[attr-defined]
