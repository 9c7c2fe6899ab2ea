"""The same results however a session is run: plain, under xdist, with true starts."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Runner, Session, configuration, needs_fork

pytestmark = needs_fork

SUITE = """
    import pytest
    from parts import *


    class TestSound:
        @pytest.fixture
        def dl_make_dataset(self):
            return Numbers

        @pytest.mark.dl_deterministic
        @pytest.mark.dl_matrix(start_methods="fork")
        def test_it(self): ...

        def test_none_of_ours(self): ...


    class TestNoise:
        @pytest.fixture
        def dl_make_dataset(self):
            return Noise

        @pytest.mark.dl_matrix(start_methods="fork")
        @pytest.mark.dl_deterministic
        def test_it(self): ...

        @pytest.mark.dl_matrix(start_methods="fork", num_workers=2)
        @pytest.mark.dl_deterministic
        @pytest.mark.dl_allow("not-repeatable", reason="noise")
        def test_allowed(self): ...


    class TestUnpicklable:
        @pytest.fixture
        def dl_make_dataset(self):
            return HoldsLambda

        @pytest.mark.dl_picklable
        @pytest.mark.dl_matrix(start_methods="spawn", num_workers=2)
        def test_it(self): ...

        @pytest.mark.skip(reason="not today")
        @pytest.mark.dl_picklable
        def test_skipped(self): ...
    """


def findings(session: Session) -> set[tuple[Any, ...]]:
    assert session.report is not None, session.text
    return {
        (
            pipeline["id"],
            finding["code"],
            finding["severity"],
            finding["culprit"],
            finding["advice"],
            finding.get("expected", False),
            tuple(sorted(configuration(c) for c in finding["configurations"])),
        )
        for pipeline in session.report["pipelines"]
        for finding in pipeline["findings"]
    }


# True starts, as there are no passes for rates then; under fork it is all the same.
OPTIONS = (
    "--dl-true-starts",
    "--dl-report=report.json",
    "--dl-check=parts:NOT_A_PIPELINE",
    ".",
)


@pytest.fixture(scope="module")
def plain(run: Runner) -> Session:
    return run({"test_it.py": SUITE}, *OPTIONS)


@pytest.fixture(scope="module", params=["-n0", "-n2"])
def under_xdist(run: Runner, request: pytest.FixtureRequest) -> Session:
    pytest.importorskip("xdist")
    return run({"test_it.py": SUITE}, request.param, *OPTIONS)


def test_outcomes_are_the_same(plain: Session, under_xdist: Session) -> None:
    assert plain.outcomes == under_xdist.outcomes
    assert plain.status == under_xdist.status
    assert set(plain.outcomes.values()) == {"passed", "failed", "skipped", "xfailed"}


def test_findings_are_the_same(plain: Session, under_xdist: Session) -> None:
    assert findings(plain) == findings(under_xdist)
    assert {finding[1] for finding in findings(plain)} == {"not-repeatable", "unpicklable"}


def test_counts_are_the_same(plain: Session, under_xdist: Session) -> None:
    assert plain.report is not None
    assert under_xdist.report is not None
    assert plain.report["checks"] == under_xdist.report["checks"]


def test_the_section_is_printed_once(under_xdist: Session) -> None:
    heads = [line for line in under_xdist.text.splitlines() if "= dataloader report =" in line]
    assert len(heads) == 1


def test_nothing_is_left(plain: Session, under_xdist: Session) -> None:
    for session in (plain, under_xdist):
        assert session.left_processes == ()
        assert [name for name in session.left_files if name.startswith("pytest-data")] == []


# True and warm starts ------------------------------------------------------------------------

STARTS = """
    import parts
    import pytest


    class Scaled(parts.Numbers):
        def __getitem__(self, index):
            return super().__getitem__(index) * parts.NOT_A_PIPELINE


    @pytest.fixture
    def dl_loader_kwargs():
        return {"batch_size": 8}


    @pytest.mark.dl_deterministic
    class TestSound:
        @pytest.fixture
        def dl_make_dataset(self):
            return Scaled

        def test_it(self): ...


    @pytest.mark.dl_deterministic
    class TestGlobal:
        @pytest.fixture
        def dl_make_dataset(self, monkeypatch):
            monkeypatch.setattr(parts, "NOT_A_PIPELINE", 5)
            return Scaled

        def test_it(self): ...
    """


@pytest.fixture(scope="module")
def warm(run: Runner) -> Session:
    return run_starts(run)


@pytest.fixture(scope="module")
def true(run: Runner) -> Session:
    return run_starts(run, "--dl-true-starts")


def run_starts(run: Runner, *options: str) -> Session:
    return run(
        {"test_it.py": STARTS},
        "--dl-report=report.json",
        "--dl-seeds=0",
        "--dl-start-methods=fork,spawn",
        "--dl-num-workers=2",
        *options,
    )


GLOBAL, SOUND = (f"test_it.py::Test{name}::test_it" for name in ("Global", "Sound"))


def starts(session: Session, pipeline: str) -> dict[tuple[str, int], str]:
    runs = session.pipeline(pipeline)["runs"]
    return {(configuration(r), r["repeat"]): r["start"] for r in runs if r["purpose"] == "content"}


def test_true_starts_say_the_same(warm: Session, true: Session) -> None:
    assert warm.outcomes == true.outcomes
    assert findings(warm) == findings(true)
    told = {(finding[0], finding[1]) for finding in findings(warm)}
    assert told == {(GLOBAL, "differs-by-start-method")}
    assert {finding[3] for finding in findings(warm)} == {"parts.NOT_A_PIPELINE"}


def test_each_run_says_how_it_was_started(warm: Session, true: Session) -> None:
    """The second pipeline of the same modules shares the first one's true start."""
    truly = {(config, n): "true" for config in ("fork-w2", "spawn-w2") for n in (0, 1)}
    assert starts(warm, SOUND) == truly | {("spawn-w2", 1): "warm"}
    assert starts(warm, GLOBAL) == truly | {("spawn-w2", 0): "warm", ("spawn-w2", 1): "warm"}
    assert starts(true, SOUND) == starts(true, GLOBAL) == truly


def test_both_starts_give_the_same_content(warm: Session, true: Session) -> None:
    for session in (warm, true):
        runs = session.pipeline(GLOBAL)["runs"]
        digests = {r["digest"] for r in runs if configuration(r) == "spawn-w2"}
        assert len(digests) == 1
    assert warm.runs(GLOBAL)["spawn-w2"]["digest"] in digests
