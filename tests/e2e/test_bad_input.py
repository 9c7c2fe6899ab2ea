"""Bad input: one clean error that names its source and the valid values."""

from __future__ import annotations

import pytest

from pytest_dataloader.checks.catalogue import BY_NAME, FAMILIES

from .conftest import Runner, Session

NOTHING = {"test_plain.py": "def test_plain(): pass"}
METHODS = "fork, spawn, forkserver, all, default"
COUNTS = "valid: whole numbers from 0, such as 0,2"
CODES = f"The families are: {', '.join(FAMILIES)}. The codes are: {', '.join(BY_NAME)}."


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            "--dl-start-methods=fork,thread",
            f"--dl-start-methods: 'thread' is not a start method; valid: {METHODS}",
        ),
        (
            "--dl-start-methods=",
            f"--dl-start-methods: no start method given; valid: {METHODS}",
        ),
        ("--dl-num-workers=-1", f"--dl-num-workers: '-1' is not a worker count; {COUNTS}"),
        ("--dl-num-workers=1.5", f"--dl-num-workers: '1.5' is not a worker count; {COUNTS}"),
        ("--dl-num-workers=two", f"--dl-num-workers: 'two' is not a worker count; {COUNTS}"),
        ("--dl-seeds=-3", f"--dl-seeds: '-3' is not a seed; {COUNTS}"),
        (
            "--dl-timeout=soon",
            "--dl-timeout: 'soon' is not a time; valid: seconds above 0, such as 60",
        ),
        ("--dl-timeout=0", "--dl-timeout: '0' is not a time; valid: seconds above 0, such as 60"),
        (
            "--dl-select=hung",
            "--dl-select: 'hung' is neither a code nor a family; did you mean 'hang'? " + CODES,
        ),
        ("--dl-ignore=zzz", "--dl-ignore: 'zzz' is neither a code nor a family. " + CODES),
        ("--dl-report=.", "--dl-report: '.' is a folder; valid: a file's path"),
    ],
)
def test_a_wrong_option(run: Runner, option: str, message: str) -> None:
    session = run(NOTHING, option)
    assert session.words == one_error(message)
    assert session.status == pytest.ExitCode.USAGE_ERROR


def one_error(message: str) -> str:
    return f"ERROR: {message}"


@pytest.mark.parametrize(
    ("ini", "message"),
    [
        (
            "dl_start_methods = thread",
            f"the ini key dl_start_methods: 'thread' is not a start method; valid: {METHODS}",
        ),
        (
            "dl_num_workers = -1",
            f"the ini key dl_num_workers: '-1' is not a worker count; {COUNTS}",
        ),
        (
            "dl_true_starts = perhaps",
            (
                "the ini key dl_true_starts: 'perhaps' is neither yes nor no; valid: true, yes, 1, "
                "on, false, no, 0, off"
            ),
        ),
    ],
)
def test_a_wrong_ini_value(run: Runner, ini: str, message: str) -> None:
    session = run(NOTHING, ini=ini)
    assert session.words == one_error(message)
    assert session.status == pytest.ExitCode.USAGE_ERROR


def test_a_report_that_cannot_be_written(run: Runner) -> None:
    session = run(NOTHING, "--dl-report=no/such/folder/report.json")
    assert session.words == one_error(
        "--dl-report: 'no/such/folder/report.json' cannot be written: there is no folder "
        f"'{session.folder / 'no/such/folder'}'"
    )
    assert session.status == pytest.ExitCode.USAGE_ERROR


def test_explain_prints_the_page_and_exits(run: Runner) -> None:
    session = run(NOTHING, "--dl-explain=hang")
    assert session.text.startswith(f"hang (runs): {BY_NAME['hang'].title}\n")
    assert session.tests == {}
    assert session.status == pytest.ExitCode.OK


def test_explain_of_an_unknown_code(run: Runner) -> None:
    session = run(NOTHING, "--dl-explain=unknown")
    assert session.words == one_error(
        f"--dl-explain: 'unknown' is not a code. The codes are: {', '.join(BY_NAME)}."
    )
    assert session.status == pytest.ExitCode.USAGE_ERROR


# Markers -------------------------------------------------------------------------------------

MARKERS = """
    import unittest

    import pytest


    @pytest.fixture
    def dl_dataset():
        return [0.0, 1.0, 2.0]


    @pytest.mark.dl_picklable(max_bytes="1 MB")
    def test_picklable(): ...


    @pytest.mark.dl_deterministic(across=["seeds"])
    def test_deterministic(): ...


    @pytest.mark.dl_deterministic(seed=[0])
    def test_misnamed(): ...


    @pytest.mark.dl_throughput
    def test_throughput(): ...


    @pytest.mark.dl_throughput(min_speedup=-1)
    def test_speedup(): ...


    @pytest.mark.dl_no_recursive_spawn(script="nosuch.py")
    def test_script(): ...


    @pytest.mark.dl_matrix(start_methods=["thread"])
    def test_matrix(): ...


    @pytest.mark.dl_matrix(num_workers=-2)
    def test_workers(): ...


    @pytest.mark.dl_allow("hang")
    def test_allow(): ...


    @pytest.mark.dl_allow("hangs", reason="it does")
    def test_allow_unknown(): ...


    @pytest.mark.dl_conforms(skip=["zzz"])
    def test_conforms(): ...


    @pytest.mark.dl_matrix(num_workers=0)
    def test_sound(dl_loader):
        assert len(list(dl_loader)) == 3


    class TestUnittest(unittest.TestCase):
        @pytest.mark.dl_complete
        def test_unittest(self): ...


    class TestMethods:
        @classmethod
        @pytest.mark.dl_complete
        def test_of_class(cls): ...

        @staticmethod
        @pytest.mark.dl_complete
        def test_static(): ...


    def test_none_of_ours(): ...
    """


