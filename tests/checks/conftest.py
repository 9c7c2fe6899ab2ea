from __future__ import annotations

import pytest

from pytest_dataloader.matrix import START_METHODS


@pytest.fixture(autouse=True)
def every_start_method_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_dataloader.matrix.available_start_methods", lambda: START_METHODS)
