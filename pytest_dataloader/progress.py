"""The progress line: what a long run is doing, behind the dots of pytest's own terminal."""

from __future__ import annotations

import os
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
    return Line(writer, _terminal(config, writer._file)).show if writer.hasmarkup else None


def _terminal(config: pytest.Config, file: Any) -> Any:
    """The terminal itself: while a test runs, pytest's own file leads into what it captures."""
    capture: Any = config.pluginmanager.get_plugin("capturemanager")
    if capture is None:
        return file
    try:
        with capture.global_and_fixture_disabled():
            descriptor = os.dup(file.fileno())
    except (OSError, AttributeError):  # standard output is no file
        return file
    terminal = open(descriptor, "w", encoding=file.encoding, errors="replace")  # noqa: SIM115
    config.add_cleanup(terminal.close)
    return terminal


class Line:
    """Writes behind the cursor and takes it back with backspaces, so that dots stay in place."""

    def __init__(self, writer: Any, file: Any = None) -> None:
        self._writer = writer
        self._file = writer._file if file is None else file
        self._shown = 0

    def show(self, text: str) -> None:
        """Show ``text`` cut to the room that is left on the line; an empty text only erases."""
        back = "\b" * self._shown
        room = max(0, self._writer.fullwidth - self._writer.width_of_current_line - 4)
        cut = f" [{text}]"[:room] if text else ""
        padding = " " * max(0, self._shown - len(cut))
        self._file.write(back + cut + padding + "\b" * len(padding))
        self._file.flush()
        self._shown = len(cut)
