"""Notes in the worker: written at once, read whole, and in nobody's way."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_dataloader.observe.worker import (
    STACK_SIGNAL,
    CollateNote,
    Journal,
    StartNote,
    _PacedLook,
    join_stderr,
    new_object,
    read_journal,
    restore_state,
)


class Unmade:
    def __init__(self) -> None:
        raise AssertionError("made by its constructor")


def note_from_child(journal: Journal) -> None:
    journal.note("child")


def total(samples: Any) -> int:
    return sum(samples)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    found = Journal(str(tmp_path / "journal"))
    yield found
    found.close()


@pytest.fixture
def own_stderr(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Standard error and the stack signal as they were, whatever a test joins and offers."""
    saved = os.dup(2)
    yield
    os.dup2(saved, 2)
    os.close(saved)
    if STACK_SIGNAL is not None:
        faulthandler.unregister(STACK_SIGNAL)


def kinds(journal: Journal) -> list[str]:
    return [note["kind"] for note in read_journal(journal.path)]


# The journal ---------------------------------------------------------------------------------


def test_notes_are_read_as_they_were_written(journal: Journal) -> None:
    journal.note("start", worker=1, text="é\n")
    journal.note("batch", samples=2)

    assert read_journal(journal.path) == [
        {"kind": "start", "pid": os.getpid(), "worker": 1, "text": "é\n"},
        {"kind": "batch", "pid": os.getpid(), "samples": 2},
    ]


def test_a_journal_that_was_never_opened_holds_nothing(tmp_path: Path) -> None:
    assert read_journal(str(tmp_path / "none")) == []


def test_a_line_cut_short_is_left_out(journal: Journal) -> None:
    journal.note("whole")
    with open(journal.path, "ab") as file:
        file.write(b'{"kind": "cut')

    assert kinds(journal) == ["whole"]


def test_a_journal_that_travels_opens_the_file_anew(journal: Journal) -> None:
    journal.note("here")
    there = pickle.loads(pickle.dumps(journal))

    there.note("there")
    there.close()
    journal.note("here again")

    assert kinds(journal) == ["here", "there", "here again"]


def test_a_closed_journal_can_be_written_again(journal: Journal) -> None:
    journal.note("one")
    journal.close()
    journal.close()
    journal.note("two")

    assert kinds(journal) == ["one", "two"]


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_processes_write_to_one_journal(method: str, journal: Journal) -> None:
    journal.note("parent")
    child = multiprocessing.get_context(method).Process(target=note_from_child, args=(journal,))
    child.start()
    child.join(30)
    journal.note("parent")
    notes = read_journal(journal.path)

    assert [note["kind"] for note in notes] == ["parent", "child", "parent"]
    assert [note["pid"] for note in notes] == [os.getpid(), child.pid, os.getpid()]


# What rides along ----------------------------------------------------------------------------


@pytest.mark.usefixtures("own_stderr")
def test_a_start_is_noted_before_the_users_function_is_called(
    journal: Journal, tmp_path: Path
) -> None:
    seen: list[tuple[int, list[str]]] = []
    began = time.monotonic()
    note = StartNote(
        lambda worker: seen.append((worker, kinds(journal))), journal, str(tmp_path / "err")
    )

    note(3)

    assert seen == [(3, ["start"])]
    start, init = read_journal(journal.path)
    assert (init["kind"], init["seconds"] >= 0) == ("init", True)
    assert start["worker"] == 3
    assert began <= start["at"] <= time.monotonic()
    assert start["stacks"] is (STACK_SIGNAL is not None)


@pytest.mark.usefixtures("own_stderr")
def test_a_start_without_a_function_of_the_users_is_noted(journal: Journal, tmp_path: Path) -> None:
    StartNote(None, journal, str(tmp_path / "err"))(0)

    assert kinds(journal) == ["start"]


@pytest.mark.usefixtures("own_stderr")
def test_a_started_worker_writes_its_errors_to_the_file(journal: Journal, tmp_path: Path) -> None:
    StartNote(None, journal, str(tmp_path / "err"))(0)
    os.write(2, b"trouble")

    assert (tmp_path / "err").read_bytes() == b"trouble"


@pytest.mark.parametrize(
    ("samples", "batched", "count"),
    [([1, 2, 3], True, 3), ([1, 2, 3], False, 1), (iter([1, 2, 3]), True, 1)],
)
def test_a_batch_is_noted_with_its_samples(
    journal: Journal, samples: Any, batched: bool, count: int
) -> None:
    began = time.monotonic()

    assert CollateNote(total, journal, batched=batched)(samples) == 6

    (note,) = read_journal(journal.path)
    assert (note["kind"], note["samples"]) == ("batch", count)
    assert began <= note["at"] <= time.monotonic()
    assert note["cpu"] > 0


def test_a_batch_that_fails_is_not_noted(journal: Journal) -> None:
    with pytest.raises(TypeError):
        CollateNote(total, journal, batched=True)(["a"])

    assert read_journal(journal.path) == []


@pytest.mark.usefixtures("own_stderr")
def test_joining_standard_error_twice_opens_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "err")
    join_stderr(path)
    before = os.fstat(2)
    free = os.dup(2)
    os.close(free)

    join_stderr(path)

    assert os.path.samestat(os.fstat(2), before)
    again = os.dup(2)
    os.close(again)
    assert again == free


# Warm starts ---------------------------------------------------------------------------------


def test_a_bare_object_is_made_without_its_constructor() -> None:
    assert type(new_object(Unmade)) is Unmade


@pytest.mark.skipif(sys.platform == "win32", reason="no fork server on Windows")
def test_environment_and_streams_are_restored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from multiprocessing import forkserver

    for name in list(os.environ):
        monkeypatch.setenv(name, os.environ[name])
    monkeypatch.setenv("ONLY_HERE", "1")
    saved = os.dup(1)
    with (tmp_path / "out").open("wb") as file:
        monkeypatch.setattr(forkserver, "get_inherited_fds", lambda: [0, file.fileno()])
        data = restore_state({"ONLY_THERE": "2"}, {1: 1}, {"dataset": 3})
        os.write(1, b"printed")
        os.dup2(saved, 1)
        os.close(saved)

    assert data == {"dataset": 3}
    assert dict(os.environ) == {"ONLY_THERE": "2"}
    assert (tmp_path / "out").read_bytes() == b"printed"
    monkeypatch.undo()
    os.environ.pop("ONLY_THERE", None)


def test_a_worker_imports_nothing_heavy_for_its_notes() -> None:
    code = (
        "import sys\n"
        "import pytest_dataloader.observe.worker\n"
        "print(sorted({m.partition('.')[0] for m in sys.modules}\n"
        "             & {'torch', 'numpy', 'psutil', 'pytest', 'xxhash', 'hypothesis'}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


def test_a_look_that_is_not_quick_takes_at_most_a_third_of_the_time(monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def slow() -> dict[str, int]:
        now[0] += 0.02
        return {"dataset.kept": 1}

    look = _PacedLook(slow)
    taken = []
    for _ in range(10):
        now[0] += 0.01
        taken.append(bool(look.take()))
    assert taken == [True, False, False, False, True, False, False, False, True, False]
    assert all(_PacedLook(dict).take() == {} for _ in range(3))
