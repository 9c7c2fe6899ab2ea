"""The progress line: behind the cursor, cut to the room, and erased without a trace."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_dataloader.progress import Line, for_session


def writer(width: int = 40, used: int = 10) -> Any:
    return SimpleNamespace(
        fullwidth=width, width_of_current_line=used, hasmarkup=True, _file=io.StringIO()
    )


def screen(text: str) -> tuple[str, int]:
    """What a terminal's line shows after ``text``, and where its cursor stands."""
    cells: list[str] = []
    cursor = 0
    for char in text:
        if char == "\b":
            cursor -= 1
            continue
        cells[cursor : cursor + 1] = [char]
        cursor += 1
    return "".join(cells), cursor


def session(**changes: Any) -> Any:
    reporter = SimpleNamespace(_tw=changes.pop("writer", writer()))
    plugins = {"terminalreporter": reporter} if changes.pop("has_reporter", True) else {}
    return SimpleNamespace(
        pluginmanager=SimpleNamespace(get_plugin=plugins.get),
        get_verbosity=lambda: changes.pop("verbosity", 0),
        **changes,
    )


def test_a_text_is_shown_behind_the_dots() -> None:
    tw = writer()

    Line(tw).show("spawn-w2")

    assert tw._file.getvalue() == " [spawn-w2]"


def test_a_shorter_text_erases_the_longer_one_before() -> None:
    tw = writer()
    line = Line(tw)

    line.show("a long text")
    line.show("short")

    assert screen(tw._file.getvalue()) == (" [short]" + " " * 6, len(" [short]"))


def test_an_empty_text_takes_everything_back() -> None:
    tw = writer()
    line = Line(tw)

    line.show("text")
    line.show("")
    shown, cursor = screen(tw._file.getvalue())

    assert (shown.strip(), cursor) == ("", 0)


def test_a_text_is_cut_to_the_room_that_is_left() -> None:
    tw = writer(width=20, used=10)

    Line(tw).show("a long text")

    assert tw._file.getvalue() == " [a lo"


def test_without_room_nothing_is_shown() -> None:
    tw = writer(width=10, used=10)

    Line(tw).show("text")

    assert tw._file.getvalue() == ""


def test_a_session_at_a_terminal_has_a_line() -> None:
    tw = writer()
    show = for_session(session(writer=tw))

    assert show is not None
    show("x")
    assert tw._file.getvalue() == " [x]"


@pytest.mark.parametrize(
    "nobody",
    [
        {"has_reporter": False},
        {"workerinput": {}},
        {"verbosity": -1},
        {"writer": SimpleNamespace(hasmarkup=False)},
    ],
    ids=["no reporter", "xdist worker", "quiet", "no terminal"],
)
def test_where_nobody_would_see_it_there_is_none(nobody: dict[str, Any]) -> None:
    assert for_session(session(**nobody)) is None
