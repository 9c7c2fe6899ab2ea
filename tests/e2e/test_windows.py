"""What Windows has: no fork, no POSIX-only modules; everything else is judged all the same."""

from __future__ import annotations

import pytest

from .conftest import Runner, Session

# Found through PYTHONPATH by every process of the session, spawned workers included.
SITECUSTOMIZE = """
    import faulthandler
    import importlib.abc
    import multiprocessing
    import os
    import signal
    import sys

    ABSENT = {"fcntl", "grp", "pty", "pwd", "syslog", "termios", "tty"}
    OF_OS = ("fork", "forkpty", "getloadavg", "getuid", "killpg", "sched_getaffinity", "setsid")
    OF_SIGNAL = ("SIGALRM", "SIGHUP", "SIGURG", "SIGUSR1", "SIGUSR2", "pthread_kill")


    def stands_behind_a_check_of_the_platform():
        frame = sys._getframe()
        while frame is not None and not frame.f_code.co_filename.endswith("observe/rate.py"):
            frame = frame.f_back
        return frame is not None


    class Absent(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            if name in ABSENT and not stands_behind_a_check_of_the_platform():
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            return None


    sys.meta_path.insert(0, Absent())
    for name in ABSENT:
        sys.modules.pop(name, None)
    for name in OF_OS:
        os.__dict__.pop(name, None)
    for name in OF_SIGNAL:
        signal.__dict__.pop(name, None)
    faulthandler.__dict__.pop("register", None)
    multiprocessing.get_all_start_methods = lambda: ["spawn"]
    """

FILES = {
    "windows/sitecustomize.py": SITECUSTOMIZE,
    "test_it.py": """
        import multiprocessing
        import os

        import pytest
        from parts import Numbers


        @pytest.fixture
        def dl_make_dataset():
            return Numbers


        def test_as_on_windows():
            assert not hasattr(os, "fork")
            assert multiprocessing.get_all_start_methods() == ["spawn"]
            with pytest.raises(ModuleNotFoundError):
                import termios


        @pytest.mark.skipif(True, reason="not today")
        def test_skipped(dl_run): ...


        @pytest.mark.dl_matrix(start_methods="all", num_workers=2)
        def test_all(dl_config): ...
    """,
}


@pytest.fixture(scope="module")
def session(run: Runner) -> Session:
    import os

    inherited = os.environ.get("PYTHONPATH")
    path = os.pathsep.join(["windows", *([inherited] if inherited else [])])
    return run(
        FILES,
        "test_it.py",
        "--dl-check=parts:Numbers",
        "--dl-report=report.json",
        "--dl-seeds=0",
        "-k=check or not all",
        PYTHONPATH=path,
        deadline_s=200,
    )


def test_it_is_as_on_windows(session: Session) -> None:
    assert session.outcomes["test_as_on_windows"] == "passed", session.text


def test_all_that_there_is_passes(session: Session) -> None:
    judged = {n: o for n, o in session.outcomes.items() if n.startswith("check:")}
    assert {o for n, o in judged.items() if "fork" not in n} == {"passed"}, session.text
    assert {n.split()[1] for n in judged if "spawn" in n} >= {
        "runs[spawn-w2]",
        "picklability[spawn-w2]",
        "determinism[spawn-w2]",
        "spawning[spawn-w2]",
    }
    assert session.status == pytest.ExitCode.OK


def test_fork_is_skipped_with_its_reason(session: Session) -> None:
    test = session.tests["check:parts:Numbers runs[fork-w2]"]
    assert test.outcome == "skipped"
    assert test.words.startswith("fork is not available on ")
    run = session.runs("check:parts:Numbers")["fork-w2"]
    assert (run["outcome"], run["reason"]) == ("skipped", test.words)


def test_the_platforms_skips_are_counted_apart(session: Session) -> None:
    assert session.report is not None
    reason = session.tests["check:parts:Numbers runs[fork-w2]"].words
    lacking = [name for name in session.outcomes if "[fork" in name]
    checks = session.report["checks"]
    assert checks["skipped_by_platform"] == {reason: len(lacking)}
    assert checks["skipped_by_user"]["not today"] == 2
    assert f"  skipped by platform: {len(lacking)} x {reason}" in session.section


def test_every_start_was_a_true_one(session: Session) -> None:
    runs = session.pipeline("check:parts:Numbers")["runs"]
    assert {r["start"] for r in runs if r["start_method"] == "spawn"} == {"true"}


def test_nothing_is_left(session: Session) -> None:
    assert session.left_processes == ()
    assert [name for name in session.left_files if name.startswith("pytest-data")] == []
