"""A part of ``benchmarks/faults.py``: faults of workers are told, and a session goes on."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from .conftest import Runner, Session, line_of, needs_fork

pytestmark = needs_fork

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
FAULTY = BENCHMARKS / "faulty.py"

SUITE = """
    import pytest
    from faulty import *

    pytestmark = pytest.mark.dl_matrix(start_methods="fork", num_workers=2)


    class Tested:
        kind, when, arguments = Sound, "first", {}

        @pytest.fixture
        def dl_make_dataset(self):
            return lambda: self.kind(self.when)

        @pytest.fixture
        def dl_loader_kwargs(self):
            return {"batch_size": 2, **self.arguments}

        def test_it(self): ...


    class TestExits(Tested):
        kind = Exits1

    class TestCrashes(Tested):
        kind = Segfaults

    class TestChanges(Tested):
        kind = RaisesTwoArguments

    class TestStartsProcesses(Tested):
        kind = StartsProcesses

    class TestLoops(Tested):
        kind = LoopsInC

    class TestShouts(Tested):
        kind = Shouts

    class TestDiesLater(Tested):
        kind, when, arguments = Killed, "later", {"persistent_workers": True}

        @pytest.mark.dl_complete
        def test_it(self): ...

    class TestFollowing(Tested):
        def test_it(self, dl_run):
            assert dl_run.outcome == "ok"
    """


@pytest.fixture(scope="module")
def session(run: Runner) -> Session:
    files = {"test_it.py": SUITE, "faulty.py": FAULTY.read_text(encoding="utf-8")}
    return run(files, "--dl-timeout=2", "--dl-report=report.json")


def place(words: str) -> str:
    return f"faulty.py:{line_of(FAULTY.read_text(encoding='utf-8'), words)}"


@pytest.mark.parametrize(
    ("name", "code", "culprit", "words"),
    [
        (
            "TestExits",
            "worker-died",
            place("sys.exit(1)"),
            "it left through SystemExit: 1 in fault at ",
        ),
        (
            "TestCrashes",
            "worker-died",
            place("ctypes.string_at(0)"),
            "a worker was ended by SIGSEGV (signal 11) ",
        ),
        (
            "TestChanges",
            "exception-changed",
            place("def __init__(self, path: str, line: int)"),
            "it arrives as RuntimeError, which `except TwoArguments` does not catch: ",
        ),
        (
            "TestStartsProcesses",
            "nested-processes",
            place("with multiprocessing.Pool(1)"),
            "daemonic processes are not allowed to have children",
        ),
        ("TestLoops", "hang", place("re.match(r"), "it stood at faulty.py:"),
        ("TestDiesLater", "worker-died", "dataset[4, 5]", "was ended by SIGKILL (signal 9) "),
    ],
)
def test_a_fault_is_told(session: Session, name: str, code: str, culprit: str, words: str) -> None:
    findings = session.pipeline(f"test_it.py::{name}::test_it")["findings"]
    (finding,) = (f for f in findings if f["severity"] == "error")
    assert (finding["code"], finding["culprit"]) == (code, culprit)
    assert words in finding["message"]
    assert session.tests[f"{name} test_it[fork-w2]"].outcome == "failed"


def test_a_hundred_megabytes_on_standard_error_are_no_fault(session: Session) -> None:
    assert session.outcomes["TestShouts test_it[fork-w2]"] == "passed"
    assert len(session.text) < 2_000_000


def test_the_session_goes_on_and_nothing_is_left(session: Session) -> None:
    assert session.outcomes["TestFollowing test_it[fork-w2]"] == "passed"
    assert session.status == pytest.ExitCode.TESTS_FAILED
    assert "INTERNALERROR" not in session.text
    assert (session.left_processes, session.left_files) == ((), ())


@pytest.fixture(scope="module")
def faults() -> ModuleType:
    spec = importlib.util.spec_from_file_location("faults", BENCHMARKS / "faults.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["faults"] = module
    spec.loader.exec_module(module)
    return module


def test_a_session_that_is_asked_to_end_leaves_nothing(faults: ModuleType) -> None:
    where = faults.Combination("fork", 1, False, "first")
    assert faults.survived(faults.FAULTS["sigterm"], where, None).wrong == []


def test_a_full_shared_memory_is_told_and_left_empty(faults: ModuleType) -> None:
    if not faults.can_have_small_shared_memory():
        pytest.skip("this user may not mount a shared memory")
    where = faults.Combination("fork", 1, False, "first")
    assert faults.survived(faults.FAULTS["full-shm"], where, None).wrong == []


def test_every_fault_has_its_combinations(faults: ModuleType) -> None:
    counts = {name: len(list(faults.combinations(fault))) for name, fault in faults.FAULTS.items()}
    assert counts["exit-0"] == 24
    assert counts["lock"] == 8
    assert counts["init"] == 6
    assert min(counts.values()) > 0
