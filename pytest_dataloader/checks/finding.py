"""Findings: what a check says, of which configurations, who is to blame, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pytest_dataloader.matrix import LoaderConfig

ERROR, WARNING, INFO = "error", "warning", "info"
SEVERITIES = (ERROR, WARNING, INFO)


@dataclass(frozen=True)
class Finding:
    """One finding. ``error`` fails the test; ``warning`` and ``info`` are shown.

    ``culprit`` is an attribute path from ``dataset`` or ``loader``, ``file:line``, or the dotted
    name of a module global.
    """

    code: str
    severity: str
    configurations: tuple[LoaderConfig, ...]
    culprit: str | None
    message: str
    advice: str


@dataclass(frozen=True)
class NotJudged:
    """A check that had no data to judge by, and why."""

    reason: str


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """Findings of the same code, severity and culprit become one, with all their configurations.

    The words are those of the first. Errors come first, then warnings; within a severity the
    order is kept.
    """
    by_key: dict[tuple[str, str, str | None], Finding] = {}
    for finding in findings:
        key = (finding.code, finding.severity, finding.culprit)
        known = by_key.get(key)
        if known is None:
            by_key[key] = finding
        else:
            both = dict.fromkeys(known.configurations + finding.configurations)
            by_key[key] = replace(known, configurations=tuple(both))
    return sorted(by_key.values(), key=lambda f: SEVERITIES.index(f.severity))