@pytest.fixture(scope="module")
def markers(run: Runner) -> Session:
    return run({"test_it.py": MARKERS}, "--dl-num-workers=0")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "test_picklable",
            "dl_picklable: max_bytes must be a whole number above 0 (bytes); got '1 MB'",
        ),
        (
            "test_deterministic",
            (
                "dl_deterministic: across must be some of 'runs', 'start_methods', 'num_workers'; "
                "got ['seeds']"
            ),
        ),
        (
            "test_misnamed",
            (
                "dl_deterministic: got an unexpected keyword argument 'seed'; its arguments are: "
                "seeds, across"
            ),
        ),
        (
            "test_throughput",
            (
                "dl_throughput: at least one budget must be given: min_batches_per_s, "
                "min_samples_per_s, min_speedup, max_startup_s, or step_ms with max_stall"
            ),
        ),
        (
            "test_speedup",
            (
                "dl_throughput: min_speedup must be a number above 0 (times the rate of 0 "
                "workers); "
                "got -1"
            ),
        ),
        (
            "test_matrix",
            f"dl_matrix: start_methods must be some of {METHODS}; got ['thread']",
        ),
        (
            "test_workers",
            "dl_matrix: num_workers must be whole numbers from 0, such as [0, 2]; got -2",
        ),
        (
            "test_allow",
            (
                "dl_allow: missing a required argument: 'reason'; its arguments are: code, reason, "
                "start_methods, num_workers"
            ),
        ),
        (
            "test_allow_unknown",
            f"dl_allow: code must be one of {', '.join(BY_NAME)}; got 'hangs'",
        ),
        (
            "test_conforms",
            "dl_conforms: skip: 'zzz' is neither a code nor a family. " + CODES,
        ),
    ],
)
def test_a_wrong_marker_is_one_clean_error(markers: Session, name: str, message: str) -> None:
    test = markers.tests[f"{name}[wrong-marker]"]
    assert (test.outcome, test.words) == (
        "error",
        f"test_it.py::{name}[wrong-marker]: {message}",
    )


def test_a_marker_that_nothing_reads_is_an_error(markers: Session) -> None:
    test = markers.tests["TestUnittest test_unittest"]
    assert (test.outcome, test.words) == (
        "failed",
        (
            "test_it.py::TestUnittest::test_unittest: dl_complete: nothing would be checked, as "
            "this test takes no parameters; put the marker on a function or on a method of a "
            "plain class, not of a unittest.TestCase, in the source and not during collection"
        ),
    )


def test_methods_of_classes_take_part(markers: Session) -> None:
    assert markers.tests["TestMethods test_of_class[w0]"].outcome == "passed"
    assert markers.tests["TestMethods test_static[w0]"].outcome == "passed"


def test_a_script_that_is_not_there(markers: Session) -> None:
    test = markers.tests["test_script[spawn]"]
    assert (test.outcome, test.words) == (
        "error",
        (
            "test_it.py::test_script[spawn]: dl_no_recursive_spawn: script must be the path of a "
            "Python file, from the working directory or the test's folder; there is no file "
            "'nosuch.py'"
        ),
    )


def test_a_wrong_marker_costs_nothing_else(markers: Session) -> None:
    assert markers.outcomes["test_sound[w0]"] == "passed"
    assert markers.outcomes["test_none_of_ours"] == "passed"
    assert "INTERNALERROR" not in markers.text


# No data -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        ["--dl-report=report.json"],
        ["--dl-check=parts:Numbers", "-k=nothing_of_this_name"],
        ["--dl-num-workers=3", "-k=nothing_of_this_name"],
    ],
    ids=["no test of ours", "no target left", "no test left"],
)
def test_an_empty_selection_is_no_data(run: Runner, options: list[str]) -> None:
    session = run(NOTHING, *options)
    lines = [line for line in session.section if not line.startswith("JSON report")]
    assert lines == ["no data: no test of this session used a pipeline"]
    assert "INTERNALERROR" not in session.text


def test_an_empty_report_says_that_nothing_ran(run: Runner) -> None:
    session = run(NOTHING, "--dl-report=report.json")
    assert session.report is not None
    assert session.report["pipelines"] == []
    assert session.report["checks"]["ran"] == 0
