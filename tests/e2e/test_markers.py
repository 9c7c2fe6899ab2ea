"""Markers: each one passes a sound pipeline, fails a faulty one, and tells all findings."""

from __future__ import annotations

import pytest

from .conftest import Runner, Session, line_of, needs_fork, one_line

pytestmark = needs_fork

BAD = """
    import subprocess
    import sys
    import time

    from parts import Noise

    subprocess.run([sys.executable, "-c", ""])


    class SlowNoise(Noise):
        def __getitem__(self, index):
            time.sleep(0.02)
            return super().__getitem__(index)
    """

SUITE = """
    import pytest
    from parts import Noise, Numbers

    FORK = {"start_methods": ["fork"], "num_workers": [2]}
    SPAWN = {"start_methods": ["spawn"], "num_workers": [2]}


    class TestSound:
        @pytest.fixture
        def dl_make_dataset(self):
            return Numbers

        @pytest.fixture
        def dl_loader_kwargs(self):
            return {"batch_size": 4}

        @pytest.mark.dl_matrix(**SPAWN)
        @pytest.mark.dl_picklable(max_bytes=100_000)
        def test_picklable(self): ...

        @pytest.mark.dl_matrix(**FORK)
        @pytest.mark.dl_deterministic(seeds=[3], across=["runs", "num_workers"])
        def test_deterministic(self): ...

        @pytest.mark.dl_matrix(**FORK)
        @pytest.mark.dl_no_recursive_spawn
        def test_no_recursive_spawn(self): ...

        @pytest.mark.dl_no_recursive_spawn(script="good_script.py")
        def test_script(self): ...

        @pytest.mark.dl_matrix(**FORK)
        @pytest.mark.dl_throughput(
            min_batches_per_s=1, min_samples_per_s=1, min_speedup=1e-6, max_startup_s=60
        )
        def test_throughput(self): ...

        @pytest.mark.dl_matrix(**FORK)
        @pytest.mark.dl_conforms
        def test_conforms(self): ...

        @pytest.mark.dl_matrix(**FORK)
        @pytest.mark.dl_deterministic
        @pytest.mark.dl_allow("not-repeatable", reason="it was noisy once")
        def test_gone(self): ...


    class TestNoise:
        @pytest.fixture
        def dl_make_dataset(self):
            return Noise

        @pytest.fixture
        def dl_loader_kwargs(self):
            return {"batch_size": 4}

        @pytest.mark.dl_matrix(**FORK)
        @pytest.mark.dl_deterministic
        def test_deterministic(self): ...

        @pytest.mark.dl_matrix(**FORK)
        @pytest.mark.dl_conforms
        def test_conforms(self): ...

        @pytest.mark.dl_matrix(**FORK)
        @pytest.mark.dl_conforms(skip=["determinism"])
        def test_skips_a_family(self): ...

        @pytest.mark.dl_matrix(**FORK)
        @pytest.mark.dl_deterministic
        @pytest.mark.dl_allow("not-repeatable", reason="noise is what it is for")
        def test_allowed(self): ...

        @pytest.mark.dl_matrix(**FORK)
        @pytest.mark.dl_deterministic
        @pytest.mark.dl_allow("not-repeatable", reason="elsewhere", start_methods=["spawn"])
        def test_allowed_elsewhere(self): ...

        @pytest.mark.dl_matrix(**FORK)
        @pytest.mark.dl_deterministic
        def test_body_fails_too(self):
            assert 1 == 2


    @pytest.mark.dl_no_recursive_spawn(script="bad_script.py")
    def test_bad_script(): ...


    class TestAllAtOnce:
        @pytest.fixture
        def dl_make_dataset(self):
            from bad import SlowNoise

            return SlowNoise

        @pytest.mark.dl_matrix(**SPAWN)
        @pytest.mark.dl_picklable(max_bytes=10)
        @pytest.mark.dl_deterministic(seeds=[0])
        @pytest.mark.dl_no_recursive_spawn
        @pytest.mark.dl_throughput(
            min_batches_per_s=1e5, min_samples_per_s=1e5, min_speedup=50, max_startup_s=0.001
        )
        def test_all(self): ...
    """

BAD_SCRIPT = """
    from parts import DataLoader, Numbers

    print(len(list(DataLoader(Numbers(), num_workers=1))))
    """
GOOD_SCRIPT = """
    from parts import DataLoader, Numbers

    if __name__ == "__main__":
        print(len(list(DataLoader(Numbers(), num_workers=1))))
    """


@pytest.fixture(scope="module")
def session(run: Runner) -> Session:
    files = {
        "bad.py": BAD,
        "bad_script.py": BAD_SCRIPT,
        "good_script.py": GOOD_SCRIPT,
        "test_it.py": SUITE,
    }
    return run(files, "--dl-report=report.json", deadline_s=200)


