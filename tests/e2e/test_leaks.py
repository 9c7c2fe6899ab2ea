"""dl_no_leaks: what each epoch leaves is told with the line that made it."""

from __future__ import annotations

import pytest

from .conftest import Runner, Session, line_of, one_line

SOURCE = """
    import tempfile
    from pathlib import Path

    import pytest
    from torch.utils.data import Dataset

    class Scratch(Dataset):
        folder = None

        def __len__(self):
            return 8

        def __getitem__(self, index):
            return len(list(Path(self.made()).iterdir()))

        def made(self):
            return tempfile.mkdtemp()

    class Once(Scratch):
        def made(self):
            self.folder = self.folder or tempfile.TemporaryDirectory()
            return self.folder.name

    @pytest.mark.dl_no_leaks
    class TestScratch:
        @pytest.fixture
        def dl_make_dataset(self):
            return Scratch

        def test_leaves(self):
            pass

    @pytest.mark.dl_no_leaks
    class TestOnce:
        @pytest.fixture
        def dl_make_dataset(self):
            return Once

        def test_leaves(self):
            pass
    """


@pytest.fixture(scope="module")
def session(run: Runner) -> Session:
    return run({"test_it.py": SOURCE}, "--dl-num-workers=0", "--dl-report=report.json")


def test_a_folder_for_each_sample(session: Session) -> None:
    test = session.tests["TestScratch test_leaves[w0]"]
    place = f"test_it.py:{line_of(SOURCE, 'return tempfile.mkdtemp()')}"
    assert test.outcome == "failed"
    assert one_line(test.words).startswith(
        "test_it.py::TestScratch::test_leaves under w0: 1 error error leaked-file: "
        f"{place} [w0] expected 0 more temporary files after a full epoch, an early break and an "
        "exception, got 8 in each of 3 rounds: "
    ), test.words


def test_a_folder_that_goes_with_its_dataset(session: Session) -> None:
    assert session.tests["TestOnce test_leaves[w0]"].outcome == "passed"
