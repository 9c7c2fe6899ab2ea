"""The same checks from Python, without pytest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_dataloader.checks.asked import Asked, NoRecursiveSpawn
from pytest_dataloader.checks.evidence import Question
from pytest_dataloader.checks.families import CONFORMANCE
from pytest_dataloader.checks.finding import ERROR
from pytest_dataloader.judge import judge
from pytest_dataloader.matrix import LoaderConfig, configurations, expand_start_methods, lacking
from pytest_dataloader.observe.observer import Observer
from pytest_dataloader.observe.starting import can_warm_start
from pytest_dataloader.pipeline import Pipeline, Script, parse_target, pipeline_of, resolve
from pytest_dataloader.report import schema
from pytest_dataloader.report.schema import Report


def check(
    target: Any,
    *,
    start_methods: Sequence[str] = ("fork", "spawn"),
    num_workers: Sequence[int] = (0, 2),
    seeds: Sequence[int] = (0, 1),
    timeout: float = 60.0,
    true_starts: bool = False,
) -> Report:
    """Conformance-test a target and return the report, as ``--dl-check=TARGET`` does.

    ``target`` is a TARGET as on the command line, or a Dataset, a DataLoader or a callable that
    returns one. ``timeout`` is in seconds without a batch. Call it under
    ``if __name__ == "__main__":`` - spawned workers import the main module. Raises
    `pytest_dataloader.pipeline.TargetError` for what is no target.
    """
    pipeline = resolve(parse_target(target)) if isinstance(target, str) else pipeline_of(target)
    observer = Observer(timeout_s=timeout, true_starts=true_starts)
    report = Report()
    try:
        for config, asked, matrix in _questions(pipeline, start_methods, num_workers):
            _ask(pipeline, Question(config, matrix, tuple(seeds)), asked, observer, report)
    finally:
        observer.close()
    report.environment = schema.environment()
    return report


def _questions(
    pipeline: Pipeline | Script, start_methods: Sequence[str], num_workers: Sequence[int]
) -> list[tuple[LoaderConfig, tuple[Asked, ...], tuple[LoaderConfig, ...]]]:
    if isinstance(pipeline, Script):
        asked: tuple[Asked, ...] = (NoRecursiveSpawn(pipeline.path, pipeline.args),)
        matrix = tuple(LoaderConfig(m, None) for m in expand_start_methods(start_methods))
    else:
        asked, matrix = CONFORMANCE, configurations(start_methods, num_workers)
    return [(config, asked, matrix) for config in matrix]


def _ask(
    pipeline: Pipeline | Script,
    question: Question,
    asked: tuple[Asked, ...],
    observer: Observer,
    report: Report,
) -> None:
    reason = lacking(question.config)
    if reason:
        skipped = schema.told(pipeline.id, question.config, None, lacking=reason)
        report.add(skipped, "skipped", reason)
        return
    timed = can_warm_start() and not observer.true_starts
    verdict = judge(pipeline, question, asked, observer, timed=timed)
    failed = any(finding.severity == ERROR for finding in verdict.findings)
    told = schema.told(pipeline.id, question.config, verdict)
    report.add(told, "failed" if failed else "passed", None)
