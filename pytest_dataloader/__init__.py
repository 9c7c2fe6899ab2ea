"""Know that your PyTorch data pipeline works under every start method before you train."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_dataloader.advise import Recommendation, recommend, recommended_num_workers
    from pytest_dataloader.api import check
    from pytest_dataloader.checks.finding import Finding
    from pytest_dataloader.matrix import LoaderConfig
    from pytest_dataloader.observe.facts import RunFacts
    from pytest_dataloader.report.schema import Report

_HOMES = {
    "Finding": "pytest_dataloader.checks.finding",
    "LoaderConfig": "pytest_dataloader.matrix",
    "Report": "pytest_dataloader.report.schema",
    "RunFacts": "pytest_dataloader.observe.facts",
    "Recommendation": "pytest_dataloader.advise",
    "check": "pytest_dataloader.api",
    "recommend": "pytest_dataloader.advise",
    "recommended_num_workers": "pytest_dataloader.advise",
}

__all__ = [
    "Finding",
    "LoaderConfig",
    "Recommendation",
    "Report",
    "RunFacts",
    "check",
    "recommend",
    "recommended_num_workers",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
