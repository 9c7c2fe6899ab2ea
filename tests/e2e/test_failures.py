"""Runs that hang, die or lose a batch: told with their place, and nothing else is lost."""

from __future__ import annotations

import pytest

from .conftest import PARTS, Runner, Session, line_of, needs_fork, one_line

pytestmark = needs_fork

SUITE = """
    import pytest
    from parts import *


    class TestSleepsInWorker:
        @pytest.fixture
        def dl_make_dataset(self):
            return SleepsInWorker

        @pytest.mark.dl_deterministic
        def test_it(self): ...


    class TestSleepsInParent:
        @pytest.fixture
        def dl_make_dataset(self):
            return SleepsAnywhere

        @pytest.mark.dl_matrix(num_workers=0)
        def test_it(self): ...


    class TestDies:
        @pytest.fixture
        def dl_make_dataset(self):
            return KillsWorker

        @pytest.mark.dl_deterministic
        @pytest.mark.dl_matrix(num_workers=2)
        def test_it(self): ...


    class TestUnsendable:
        @pytest.fixture
        def dl_source_loader(self):
            return lambda: DataLoader(Numbers(), collate_fn=with_a_lambda)

        @pytest.mark.dl_matrix(num_workers=2)
        def test_it(self): ...


    class TestUnpicklable:
        @pytest.fixture
        def dl_make_dataset(self):
            return HoldsLambda

        @pytest.mark.dl_matrix(start_methods=["fork", "spawn"], num_workers=2)
        @pytest.mark.dl_picklable
        def test_it(self): ...


    class TestFollowing:
        @pytest.fixture
        def dl_make_dataset(self):
            return Numbers

        def test_it(self, dl_run):
            assert dl_run.outcome == "ok"
    """

TIMEOUT_S = 3


@pytest.fixture(scope="module")
def session(run: Runner) -> Session:
    return run(
        {"test_it.py": SUITE},
        f"--dl-timeout={TIMEOUT_S}",
        "--dl-start-methods=fork",
        "--dl-report=report.json",
    )


def only_finding(session: Session, name: str) -> tuple[str, str, str]:
    """Code, culprit and message of a class's one finding that is an error."""
    findings = session.pipeline(f"test_it.py::{name}::test_it")["findings"]
    (finding,) = (f for f in findings if f["severity"] == "error")
    return finding["code"], finding["culprit"], finding["message"]


def test_a_worker_that_sleeps_for_ever(session: Session) -> None:
    line = line_of(PARTS.read_text(encoding="utf-8"), "# the worker's line")
    assert only_finding(session, "TestSleepsInWorker") == (
        "hang",
        f"parts.py:{line}",
        (
            "expected the next batch in time, but no batch for 3 s after 5 batches; it stood at "
            f"parts.py:{line} in __getitem__, `time.sleep(3600)  # the worker's line`; with 0 "
            "workers it runs to its end"
        ),
    )
    assert session.outcomes["TestSleepsInWorker test_it[w0]"] == "passed"
    assert session.outcomes["TestSleepsInWorker test_it[fork-w2]"] == "failed"


def test_a_parent_that_sleeps_for_ever(session: Session) -> None:
    line = line_of(PARTS.read_text(encoding="utf-8"), "# the parent's line")
    assert only_finding(session, "TestSleepsInParent") == (
        "hang",
        f"parts.py:{line}",
        (
            "expected the next batch in time, but no batch for 3 s after 5 batches; it stood at "
            f"parts.py:{line} in __getitem__, `time.sleep(3600)  # the parent's line`"
        ),
    )


@pytest.mark.parametrize("name", ["TestSleepsInWorker", "TestSleepsInParent"])
def test_a_hang_is_a_run_in_the_report(session: Session, name: str) -> None:
    run = session.pipeline(f"test_it.py::{name}::test_it")["runs"][-1]
    assert (run["outcome"], run["reason"], run["batches"]) == ("hung", "no batch for 3 s", 5)


@pytest.mark.parametrize(
    "name", ["TestSleepsInWorker test_it[fork-w2]", "TestSleepsInParent test_it[w0]"]
)
def test_a_hang_ends_soon_after_the_deadline(session: Session, name: str) -> None:
    assert TIMEOUT_S <= session.tests[name].seconds < TIMEOUT_S + 10


def test_a_worker_that_is_killed(session: Session) -> None:
    code, culprit, message = only_finding(session, "TestDies")
    assert (code, culprit) == ("worker-died", "dataset[5]")
    assert message.startswith(
        "expected all workers to live to the end of the epoch, but a worker was ended by SIGKILL "
        "(signal 9) "
    )
    assert "; worker 1 was making batch 5, of the indices 5; with 0 workers " in message
    assert session.runs("test_it.py::TestDies::test_it")["fork-w2"]["outcome"] == "died"


def test_a_batch_that_cannot_be_sent(session: Session) -> None:
    code, culprit, message = only_finding(session, "TestUnsendable")
    assert (code, culprit) == ("unsendable-batch", "batch['undo']")
    assert message.startswith(
        "expected every batch to be sent, but batch['undo'] is a lambda that a worker could not "
        "pickle: "
    )
    assert message.endswith("; the loader then waits for it for ever")


def test_a_dataset_that_cannot_be_pickled(session: Session) -> None:
    line = line_of(PARTS.read_text(encoding="utf-8"), "self.steps = [abs, lambda")
    code, culprit, message = only_finding(session, "TestUnpicklable")
    assert (code, culprit) == ("unpicklable", "dataset.steps[1]")
    assert message.startswith(
        "expected everything to travel to a spawn worker, but dataset.steps[1] is a lambda "
        f"(defined at parts.py:{line}): "
    )
    assert session.outcomes["TestUnpicklable test_it[fork-w2]"] == "passed"


def test_the_session_goes_on(session: Session) -> None:
    assert session.outcomes["TestFollowing test_it[w0]"] == "passed"
    assert session.outcomes["TestFollowing test_it[fork-w2]"] == "passed"
    assert session.status == pytest.ExitCode.TESTS_FAILED
    assert "INTERNALERROR" not in session.text


def test_no_process_and_no_file_is_left(session: Session) -> None:
    assert session.left_processes == ()
    assert [name for name in session.left_files if name.startswith("pytest-dataloader-")] == []


def test_the_terminal_says_the_same(session: Session) -> None:
    for name in ("TestSleepsInWorker", "TestSleepsInParent", "TestDies", "TestUnsendable"):
        assert one_line(only_finding(session, name)[2]) in one_line("\n".join(session.section))
