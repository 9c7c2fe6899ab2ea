"""A suite that uses nothing of the plugin is as light as without it."""

from __future__ import annotations

import json

import pytest

from .conftest import Runner, Session

FILES = {
    "conftest.py": """
        import json
        import sys

        def pytest_unconfigure():
            print(json.dumps(sorted(sys.modules)))
    """,
    "test_plain.py": """
        import pytest

        @pytest.fixture
        def dataset():
            return [1]

        @pytest.mark.parametrize("value", [1, 2])
        def test_plain(value, dataset):
            pass

        @pytest.mark.skip
        def test_skipped():
            pass
    """,
}


@pytest.fixture(scope="module")
def session(run: Runner) -> Session:
    # other plugins import what they like
    return run(FILES, "-p", "pytest_dataloader.plugin", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")


@pytest.fixture(scope="module")
def modules(session: Session) -> set[str]:
    return set(json.loads(session.text.splitlines()[-1]))


@pytest.mark.parametrize("name", ["torch", "numpy", "psutil", "hypothesis", "xxhash"])
def test_nothing_heavy_is_imported(modules: set[str], name: str) -> None:
    assert "pytest_dataloader.plugin" in modules
    assert name not in modules


def test_little_of_ours_is_imported(modules: set[str]) -> None:
    heavy = ("observe", "checks", "diagnose", "report", "pipeline", "items", "targets")
    ours = {name.split(".")[1] for name in modules if name.startswith("pytest_dataloader.")}
    assert not ours & set(heavy)


def test_nothing_is_printed(session: Session) -> None:
    assert "dataloader" not in session.text.rpartition("\n[")[0].replace("torch-dataloader", "")
    assert session.section == []


def test_the_tests_are_untouched(session: Session) -> None:
    assert session.outcomes == {
        "test_plain[1]": "passed",
        "test_plain[2]": "passed",
        "test_skipped": "skipped",
    }
    assert session.left_files == ()
