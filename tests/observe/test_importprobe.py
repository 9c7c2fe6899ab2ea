"""What an import does, seen from a fresh process: each effect with the user's line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_dataloader.matrix import LoaderConfig
from pytest_dataloader.observe.facts import DIED, HUNG, IMPORT, OK, EffectFacts, RunRequest
from pytest_dataloader.observe.imports import modules_of
from pytest_dataloader.observe.observer import Observer
from pytest_dataloader.observe.worker import read_journal
from pytest_dataloader.pipeline import Pipeline

#: Modules by name; the line that ends in ``# here`` is the one to be named.
MODULES = {
    "runs_a_command": """
        import os
        os.system("exit 0")  # here
        """,
    "opens_a_pipe": """
        import subprocess, sys
        def run():
            subprocess.run([sys.executable, "-c", ""], check=True)
        run()  # here
        """,
    "starts_a_worker": """
        import multiprocessing
        if __name__ != "__main__":
            multiprocessing.Process(target=print).start()  # here
        NEVER = 1
        """,
    "starts_a_spawned_one": """
        import multiprocessing
        try:
            multiprocessing.get_context("spawn").Process(target=print).start()  # here
        except RuntimeError:
            pass
        """,
    "makes_a_folder": """
        import os
        os.mkdir("made-by-import")  # here
        """,
    "writes": """
        with open("written.txt", "w") as file:  # here
            file.write("x")
        """,
    "appends_low_down": """
        import os
        os.close(os.open("low.txt", os.O_WRONLY | os.O_CREAT))  # here
        """,
    "connects": """
        import contextlib, socket
        with socket.socket() as made, contextlib.suppress(OSError):
            made.connect(("127.0.0.1", 9))  # here
        """,
    "starts_a_thread": """
        import threading
        def idle():
            pass
        thread = threading.Thread(target=idle)
        thread.start()  # here
        thread.join()
        """,
    "starts_a_timer": """
        import threading
        timer = threading.Timer(0, print)
        timer.start()  # here
        timer.join()
        """,
    "prints": """
        print("loading", 3)  # here
        """,
    "looks_at_the_command_line": """
        import argparse
        args = argparse.ArgumentParser().parse_args()  # here
        """,
    "imports_one_that_prints": """
        import printed_inside
        """,
    "printed_inside": """
        print("inside")  # here
        """,
    "harmless": """
        import argparse, os, sys
        print("a warning", file=sys.stderr)
        open(os.devnull, "w").close()
        open(__file__).close()
        argparse.ArgumentParser().parse_args(["--help"][1:])
        def later():
            print("later")
            open("never.txt", "w")
        """,
    "raises": """
        VALUE = {}["missing"]  # here
        """,
    "exits": """
        import sys
        sys.exit("no GPU")  # here
        """,
    "slow_library": """
        import time
        time.sleep(0.4)
        """,
    "imports_a_slow_library": """
        import slow_library
        """,
    "is_slow_itself": """
        import time
        time.sleep(0.3)
        """,
    "counts_the_import_twice": """
        import os
        import os
        """,
}


def source(name: str) -> str:
    lines = MODULES[name].strip("\n").splitlines()
    return "\n".join(line[8:] for line in lines) + "\n"


def line_of(name: str) -> int:
    return next(n for n, line in enumerate(source(name).splitlines(), 1) if "# here" in line)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("imported")
    for name in MODULES:
        (made / f"{name}.py").write_text(source(name), encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def notes(folder: Path) -> dict[str, dict[str, Any]]:
    """What a fresh process noted of each module."""
    order = [name for name in MODULES if name not in ("printed_inside", "slow_library")]
    code = (
        f"import sys; sys.path.insert(0, {str(folder)!r})\n"
        "from pytest_dataloader.observe.importprobe import probe\n"
        f"probe({tuple(order)!r}, 'journal', 'stderr')\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, timeout=60)
    return {note["module"]: note for note in read_journal(str(folder / "journal"))}


def effects(notes: dict[str, dict[str, Any]], module: str) -> set[tuple[str, str, str]]:
    """The effects, with places as ``module.py:line``."""
    return {(e["kind"], e["detail"], Path(e["where"]).name) for e in notes[module]["effects"]}


# Effects -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "kind", "detail"),
    [
        ("runs_a_command", "starts a process", "os.system"),
        ("opens_a_pipe", "starts a process", "subprocess.Popen"),
        ("starts_a_worker", "starts a process", "multiprocessing Process"),
        ("starts_a_spawned_one", "starts a process", "multiprocessing SpawnProcess"),
        ("makes_a_folder", "changes files", "os.mkdir made-by-import"),
        ("writes", "writes to a file", "written.txt"),
        ("appends_low_down", "writes to a file", "low.txt"),
        ("connects", "opens a network connection", "('127.0.0.1', 9)"),
        ("starts_a_thread", "starts a thread", "idle"),
        ("starts_a_timer", "starts a thread", "Timer"),
        ("prints", "prints", "loading 3"),
        ("looks_at_the_command_line", "parses sys.argv", "argparse"),
    ],
)
def test_an_effect_is_told_with_its_line(notes, module, kind, detail) -> None:
    found = effects(notes, module)
    assert (kind, detail, f"{module}.py:{line_of(module)}") in found
    assert {(e[0], e[2]) for e in found} == {(kind, f"{module}.py:{line_of(module)}")}


def test_the_line_is_that_of_the_module_which_is_imported_in_turn(notes) -> None:
    assert effects(notes, "imports_one_that_prints") == {
        ("prints", "inside", f"printed_inside.py:{line_of('printed_inside')}")
    }


def test_reading_and_defining_have_no_effect(notes) -> None:
    assert effects(notes, "harmless") == set()


def test_a_start_of_a_worker_is_refused(notes, folder) -> None:
    error = "".join(notes["starts_a_worker"]["error"])
    assert error.endswith("StartRefused: a process may not be started while a module is imported\n")
    assert notes["starts_a_spawned_one"]["error"] is None


# Errors and times --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "last"), [("raises", "KeyError: 'missing'\n"), ("exits", "SystemExit: no GPU\n")]
)
def test_an_error_is_told_and_the_next_module_is_imported(notes, module, last) -> None:
    lines = notes[module]["error"]
    assert lines[-1] == last
    assert f'{module}.py", line {line_of(module)}, in <module>' in "".join(lines)
    assert notes["harmless"]["error"] is None


def test_the_own_time_is_without_what_is_imported(notes) -> None:
    told = notes["imports_a_slow_library"]
    assert told["seconds"] >= 0.4
    assert told["own"] < 0.2
    [library] = [entry for entry in told["imports"] if entry["module"] == "slow_library"]
    assert 0.4 <= library["own"] <= library["seconds"] <= told["seconds"]


def test_the_own_time_of_a_module_that_is_slow_itself(notes) -> None:
    told = notes["is_slow_itself"]
    assert 0.3 <= told["own"] <= told["seconds"]
    assert told["imports"] == []


def test_imports_that_take_no_time_are_not_noted(notes) -> None:
    assert notes["counts_the_import_twice"]["imports"] == []


# As facts ----------------------------------------------------------------------------------------

REQUEST = RunRequest(LoaderConfig("spawn", None), purpose=IMPORT)


def imported(observer: Observer, monkeypatch: Any, folder: Path, *modules: str) -> Any:
    monkeypatch.syspath_prepend(str(folder))
    pipeline = Pipeline("-".join(modules), dataset=[])
    observer.modules[pipeline.key] = modules
    return observer.observe(pipeline, REQUEST)


def test_facts_of_imports(observer, monkeypatch, tmp_path) -> None:
    (tmp_path / "poem.py").write_text("import this\nprint('ours')\nimport late\n", "utf-8")
    (tmp_path / "late.py").write_text("import time\ntime.sleep(0.1)\n1 / 0\n", "utf-8")
    facts = imported(observer, monkeypatch, tmp_path, "poem", "json")
    assert (facts.outcome, facts.reason) == (OK, None)
    poem, library = facts.imports
    assert (poem.module, library.module, library.effects) == ("poem", "json", ())
    assert poem.effects == (EffectFacts("prints", "ours", f"{tmp_path / 'poem.py'}:2"),)
    assert poem.error is not None
    assert (poem.error.type, poem.error.message) == ("ZeroDivisionError", "division by zero")
    assert poem.error.where == f"{tmp_path / 'late.py'}:3"
    assert [name for name, _ in poem.imports][:1] == ["late"]
    assert library.error is None


def test_an_import_that_ends_the_process(observer, monkeypatch, tmp_path) -> None:
    (tmp_path / "ends.py").write_text("import os\nos._exit(3)\n", "utf-8")
    facts = imported(observer, monkeypatch, tmp_path, "ends")
    assert (facts.outcome, facts.reason) == (
        DIED,
        "the process that imports ended with exit code 3",
    )


def test_an_import_that_takes_for_ever(observer, monkeypatch, tmp_path) -> None:
    (tmp_path / "waits.py").write_text("import time\ntime.sleep(60)\n", "utf-8")
    monkeypatch.setattr(observer, "timeout_s", 1)
    facts = imported(observer, monkeypatch, tmp_path, "waits")
    assert (facts.outcome, facts.reason) == (HUNG, "importing takes longer than 1 s")


# Which modules -----------------------------------------------------------------------------------


class Words:
    transform: Any = None


def loader(**functions: Any) -> Any:
    made = {"dataset": Words(), "collate_fn": len, "worker_init_fn": None, **functions}
    return SimpleNamespace(**made)


def test_modules_of_what_a_loader_shows() -> None:
    assert modules_of(loader()) == (__name__,)
    assert modules_of(loader(dataset=[], collate_fn=line_of)) == (__name__,)
    assert modules_of(loader(dataset=[])) == ()


def test_modules_that_a_pickle_named_and_that_are_the_user_s(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "helpers_of_words", SimpleNamespace(__file__=__file__))
    found = modules_of(loader(), ["json", "helpers_of_words", "never_imported", "__main__"])
    assert found == ("helpers_of_words", __name__)
