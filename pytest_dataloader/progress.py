"""The progress line: what a long run is doing, behind the dots of pytest's own terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest


def for_session(config: pytest.Config) -> Callable[[str], None] | None:
    """A function that shows a text and erases the one before; None where nobody would see it."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput") or config.get_verbosity() < 0:
        return None
    writer = reporter._tw
    return Line(writer).show if writer.hasmarkup else None


class Line:
    """Writes behind the cursor and takes it back with backspaces, so that dots stay in place."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._shown = 0

    def show(self, text: str) -> None:
        """Show ``text`` cut to the room that is left on the line; an empty text only erases."""
        back = "\b" * self._shown
        room = max(0, self._writer.fullwidth - self._writer.width_of_current_line - 4)
        cut = f" [{text}]"[:room] if text else ""
        padding = " " * max(0, self._shown - len(cut))
        self._writer._file.write(back + cut + padding + "\b" * len(padding))
        self._writer._file.flush()
        self._shown = len(cut)
