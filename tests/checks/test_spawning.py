"""Spawning: what is said of scripts and imports that start processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from by_hand import FORK, SPAWN, W0, error, judged, question

from pytest_dataloader.checks import spawning
from pytest_dataloader.checks.asked import NoRecursiveSpawn
from pytest_dataloader.checks.finding import ERROR, INFO, WARNING, Finding, NotJudged
from pytest_dataloader.matrix import LoaderConfig
from pytest_dataloader.observe.facts import (
    DIED,
    HUNG,
    IMPORT,
    OK,
    RAISED,
    SCRIPT,
    EffectFacts,
    ImportFacts,
    RunFacts,
    RunRequest,
)

BELOW_THE_GUARD = (
    "Put everything that runs, rather than defines, into a function and call it below 'if "
    '__name__ == "__main__":\'.'
)
INTO_A_FUNCTION = "Move it into a function that is called below 'if __name__ == \"__main__\":'."
ON_FIRST_USE = (
    "Compute tables on first use, and import heavy packages where they are needed. python -X "
    "importtime shows where the time goes."
)
LOOK_AT_THE_LAST_LINE = (
    "Read the original traceback: its last line of your own code is the place. Check or drop bad "
    "records when the dataset is built, or handle them in __getitem__."
)

ASKED = NoRecursiveSpawn("/project/train.py", ("--fast",))
IMPORTS = NoRecursiveSpawn()
REQUEST = RunRequest(
    LoaderConfig("spawn", None), purpose=SCRIPT, script="/project/train.py", args=("--fast",)
)
IMPORT_REQUEST = RunRequest(LoaderConfig("spawn", None), purpose=IMPORT)


def script(outcome, reason=None, **facts):
    return RunFacts(REQUEST, "true", outcome, reason, **facts)


def imported(*modules, outcome=OK, reason=None):
    return RunFacts(IMPORT_REQUEST, "in-process", outcome, reason, imports=modules)


def said(asked, *facts, config=SPAWN):
    return judged(asked, question(config), facts)


# What is run -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "config", "requests"),
    [
        (ASKED, SPAWN, [REQUEST]),
        (ASKED, LoaderConfig("spawn", None), [REQUEST]),
        (ASKED, W0, []),
        (IMPORTS, SPAWN, [IMPORT_REQUEST]),
        (IMPORTS, FORK, []),
        (IMPORTS, W0, []),
    ],
)
def test_what_is_run(asked, config, requests) -> None:
    assert spawning.needs(asked, question(config)) == requests


# Scripts -----------------------------------------------------------------------------------------


def test_a_script_that_ends_says_nothing() -> None:
    assert said(ASKED, script(OK)) == []


def test_a_script_that_was_not_run_says_nothing() -> None:
    assert said(ASKED) == []


def test_a_script_that_starts_itself_again() -> None:
    told = error("script", "RuntimeError", "An attempt has been made to start a new process")
    facts = script(
        RAISED,
        "the script ended with exit code 1",
        error=told,
        recursive_at="/project/train.py:12",
    )
    assert said(ASKED, facts) == [
        Finding(
            "recursive-start",
            ERROR,
            (SPAWN,),
            "/project/train.py:12",
            "expected /project/train.py to start its workers once, but each spawn worker imports "
            "it and starts workers again at /project/train.py:12; the script ended with exit code "
            "1",
            BELOW_THE_GUARD,
        )
    ]


def test_a_script_of_ever_more_processes_starts_itself_again_in_some_line() -> None:
    [finding] = said(ASKED, script(HUNG, "it had started 65 processes, more than 64"))
    assert (finding.code, finding.culprit) == ("recursive-start", "/project/train.py")
    assert finding.message == (
        "expected /project/train.py to start its workers once, but each spawn worker imports it "
        "and starts workers again at /project/train.py; it had started 65 processes, more than 64"
    )


def test_a_script_without_a_reason_failed() -> None:
    [finding] = said(ASKED, script(RAISED, recursive_at="/project/train.py:12"))
    assert finding.message.endswith("starts workers again at /project/train.py:12; it failed")


def test_a_script_that_fails_for_another_reason_raises() -> None:
    told = error("script", "KeyError", "'x'", "/project/words.py:5", function="load")
    assert said(ASKED, script(RAISED, "the script ended with exit code 1", error=told)) == [
        Finding(
            "raises",
            ERROR,
            (SPAWN,),
            "/project/words.py:5",
            "expected /project/train.py to end with exit code 0 under spawn, but the script ended "
            "with exit code 1: KeyError: 'x' in load at /project/words.py:5",
            LOOK_AT_THE_LAST_LINE,
        )
    ]


@pytest.mark.parametrize(
    ("outcome", "code"), [(DIED, "worker-died"), (HUNG, "hang"), (RAISED, "raises")]
)
def test_a_script_without_an_error_is_its_own_culprit(outcome, code) -> None:
    [finding] = said(ASKED, script(outcome, "it was ended"))
    assert (finding.code, finding.culprit) == (code, "/project/train.py")
    assert finding.message == (
        "expected /project/train.py to end with exit code 0 under spawn, but it was ended"
    )


def test_the_last_words_of_a_script_without_a_traceback_are_quoted() -> None:
    words = "usage: train.py [-h] data\ntrain.py: error: data is required\n"
    [finding] = said(ASKED, script(RAISED, "the script ended with exit code 2", stderr_tail=words))
    assert finding.message == (
        "expected /project/train.py to end with exit code 0 under spawn, but the script ended with "
        "exit code 2; its standard error ends: train.py: error: data is required"
    )


def test_a_script_in_the_working_directory_is_told_relative_to_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    path = str(tmp_path / "train.py")
    request = RunRequest(LoaderConfig("spawn", None), purpose=SCRIPT, script=path)
    facts = RunFacts(request, "true", RAISED, "it failed", recursive_at=f"{path}:3")
    [finding] = said(NoRecursiveSpawn(path), facts)
    assert finding.culprit == "train.py:3"
    assert finding.message.startswith("expected train.py to start its workers once")


# Imports -----------------------------------------------------------------------------------------

STARTS = EffectFacts("starts a process", "subprocess.Popen", "/project/words.py:3")


def effects(*found):
    return imported(ImportFacts("words", 0.1, effects=found))


def test_imports_that_only_define_things_say_nothing() -> None:
    quick = ImportFacts("words", 9.0, own_s=1.0, imports=(("torch", 8.0),))
    assert said(IMPORTS, imported(quick, ImportFacts("more", 0.1))) == []


def test_imports_that_were_not_run_say_nothing() -> None:
    assert said(IMPORTS) == []


def test_a_script_s_question_does_not_judge_imports() -> None:
    slow = ImportFacts("words", 9.0, own_s=9.0, effects=(STARTS,))
    assert said(ASKED, imported(slow)) == []


def test_an_import_that_starts_a_process() -> None:
    assert said(IMPORTS, effects(STARTS)) == [
        Finding(
            "recursive-start",
            ERROR,
            (SPAWN,),
            "/project/words.py:3",
            "expected importing words to start no process, but it does (subprocess.Popen) at "
            "/project/words.py:3; every spawn worker imports it",
            BELOW_THE_GUARD,
        )
    ]


def test_an_import_with_another_effect_is_a_warning() -> None:
    effect = EffectFacts("writes a file", "cache.bin", "/project/words.py:5")
    assert said(IMPORTS, effects(effect)) == [
        Finding(
            "import-side-effect",
            WARNING,
            (SPAWN,),
            "/project/words.py:5",
            "expected importing words only to define things, but it writes a file (cache.bin) at "
            "/project/words.py:5; every spawn worker does so again",
            INTO_A_FUNCTION,
        )
    ]


def test_an_import_that_prints_is_information() -> None:
    [finding] = said(IMPORTS, effects(EffectFacts("prints", "'hello'", "/project/words.py:6")))
    assert (finding.code, finding.severity) == ("import-side-effect", INFO)


def test_every_effect_of_an_import_is_told() -> None:
    effect = EffectFacts("writes a file", "cache.bin", "/project/words.py:5")
    codes = [finding.code for finding in said(IMPORTS, effects(effect, STARTS))]
    assert codes == ["import-side-effect", "recursive-start"]


def test_slow_import() -> None:
    assert said(IMPORTS, imported(ImportFacts("words", 9.0, own_s=2.345))) == [
        Finding(
            "slow-import",
            WARNING,
            (SPAWN,),
            "words",
            "expected importing words to take at most 1 s besides the libraries it imports, but it "
            "takes 2.3 s, in each spawn worker again",
            ON_FIRST_USE,
        )
    ]


def test_a_module_that_another_one_imports_first_is_told_with_its_own_time() -> None:
    first = ImportFacts("words", 4.0, own_s=0.1, imports=(("tables", 3.0), ("torch", 2.0)))
    [finding] = said(IMPORTS, imported(first, ImportFacts("tables", 0.0, own_s=0.0)))
    assert (finding.code, finding.culprit) == ("slow-import", "tables")


def test_imports_that_could_not_be_observed_are_not_judged() -> None:
    facts = imported(outcome=HUNG, reason="importing takes longer than 60 s")
    assert said(IMPORTS, facts) == [
        NotJudged(
            "the imports of the workers could not be observed: importing takes longer than 60 s"
        )
    ]
