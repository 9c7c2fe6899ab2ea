"""Targets of --dl-check: test items without a test file, one a configuration and family."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_dataloader.checks.asked import Asked, Complete, NoRecursiveSpawn, Resumable
from pytest_dataloader.checks.evidence import Question
from pytest_dataloader.checks.families import CONFORMANCE, family_of
from pytest_dataloader.collecting import configurations_of
from pytest_dataloader.items import ItemState
from pytest_dataloader.marks import Marked
from pytest_dataloader.matrix import LoaderConfig, lacking
from pytest_dataloader.pipeline import Pipeline, Script, TargetError, parse_target, resolve
from pytest_dataloader.settings import Settings


def collect(
    session: pytest.Session, settings: Settings, key: pytest.StashKey[ItemState]
) -> list[pytest.Item]:
    """The items of all targets; one that cannot be used is an item that fails and says why."""
    items: list[pytest.Item] = []
    for text in settings.check:
        node = TargetNode.from_parent(session, name=f"check:{text}", nodeid=f"check:{text}")
        items += _collected(node, text, settings, key)
    return items


def _collected(
    node: TargetNode, text: str, settings: Settings, key: pytest.StashKey[ItemState]
) -> list[pytest.Item]:
    found: list[pytest.Item]
    try:
        found = list(_items(node, resolve(parse_target(text)), settings, key))
    except TargetError as error:
        found = [BrokenTarget.from_parent(node, name="target", why=str(error))]
    # pytest counts what it collects by these reports
    report = pytest.CollectReport(node.nodeid, "passed", None, [*found])
    node.ihook.pytest_collectreport(report=report)
    return found


def _items(
    node: TargetNode,
    pipeline: Pipeline | Script,
    settings: Settings,
    key: pytest.StashKey[ItemState],
) -> Iterator[pytest.Item]:
    questions = list(_questions(pipeline, settings))
    matrix = tuple(dict.fromkeys(config for config, _ in questions))
    for config, one in questions:
        item = TargetItem.from_parent(node, name=f"{family_of(one).name}[{config.id}]")
        state = ItemState(
            Marked(_asked(one)),
            config,
            Question(config, matrix, settings.seeds),
            settings,
            pipeline.id,
        )
        state.pipeline = pipeline
        state.one_family = True
        item.stash[key] = state
        reason = lacking(config)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
        yield item


def _asked(one: Asked) -> tuple[Asked, ...]:
    """What an item asks: to resume is asked beside completeness, for only few loaders can."""
    return (one, Resumable(if_stateful=True)) if isinstance(one, Complete) else (one,)


def _questions(
    pipeline: Pipeline | Script, settings: Settings
) -> Iterator[tuple[LoaderConfig, Asked]]:
    if isinstance(pipeline, Script):
        script = NoRecursiveSpawn(pipeline.path, pipeline.args)
        for config in configurations_of(Marked((script,)), settings):
            yield config, script
        return
    for config in configurations_of(Marked(), settings):
        for one in CONFORMANCE:
            if not isinstance(one, Resumable) and family_of(one).applies(config):
                yield config, one


class TargetNode(pytest.Collector):
    """The node of one target, for the ids of its items; its items are made beforehand."""

    def collect(self) -> Iterator[pytest.Item]:
        """Nothing: the items were added to the session's."""
        return iter(())


class _Item(pytest.Item):
    def reportinfo(self) -> tuple[Path, int, str]:
        """Where a skip is told of, for which pytest wants a line; and the title of a failure.

        Not the id itself: pytest would take its dots for those of a class's name.
        """
        return self.path, 0, self.nodeid.replace("::", " ")


class TargetItem(_Item):
    """One family of checks of one target under one configuration; judged as any test is."""

    def runtest(self) -> None:
        """Nothing of its own: the judgement follows, as it follows a test's body."""


class BrokenTarget(_Item):
    """A target that does not import, has no such attribute or is no pipeline."""

    def __init__(self, *, why: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.why = why

    def runtest(self) -> None:
        """Fail, and say why."""
        pytest.fail(self.why, pytrace=False)
