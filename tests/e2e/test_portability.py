"""Portability: the lines that make content depend on the machine, in one session of 0 workers."""

from __future__ import annotations

import sys

import pytest

from .conftest import Runner, Session, line_of, needs_fork, one_line

pytestmark = needs_fork

DATA = """
    from pathlib import Path

    from torch.utils.data import Dataset

    FOLDER = Path(__file__).parent / "texts"


    class Rows(Dataset):
        def __len__(self):
            return len(self.rows)

        def __getitem__(self, index):
            return self.rows[index]


    class Listed(Rows):
        def __init__(self):
            self.rows = [path.name for path in FOLDER.iterdir()]


    class Read(Rows):
        def __init__(self):
            with open(FOLDER / "a.txt") as text:
                self.rows = text.read().split()


    class Sound(Rows):
        def __init__(self):
            names = sorted(path.name for path in FOLDER.iterdir())
            known = {kind: n for n, kind in enumerate(sorted(set("fedcba")))}
            text = (FOLDER / "a.txt").read_text(encoding="utf-8")
            self.rows = [names, known, (FOLDER / "plain.txt").read_text(), text]
    """

SUITE = """
    import pytest
    from data import FOLDER, Listed, Read, Sound

    FOLDER.mkdir(exist_ok=True)
    for name in "abc":
        (FOLDER / f"{name}.txt").write_text("Zürich", encoding="utf-8")
    (FOLDER / "plain.txt").write_text("Bern", encoding="utf-8")


    @pytest.fixture(params=[Listed, Read, Sound], ids=lambda kind: kind.__name__)
    def dl_make_dataset(request):
        return request.param


    @pytest.fixture
    def dl_loader_kwargs():
        return {"batch_size": 4, "collate_fn": list}


    @pytest.mark.dl_portable
    def test_portable():
        pass
    """


@pytest.fixture(scope="module")
def session(run: Runner) -> Session:
    options = ("--dl-num-workers=0", "--dl-report=report.json")
    return run({"test_portable.py": SUITE, "data.py": DATA}, *options)


def words(session: Session, kind: str) -> str:
    return one_line(session.tests[f"test_portable[{kind}-w0]"].words)


def test_what_is_said_of_each(session) -> None:
    assert session.outcomes == {
        "test_portable[Listed-w0]": "failed",
        "test_portable[Read-w0]": "failed" if sys.version_info < (3, 15) else "passed",
        "test_portable[Sound-w0]": "passed",
    }, session.text


@pytest.mark.parametrize(
    ("kind", "code", "line", "end"),
    [
        ("Listed", "listing-order", "FOLDER.iterdir()]", "got them in reverse"),
        ("Read", "default-encoding", "open(", "read as cp1252 instead of utf-8"),
    ],
)
def test_the_line_is_named(session, kind, code, line, end) -> None:
    if kind == "Read" and sys.version_info >= (3, 15):
        pytest.skip("UTF-8 is the default everywhere")
    said = words(session, kind)
    assert f"error {code}: data.py:{line_of(DATA, line)} [w0]" in said
    assert end in said


def test_nothing_is_left_behind(session) -> None:
    assert session.left_processes == ()
    assert session.left_files == ()


def test_the_perturbed_pass_is_no_run_of_the_report(session) -> None:
    assert session.report is not None
    for pipeline in session.report["pipelines"]:
        assert {run["purpose"] for run in pipeline["runs"]} <= {"content", "timed"}
