"""Keeps what workers write to standard error, at the level of the file descriptor."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

_REPLAY_BYTES = 64 * 1024
_READ_BYTES = 256 * 1024


class StderrTap:
    """One file a session that stands in for descriptor 2 while a run goes on.

    One and the same file, because a fork server keeps the descriptor that it was born with.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)

    @contextlib.contextmanager
    def during(self) -> Iterator[None]:
        """Point descriptor 2 at the file; afterwards give it back, and what was written too."""
        os.ftruncate(self._fd, 0)
        _flush()
        try:
            original = os.dup(2)
        except OSError:  # the process has no standard error
            yield
            return
        os.dup2(self._fd, 2)
        try:
            yield
        finally:
            _flush()
            os.dup2(original, 2)
            self._replay(original)
            os.close(original)

    def text(self) -> str:
        """What was written since `during` began, the last 256 KiB of it."""
        size = os.fstat(self._fd).st_size
        with self.path.open("rb") as file:
            file.seek(max(0, size - _READ_BYTES))
            return file.read().decode("utf-8", "replace")

    def _replay(self, fd: int) -> None:
        data = self.text().encode("utf-8", "replace")[-_REPLAY_BYTES:]
        with contextlib.suppress(OSError):
            os.write(fd, data)

    def close(self) -> None:
        """Close the file; it is removed with the session's folder."""
        os.close(self._fd)


def _flush() -> None:
    for stream in (sys.stderr, sys.__stderr__):
        with contextlib.suppress(ValueError, OSError, AttributeError):
            stream.flush()  # type: ignore[union-attr]
