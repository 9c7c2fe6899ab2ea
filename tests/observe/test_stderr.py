"""The tap on standard error: keeps what is written below Python, and gives it back."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_dataloader.observe.stderr import StderrTap


@pytest.fixture
def tap(tmp_path: Path) -> Iterator[StderrTap]:
    found = StderrTap(tmp_path / "stderr")
    yield found
    found.close()


def test_what_is_written_is_kept_and_shown_afterwards(
    tap: StderrTap, capfd: pytest.CaptureFixture[str]
) -> None:
    with tap.during():
        os.write(2, b"from the descriptor\n")
        subprocess.run([sys.executable, "-c", "import os; os.write(2, b'child')"], check=True)
        assert capfd.readouterr().err == ""

    assert tap.text() == "from the descriptor\nchild"
    assert capfd.readouterr().err == "from the descriptor\nchild"


def test_what_python_holds_back_stays_on_its_side(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys\n"
        "from pytest_dataloader.observe.stderr import StderrTap\n"
        "tap = StderrTap(pathlib.Path(sys.argv[1]))\n"
        "sys.stderr.write('before ')\n"
        "with tap.during():\n"
        "    sys.stderr.write('during ')\n"
        "sys.stderr.write('after')\n"
        "print(repr(tap.text()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "stderr"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert (done.stdout, done.stderr) == ("'during '\n", "before during after")


def test_each_time_begins_with_nothing(tap: StderrTap, capfd: pytest.CaptureFixture[str]) -> None:
    with tap.during():
        os.write(2, b"first")
    with tap.during():
        assert tap.text() == ""
        os.write(2, b"second")

    assert tap.text() == "second"
    assert capfd.readouterr().err == "firstsecond"


def test_the_descriptor_is_given_back_when_the_body_raises(
    tap: StderrTap, capfd: pytest.CaptureFixture[str]
) -> None:
    before = os.fstat(2)

    def body() -> None:
        with tap.during():
            os.write(2, b"last words")
            1 / 0  # noqa: B018

    with pytest.raises(ZeroDivisionError):
        body()

    assert os.path.samestat(os.fstat(2), before)
    assert capfd.readouterr().err == "last words"


def test_only_the_end_of_a_flood_is_kept(tap: StderrTap, capfd: pytest.CaptureFixture[str]) -> None:
    with tap.during():
        os.write(2, b"x" * 300 * 1024 + b"end")

    assert len(tap.text()) == 256 * 1024
    assert tap.text().endswith("xend")
    shown = capfd.readouterr().err
    assert len(shown) == 64 * 1024
    assert shown.endswith("xend")


def test_bytes_that_are_no_text_are_replaced(
    tap: StderrTap, capfd: pytest.CaptureFixture[str]
) -> None:
    with tap.during():
        os.write(2, b"a\xffb")

    assert tap.text() == "a\N{REPLACEMENT CHARACTER}b"
    assert capfd.readouterr().err == "a\N{REPLACEMENT CHARACTER}b"


def test_a_process_without_standard_error_runs_all_the_same(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys\n"
        "from pytest_dataloader.observe.stderr import StderrTap\n"
        "tap = StderrTap(pathlib.Path(sys.argv[1]))\n"
        "os.close(2)\n"
        "with tap.during():\n"
        "    print('ran')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "stderr"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )

    assert done.stdout == "ran\n"
