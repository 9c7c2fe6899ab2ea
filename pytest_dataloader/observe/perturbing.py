"""Another listing order and another default encoding, for the user's lines that rest on them.

Both are put in the place of Python's own functions while a pipeline runs in this process: first
only to note which lines of the user's code ask, then to answer some of them otherwise. Calls that
no line of the user's stands behind are left alone.
"""

from __future__ import annotations

import builtins
import codecs
import contextlib
import functools
import glob
import io
import locale
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_dataloader.diagnose.world import user_modules
from pytest_dataloader.observe.errors import belongs_to_user
from pytest_dataloader.observe.facts import ENCODED, HASHED, LISTED

if TYPE_CHECKING:
    from typing_extensions import Self

_PACKAGE = str(Path(__file__).resolve().parent.parent) + os.sep
_CHUNK = 1 << 20
_MOST_CHUNKS = 64
_UTF8_SINCE = (3, 15)

_is_users = functools.lru_cache(maxsize=4096)(belongs_to_user)


def default_encoding() -> str:
    """The encoding that text is read with where none is named."""
    if sys.flags.utf8_mode:
        return "utf-8"
    return codecs.lookup(locale.getpreferredencoding(False)).name


def other_encoding() -> str:
    """What the default is elsewhere: that of Windows in western Europe, or of Linux and macOS."""
    return "cp1252" if default_encoding() == "utf-8" else "utf-8"


