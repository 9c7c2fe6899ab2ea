"""Targets of --dl-check: tests without a test file."""

from __future__ import annotations

import pytest

from .conftest import Runner, Session, needs_fork

pytestmark = needs_fork

FILES = {
    "package/__init__.py": "",
    "package/data.py": """
        from parts import Numbers

        dataset = Numbers()
    """,
    "folder/things.py": """
        import parts

        loader = parts.DataLoader(parts.Numbers(), batch_size=4)


        class Dataset(parts.Numbers):
            pass


        class Loader(parts.DataLoader):
            def __init__(self):
                super().__init__(parts.Numbers(), batch_size=2)


        def make_dataset():
            return parts.Numbers(8)


        def make_loader_kwargs(num_workers):
            return {"batch_size": 8 if num_workers else 4}


        class holder:
            module = parts.Module()
    """,
    "script.py": """
        from parts import DataLoader, Numbers

        if __name__ == "__main__":
            print(len(list(DataLoader(Numbers(), num_workers=1))))
    """,
    "test_other.py": """
        def test_other():
            pass
    """,
}

# the target, and samples and batches with 0 workers and with 2
TARGETS = {
    "package.data:dataset": ((16, 16), (16, 16)),
    "folder/things.py:loader": ((16, 4), (16, 4)),
    "folder/things.py:Dataset": ((16, 4), (16, 2)),
    "folder/things.py:Loader": ((16, 8), (16, 8)),
    "folder/things.py:make_dataset": ((8, 2), (8, 1)),
    "folder/things.py:holder.module": ((16, 8), (16, 8)),
    "parts:Module": ((16, 8), (16, 8)),
    "parts:make_loader": ((16, 2), (16, 2)),
}


@pytest.fixture(scope="module")
def session(run: Runner) -> Session:
    return run(
        FILES,
        *(f"--dl-check={target}" for target in TARGETS),
        "--dl-check=script.py",
        "-v",
        "--dl-start-methods=fork",
        "--dl-true-starts",  # no passes for rates, which are not the subject
        "--dl-report=report.json",
        # that targets are run is the subject; one of them in full
        "-k=runs or script or data:dataset",
        ini="testpaths = .",
    )


@pytest.mark.parametrize("target", TARGETS)
def test_every_kind_of_target_is_run(session: Session, target: str) -> None:
    runs = session.runs(f"check:{target}")
    seen = tuple((runs[c]["samples"], runs[c]["batches"]) for c in ("w0", "fork-w2"))
    assert {run["outcome"] for run in runs.values()} == {"ok"}
    assert seen == TARGETS[target]


def test_a_script_is_run_under_each_start_method(session: Session) -> None:
    run = session.runs("check:script.py")["fork"]
    assert (run["outcome"], run["purpose"], run["exit_code"]) == ("ok", "script", 0)
    assert run["num_workers"] is None


def test_one_item_a_family_and_configuration(session: Session) -> None:
    names = {n.split()[1] for n in session.tests if n.startswith("check:package.data:dataset ")}
    assert {"runs[w0]", "determinism[w0]", "runs[fork-w2]", "determinism[fork-w2]"} <= names


def test_the_ids_name_the_target(session: Session) -> None:
    assert "check:package.data:dataset::determinism[fork-w2] PASSED" in session.text
    assert "check:script.py::spawning[fork] PASSED" in session.text


def test_only_targets_are_collected_without_a_path(session: Session) -> None:
    assert all(name.startswith("check:") for name in session.tests)
    assert set(session.outcomes.values()) == {"passed"}, session.text
    assert session.status == pytest.ExitCode.OK


def test_with_a_path_both_are_collected_and_k_picks(run: Runner) -> None:
    session = run(
        FILES,
        "test_other.py",
        "--dl-check=parts:Numbers",
        "-k=test_other or (runs and w0)",
    )
    assert session.outcomes == {
        "test_other": "passed",
        "check:parts:Numbers runs[w0]": "passed",
    }, session.text
    assert "deselected" in session.text


def test_the_same_test_may_come_from_the_ini(run: Runner) -> None:
    ini = "dl_check =\n    parts:Numbers\n    parts:numbers\ndl_num_workers = 0"
    session = run(FILES, "test_other.py", "-k=runs or test_other", ini=ini)
    assert session.outcomes == {
        "test_other": "passed",
        "check:parts:Numbers runs[w0]": "passed",
        "check:parts:numbers runs[w0]": "passed",
    }, session.text


# Wrong targets -------------------------------------------------------------------------------

RAISING = {"raising.py": "raise RuntimeError('on import')", "parts_too/parts.py": "", **FILES}

WRONG = {
    "nosuch:thing": "nosuch:thing: importing 'nosuch' raised ModuleNotFoundError: "
    "No module named 'nosuch'",
    "package.data:nosuch": "package.data:nosuch: package.data has no attribute 'nosuch'; it "
    "defines: Numbers, dataset",
    "parts:NOT_A_PIPELINE": "parts:NOT_A_PIPELINE: expected a Dataset or DataLoader, a class of "
    "one, a callable that returns one, or a LightningDataModule; got int",
    "nosuch.py:thing": "nosuch.py:thing: there is no file nosuch.py",
    "nosuch.py": "nosuch.py: there is no file nosuch.py",
    "raising.py:thing": "raising.py:thing: importing 'raising' raised RuntimeError: on import",
    "word": "'word' is no target; expected package.module:attr, path/to/file.py:attr or "
    "path/to/script.py",
}


@pytest.fixture(scope="module")
def wrong(run: Runner) -> Session:
    return run(
        RAISING,
        "--dl-check=parts:Numbers",
        *(f"--dl-check={target}" for target in WRONG),
        "--dl-check=parts_too/parts.py:thing",
        "--dl-num-workers=0",
    )


@pytest.mark.parametrize("target", WRONG)
def test_a_wrong_target_is_one_item_that_says_why(wrong: Session, target: str) -> None:
    test = next(test for test in wrong.tests.values() if test.words == WRONG[target])
    assert test.outcome == "failed"


def test_a_second_module_of_a_name_is_refused(wrong: Session) -> None:
    told = [t.words for t in wrong.tests.values() if "is already imported from" in t.words]
    assert told == [
        (
            f"parts_too/parts.py:thing: a module named 'parts' is already imported from "
            f"{wrong.folder / 'parts.py'}; rename one of the two"
        )
    ]


def test_a_wrong_target_costs_nothing_else(wrong: Session) -> None:
    assert wrong.outcomes["check:parts:Numbers runs[w0]"] == "passed"
    assert wrong.outcomes["check:parts:Numbers determinism[w0]"] == "passed"
    assert list(wrong.outcomes.values()).count("failed") == len(WRONG) + 1
    assert "INTERNALERROR" not in wrong.text
    assert wrong.status == pytest.ExitCode.TESTS_FAILED
