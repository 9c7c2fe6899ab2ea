"""Beside other plugins: many xdist workers, repeats, a random order, coverage inside workers."""

from __future__ import annotations

import getpass

import pytest

from .conftest import Runner, Session, needs_fork

pytestmark = needs_fork

DATA = """
    import torch
    from torch.utils.data import Dataset, get_worker_info


    class Numbers(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            if get_worker_info() is not None:
                return torch.tensor(index)
            return torch.tensor(index)
"""
TESTS = """
    import pytest
    from data import Numbers


    @pytest.fixture
    def dl_make_dataset():
        return Numbers


    @pytest.mark.dl_deterministic
    @pytest.mark.dl_complete
    def test_sound():
        pass
"""
SUITE = {"data.py": DATA, "test_it.py": TESTS}
OPTIONS = ("--dl-start-methods=fork", "--dl-num-workers=0,2", "--dl-report=report.json")


@pytest.fixture(scope="module")
def all_at_once(run: Runner) -> Session:
    pytest.importorskip("xdist")
    pytest.importorskip("pytest_repeat")
    return run(SUITE, *OPTIONS, "-n4", "-p", "randomly", "-p", "no:cacheprovider", "--count=2")


def test_many_workers_in_random_order_with_repeats(all_at_once: Session) -> None:
    assert all_at_once.status == pytest.ExitCode.OK, all_at_once.text
    assert len(all_at_once.tests) == 4
    assert set(all_at_once.outcomes.values()) == {"passed"}
    assert all_at_once.report is not None
    assert all_at_once.report["checks"]["ran"] == 4


def test_nothing_is_left_by_many_workers(all_at_once: Session) -> None:
    assert all_at_once.left_processes == ()
    assert set(all_at_once.left_files) <= {f"pytest-of-{getpass.getuser()}"}  # xdist's own


def test_coverage_is_measured_inside_workers(run: Runner) -> None:
    pytest.importorskip("pytest_cov")
    settings = "[run]\nconcurrency = multiprocessing,thread\nsigterm = true\n"
    suite = {**SUITE, "coverage.ini": settings}
    options = (*OPTIONS, "--cov=data", "--cov-config=coverage.ini", "--cov-report=term-missing")
    session = run(suite, *options, "-k", "fork")
    assert session.status == pytest.ExitCode.OK, session.text
    (line,) = (line for line in session.text.splitlines() if line.startswith("data.py"))
    assert line.split() == ["data.py", "9", "0", "100%"]
