"""Hooks that this plugin offers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_dataloader.report.schema import Report


@pytest.hookspec
def pytest_dl_report(report: Report, config: pytest.Config) -> Iterable[str] | None:
    """Lines for the dataloader section at the end of the session.

    ``report`` holds the environment, the pipelines with their runs and findings, and the counts;
    it may also be written elsewhere from here. Each implementation's lines are printed, the
    plugin's own first.
    """
