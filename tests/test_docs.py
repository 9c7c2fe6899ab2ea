"""The docs say what the catalogue and the tables of options and markers say."""

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_dataloader import markers
from pytest_dataloader.settings import OPTIONS

TOP = Path(__file__).resolve().parent.parent
README = (TOP / "README.md").read_text(encoding="utf-8")


def test_codes_are_written_from_the_catalogue():
    script = TOP / "docs" / "generate.py"
    command = [sys.executable, script, "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("flag", [option.flag for option in OPTIONS])
def test_readme_lists_every_option(flag):
    assert f"`{flag}" in README


@pytest.mark.parametrize("line", list(markers.lines()), ids=lambda line: line.partition("(")[0])
def test_readme_lists_every_marker_with_its_signature(line):
    signature = line.partition(": ")[0]
    assert f"| `{signature}`".replace("'", '"') in README


def test_readme_lists_no_marker_that_does_not_exist():
    rows = [
        row for row in README.splitlines() if row.startswith("| `dl_") and "(" in row.split("|")[1]
    ]
    assert {row.split("`")[1].partition("(")[0] for row in rows} == set(markers.MARKERS)