@pytest.mark.parametrize(
    "name",
    [
        "test_picklable[spawn-w2]",
        "test_deterministic[fork-w2]",
        "test_no_recursive_spawn[fork-w2]",
        "test_script[fork]",
        "test_script[spawn]",
        "test_throughput[fork-w2]",
        "test_conforms[fork-w2]",
    ],
)
def test_a_sound_pipeline_passes(session: Session, name: str) -> None:
    test = session.tests[f"TestSound {name}"]
    assert test.outcome == "passed", test.words


@pytest.mark.parametrize("name", ["test_deterministic", "test_conforms", "test_allowed_elsewhere"])
def test_noise_is_not_repeatable(session: Session, name: str) -> None:
    test = session.tests[f"TestNoise {name}[fork-w2]"]
    assert test.outcome == "failed"
    assert one_line(test.words).startswith(
        f"test_it.py::TestNoise::{name} under fork-w2: 1 error error not-repeatable: "
        "parts.py:28 [fork-w2] expected seed 0 to give the same batches again, got others: batch 0 "
        "is the first that differs, at batch: first has int64 tensor of shape [4, 4] ["
    )


def test_conforms_skips_a_family(session: Session) -> None:
    assert session.tests["TestNoise test_skips_a_family[fork-w2]"].outcome == "passed"


def test_an_allowed_finding_is_an_expected_failure(session: Session) -> None:
    test = session.tests["TestNoise test_allowed[fork-w2]"]
    assert (test.outcome, test.words) == ("xfailed", "noise is what it is for")
    (finding,) = session.findings("test_it.py::TestNoise::test_allowed").values()
    assert (finding["code"], finding["expected"]) == ("not-repeatable", True)
    assert "  expected not-repeatable: parts.py:28 [fork-w2]" in session.section


def test_an_allowed_finding_that_is_gone_fails(session: Session) -> None:
    test = session.tests["TestSound test_gone[fork-w2]"]
    assert (test.outcome, test.words) == (
        "failed",
        (
            "dl_allow: expected not-repeatable under fork-w2 (it was noisy once), but it no longer "
            "occurs; remove the marker"
        ),
    )


def test_a_failing_body_keeps_its_findings(session: Session) -> None:
    test = session.tests["TestNoise test_body_fails_too[fork-w2]"]
    assert test.outcome == "failed"
    assert "assert 1 == 2" in test.words
    assert "dataloader findings" in session.text
    assert set(session.findings("test_it.py::TestNoise::test_body_fails_too")) == {"not-repeatable"}


def test_a_script_without_a_main_guard(session: Session) -> None:
    assert session.tests["test_bad_script[fork]"].outcome == "passed"
    test = session.tests["test_bad_script[spawn]"]
    assert test.outcome == "failed"
    line = line_of(BAD_SCRIPT, "print") - 1  # the files are dedented from their second line on
    finding = session.findings("test_it.py::test_bad_script")["recursive-start"]
    assert finding["configurations"] == [{"start_method": "spawn", "num_workers": None}]
    assert finding["culprit"] == f"bad_script.py:{line + 1}"
    assert finding["message"].startswith(
        "expected bad_script.py to start its workers once, but each spawn worker imports it and "
        f"starts workers again at bad_script.py:{line + 1}"
    )


def test_all_findings_of_a_test_are_told_together(session: Session) -> None:
    findings = session.findings("test_it.py::TestAllAtOnce::test_all")
    assert {
        "heavy-pickle",
        "not-repeatable",
        "recursive-start",
        "slow",
        "slow-start",
        "no-speedup",
    } <= set(findings)
    words = session.tests["TestAllAtOnce test_all[spawn-w2]"].words
    for code, finding in findings.items():
        assert f"  {finding['severity']} {code}: {finding['culprit']} [spawn-w2]" in words


def test_the_words_of_the_budgets(session: Session) -> None:
    findings = session.findings("test_it.py::TestAllAtOnce::test_all")
    assert findings["heavy-pickle"]["message"].startswith(
        "at most 10 bytes should travel to each worker, but "
    )
    assert findings["slow-start"]["message"].startswith(
        "expected the first batch within 0.001 s, got it after "
    )
    assert findings["no-speedup"]["message"].startswith(
        "expected a speed-up of at least 50 over 0 workers, got "
    )
    assert "to start no process, but it does (" in findings["recursive-start"]["message"]
    line = line_of(BAD, "subprocess.run")
    assert findings["recursive-start"]["culprit"] == f"bad.py:{line}"


def test_the_counts(session: Session) -> None:
    outcomes = list(session.outcomes.values())
    assert session.report is not None
    checks = session.report["checks"]
    assert checks["ran"] == len(outcomes)
    assert checks["expected_to_fail"] == outcomes.count("xfailed") == 1
