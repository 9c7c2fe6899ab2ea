"""The report: the terminal's section, the JSON file, the hook; and a session leaves nothing."""

from __future__ import annotations

import platform
import re
import time

import pytest

from .conftest import Runner, Session, needs_fork, shared_memory

pytestmark = needs_fork

FIGURE = re.compile(r"[\d.,e+-]+")


# The terminal --------------------------------------------------------------------------------


def test_the_header_names_the_matrix(run: Runner) -> None:
    files = {"test_plain.py": "def test_plain(): pass"}
    asked = run(files, "--dl-num-workers=1,4", ini="dl_start_methods = spawn")
    assert "dataloader: start methods spawn, workers 1,4" in asked.text.splitlines()
    assert "dataloader: " not in run(files).text


def test_a_row_a_configuration(sound: Session) -> None:
    head, *rows = [re.split(r"\s{2,}", line) for line in sound.section[:6]]
    assert head == [
        "configuration",
        "passed",
        "failed",
        "skipped",
        "first batch",
        "steady rate",
        "memory/worker",
        "speed-up",
    ]
    assert [row[:4] for row in rows] == [
        ["w0", "4", "0", "1"],
        ["fork-w1-persistent-prefetch3", "1", "0", "0"],
        ["fork-w1-restarted-prefetch3", "1", "0", "0"],
        ["fork-w2", "3", "0", "1"],
        ["spawn-w2", "3", "0", "1"],
    ]


def test_the_rows_hold_figures_with_their_units(sound: Session) -> None:
    rows = {row[0]: row[4:] for row in (re.split(r"\s{2,}", line) for line in sound.section[1:6])}
    first, rate, memory, speedup = rows["w0"]
    assert [memory, speedup] == ["-", "-"]
    for name in ("fork-w2", "spawn-w2"):
        first, rate, memory, speedup = rows[name]
        assert re.fullmatch(rf"{FIGURE.pattern} s", first)
        assert re.fullmatch(rf"{FIGURE.pattern} batches/s", rate)
        assert re.fullmatch(rf"{FIGURE.pattern} MiB", memory)
        assert re.fullmatch(rf"{FIGURE.pattern}x", speedup)


def test_the_counts_are_told(sound: Session) -> None:
    start = next(i for i, line in enumerate(sound.section) if line.startswith("checks: "))
    assert sound.section[start:] == [
        "checks: 12 ran, 3 skipped, 0 expected to fail, 0 not judged",
        "  skipped by the tests: 3 x not today",
        "JSON report: report.json",
    ]


# The JSON report -----------------------------------------------------------------------------


def test_the_shape_of_the_report(sound: Session) -> None:
    report = sound.report
    assert report is not None
    assert report["schema"] == "pytest-dataloader/1"
    assert {"os", "python", "torch", "cpus", "default_start_method"} <= set(report["environment"])
    assert [pipeline["id"] for pipeline in report["pipelines"]] == [
        "test_sound.py::test_config",
        "test_sound.py::test_run",
        "test_sound.py::test_conforms",
        "test_sound.py::test_axes",
        "test_sound.py::test_skipped",
    ]
    assert all({"id", "runs", "findings"} <= set(pipeline) for pipeline in report["pipelines"])
    assert report["checks"]["skipped_by_user"] == {"not today": 3}


def test_the_shape_of_a_run(sound: Session) -> None:
    runs = sound.runs("test_sound.py::test_conforms")
    assert list(runs) == ["w0", "fork-w2", "spawn-w2"]
    for run in runs.values():
        assert (run["outcome"], run["reason"]) == ("ok", None)
        assert (run["samples"], run["batches"]) == (16, 4)
        assert run["startup_s"] > 0
        assert run["batches_per_s"] > 0
    assert runs["w0"]["worker_unique_bytes"] is None
    assert runs["spawn-w2"]["worker_unique_bytes"] > 2**20
    assert runs["w0"]["notes"] == ["timeout is left out: there are no workers"]


def test_the_same_content_has_the_same_digest(sound: Session) -> None:
    digests = {run["digest"] for run in sound.runs("test_sound.py::test_run").values()}
    assert len(digests) == 1
    assert None not in digests


def test_a_run_is_the_same_in_every_test_that_shares_it(sound: Session) -> None:
    shared = [sound.runs(f"test_sound.py::{name}") for name in ("test_run", "test_conforms")]
    assert shared[0]["spawn-w2"]["startup_s"] == shared[1]["spawn-w2"]["startup_s"]


# The hook, and the progress line -------------------------------------------------------------

SLOW = {
    "conftest.py": """
        def pytest_dl_report(report, config):
            yield f"mine: {len(report.pipelines)} pipeline, {report.ran} check"
            yield f"mine: {report.environment['python']} in {config.rootpath.name}"
    """,
    "quiet.py": """
        def pytest_dl_report():
            return None
    """,
    "test_slow.py": """
        import time

        import parts
        import pytest


        class Slow(parts.Numbers):
            def __getitem__(self, index):
                time.sleep(0.4)
                return super().__getitem__(index)


        @pytest.fixture
        def dl_make_dataset():
            return lambda: Slow(5)


        def test_it(dl_run):
            assert dl_run.outcome == "ok"
    """,
}


@pytest.fixture(scope="module", params=["", "-q"], ids=["loud", "quiet"])
def slow(run: Runner, request: pytest.FixtureRequest) -> Session:
    options = [request.param] if request.param else []
    return run(SLOW, "-pquiet", "--color=yes", "--dl-num-workers=0", *options)


def test_the_progress_line_is_not_for_quiet_sessions(
    slow: Session, request: pytest.FixtureRequest
) -> None:
    loud = request.node.callspec.id == "loud"
    assert ("[test_slow.py::test_it w0: iterate, " in slow.text) is loud


def test_a_users_hook_adds_its_lines_after_ours(slow: Session) -> None:
    plain = re.sub(r"\x1b\[[\d;]*m", "", slow.text).splitlines()
    counts = plain.index("checks: 1 ran, 0 skipped, 0 expected to fail, 0 not judged")
    python = platform.python_version()
    assert plain[counts + 1 : counts + 3] == [
        "mine: 1 pipeline, 1 check",
        f"mine: {python} in {slow.folder.name}",
    ]


# Nothing is left -----------------------------------------------------------------------------


def test_no_process_is_left(sound: Session) -> None:
    assert sound.left_processes == ()


def test_no_file_is_left(sound: Session) -> None:
    assert [name for name in sound.left_files if name.startswith("pytest-data")] == []


def test_no_shared_memory_is_left(sound: Session) -> None:
    deadline = time.monotonic() + 20  # what other programs share is gone by then
    while sound.left_memory & shared_memory() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not sound.left_memory & shared_memory()