class Watch:
    """Notes the user's lines that list directories, read text without an encoding, or hash strings.

    Lines of ``otherwise`` get a directory's names in reverse, or text in `other_encoding`.
    """

    def __init__(self, otherwise: Iterable[str] = ()) -> None:
        self._otherwise = frozenset(otherwise)
        self._noted: dict[str, dict[str, None]] = {LISTED: {}, ENCODED: {}, HASHED: {}}
        self._written: set[str] = set()
        self._active = False

    @property
    def noted(self) -> dict[str, list[str]]:
        """The lines by what they rest on, as ``file:line``, in the order in which they came."""
        return {kind: list(lines) for kind, lines in self._noted.items()}

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Stand in for Python's functions while the body runs."""
        self._active = True
        with contextlib.ExitStack() as undo:
            for holder, name, instead in self._stand_ins():
                undo.callback(setattr, holder, name, vars(holder)[name])
                plain = isinstance(instead, type) or not isinstance(holder, type)
                setattr(holder, name, instead if plain else staticmethod(instead))
            try:
                yield
            finally:
                self._active = False

    def _stand_ins(self) -> list[tuple[Any, str, Any]]:
        listdir, scandir = self._listdir(os.listdir), self._scandir(os.scandir)
        opened, hashed = self._open(builtins.open), self._hash(builtins.hash)
        instead: list[tuple[Any, Any]] = [
            (os.listdir, listdir),
            (os.scandir, scandir),
            (builtins.open, opened),
        ]
        found = list(_holders(instead))
        found.append((builtins, "hash", hashed))
        found.append((io, "TextIOWrapper", self._text_class(io.TextIOWrapper)))
        return found

    # What a directory holds ----------------------------------------------------------------

    def _listdir(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def listdir(path: Any = None) -> Any:
            return self._ordered(original(path))

        return listdir

    def _scandir(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def scandir(path: Any = None) -> Any:
            with original(path) as entries:
                found = list(entries)
            return _Entries(self._ordered(found))

        return scandir

    def _ordered(self, names: list[Any]) -> list[Any]:
        where = _users_line() if self._active and len(names) > 1 else None
        if where is None:
            return names
        self._noted[LISTED][where] = None
        return names[::-1] if where in self._otherwise else names

    # What a text says ----------------------------------------------------------------------

    def _open(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def open(  # noqa: A001 - it stands for this very function
            file: Any,
            mode: Any = "r",
            buffering: Any = -1,
            encoding: Any = None,
            *more: Any,
            **named: Any,
        ) -> Any:
            if self._active and _is_default(encoding) and isinstance(mode, str) and "b" not in mode:
                encoding = self._encoding(file, mode, encoding, original)
            return original(file, mode, buffering, encoding, *more, **named)

        return open

    def _encoding(self, file: Any, mode: str, given: Any, original: Callable[..., Any]) -> Any:
        """The encoding that a text is opened with; what the run itself wrote so is left alone."""
        if set(mode) & set("wax+"):
            self._written.add(os.path.realpath(file) if _is_path(file) else "")
            return given
        where = _users_line()
        if where is None or (_is_path(file) and os.path.realpath(file) in self._written):
            return given
        if where not in self._noted[ENCODED] and not _is_ascii(file, original):
            self._noted[ENCODED][where] = None
        return other_encoding() if where in self._otherwise else given

    def _text_class(self, original: Any) -> Any:
        watch = self

        class Kind(type):
            def __instancecheck__(cls, value: Any) -> bool:
                return isinstance(value, original)

            def __subclasscheck__(cls, kind: type) -> bool:
                return issubclass(kind, original)

        class TextIOWrapper(original, metaclass=Kind):  # type: ignore[misc]
            def __init__(self, buffer: Any, encoding: Any = None, *more: Any, **k: Any) -> None:
                if watch._active and _is_default(encoding) and _only_reads(buffer):
                    encoding = watch._encoding(buffer, "r", encoding, builtins.open)
                super().__init__(buffer, encoding, *more, **k)

        return TextIOWrapper

    # What a hash is -------------------------------------------------------------------------

    def _hash(self, original: Callable[[Any], int]) -> Callable[[Any], int]:
        def hash(value: Any, /) -> int:  # noqa: A001 - it stands for this very function
            code = sys._getframe(1).f_code
            if self._active and code.co_name != "__hash__" and _is_users(code.co_filename):
                where = _users_line() if _holds_text(value) else None
                if where is not None:
                    self._noted[HASHED][where] = None
            return original(value)

        return hash


class _Entries:
    """What `os.scandir` returns, in an order of ours."""

    def __init__(self, entries: list[os.DirEntry[Any]]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> os.DirEntry[Any]:
        return next(self._entries)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the iteration."""
        self._entries = iter(())


def _holders(instead: list[tuple[Any, Any]]) -> Iterator[tuple[Any, str, Any]]:
    """Where Python's own modules and the user's hold a function: there, its name, what replaces it.

    ``instead`` are the functions, each with what stands in for it.
    """
    modules = [sys.modules.get(name) for name in user_modules()]
    classes = [c for m in (glob, pathlib) for c in vars(m).values() if isinstance(c, type)]
    for holder in (builtins, io, os, pathlib, glob, *classes, *modules):
        for name, value in list(vars(holder).items()) if holder is not None else ():
            held = value.__func__ if isinstance(value, staticmethod) else value
            for function, new in instead:
                if held is function:
                    yield holder, name, new


def _users_line() -> str | None:
    """``file:line`` of the innermost line of the user's code in this run, if there is one."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    while frame is not None and not frame.f_code.co_filename.startswith(_PACKAGE):
        if _is_users(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def _is_default(encoding: Any) -> bool:
    """Whether an encoding is the platform's; pathlib says "locale" where the user says nothing."""
    return encoding == "locale" or (encoding is None and sys.version_info < _UTF8_SINCE)


def _is_path(file: Any) -> bool:
    return isinstance(file, (str, bytes, os.PathLike))


def _only_reads(buffer: Any) -> bool:
    with contextlib.suppress(AttributeError, ValueError):
        in_memory = isinstance(buffer, io.BytesIO)
        return bool(buffer.readable()) and (in_memory or not buffer.writable())
    return False


def _is_ascii(file: Any, original: Callable[..., Any]) -> bool:
    """Whether a file says the same in every encoding that a platform may have; False if unknown."""
    if not (_is_path(file) and Path(os.fsdecode(file)).is_file()):
        return False
    with contextlib.suppress(OSError), original(file, "rb") as chunks:
        for _ in range(_MOST_CHUNKS):
            chunk = chunks.read(_CHUNK)
            if not chunk.isascii():
                return False
            if len(chunk) < _CHUNK:
                return True
    return False


def _holds_text(value: Any) -> bool:
    if isinstance(value, (tuple, frozenset)):
        return any(_holds_text(item) for item in value)
    return isinstance(value, (str, bytes))
