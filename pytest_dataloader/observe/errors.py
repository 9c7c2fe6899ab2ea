"""Errors as facts: from an exception, from a worker's message, from text on standard error."""

from __future__ import annotations

import functools
import inspect
import linecache
import os
import re
import sysconfig
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_dataloader.observe.facts import ArrivalFacts, ErrorFacts

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
_LAST_LINE = re.compile(r"^(?P<type>[A-Za-z_](?:[\w.]|<locals>)*)(?:: (?P<message>.*))?$")
_WORKER_MESSAGE = "Original Traceback (most recent call last):"
_HEADER = "Traceback (most recent call last):"
_FAULT = "Fatal Python error: "
_FAULT_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)$')
_REFUSED = "current process has finished its bootstrapping phase"
_GROUP = re.compile(r"^  \| (?P<type>\S+): (?P<message>.* \(\d+ sub-exceptions?\))$", re.MULTILINE)
_GROUP_EDGE = re.compile(r"^ +[|+](?:-[-+ \d]*)? ?", re.MULTILINE)
_PACKAGE = str(Path(__file__).resolve().parent.parent)


@dataclass(frozen=True)
class Frame:
    """One line of a traceback."""

    file: str
    line: int
    function: str | None


@functools.lru_cache(maxsize=1)
def _library_folders() -> tuple[str, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = {sysconfig.get_path(name) for name in names}
    folders |= {str(Path(folder).resolve()) for folder in folders}
    return tuple(sorted(folders | {_PACKAGE}))


def belongs_to_user(file: str) -> bool:
    """Whether a source file is the user's: not Python's, an installed library's or ours."""
    if file.startswith("<"):
        return False
    path = os.path.abspath(file)
    return not any(path.startswith(folder + os.sep) for folder in _library_folders())


def from_exception(error: BaseException, stage: str) -> ErrorFacts:
    """Facts of an exception; one that torch re-raised from a worker is read from its message."""
    wrapper = _reraised(error)
    if wrapper is not None:
        return _from_worker(error, wrapper, stage)
    text = str(error)
    if _WORKER_MESSAGE in text:
        told = from_text(text, stage)
        if told is not None:
            return told
    lines = traceback.format_exception(error)
    frames = [
        Frame(f.filename, f.lineno or 0, f.name) for f in traceback.extract_tb(error.__traceback__)
    ]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append(Frame(error.filename, error.lineno or 0, None))
    name = type(error).__name__
    return _facts(stage, name, _first_line(text), _tail("".join(lines)), frames)


def _reraised(error: BaseException) -> Any:
    """torch's wrapper of a worker's exception, from the frame that raises it anew; else None."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_name == "reraise":
            wrapper = trace.tb_frame.f_locals.get("self")
            if isinstance(getattr(wrapper, "exc_type", None), type):
                return wrapper
        trace = trace.tb_next
    return None


def _from_worker(error: BaseException, wrapper: Any, stage: str) -> ErrorFacts:
    """Facts of a worker's exception, and of what it became on the way."""
    kind, text = wrapper.exc_type, str(wrapper.exc_msg)
    group = _GROUP.search(text)
    told = from_text(_GROUP_EDGE.sub("", text) if group else text, stage)
    if told is None:
        told = ErrorFacts(stage, kind.__name__, _first_line(text), _tail(text))
    message = group["message"] if group else told.message
    told = replace(told, type=kind.__name__, message=message)
    return told if type(error) is kind else replace(told, arrival=_arrival(error, kind))


def _arrival(error: BaseException, kind: type) -> ArrivalFacts:
    """Why an exception came as another: how PyTorch made it, and what its type asks for."""
    keyword = bool(getattr(kind, "message", None))
    try:
        constructor = f"{kind.__name__}{inspect.signature(kind)}"
    except (ValueError, TypeError):  # a type in C that does not tell
        constructor = None
    return ArrivalFacts(type(error).__name__, constructor, _definition(kind), keyword)


def _definition(kind: type) -> str | None:
    """``file:line`` of the constructor of a class of the user's, else of the class itself."""
    for name in ("__init__", "__new__"):
        code = getattr(getattr(kind, name), "__code__", None)
        if code is not None and belongs_to_user(code.co_filename):
            return f"{code.co_filename}:{code.co_firstlineno}"
    try:
        file, line = inspect.getsourcefile(kind), inspect.getsourcelines(kind)[1]
    except (OSError, TypeError):
        return None
    return f"{file}:{line}" if file is not None and belongs_to_user(file) else None


def from_text(text: str, stage: str) -> ErrorFacts | None:
    """Facts of the last traceback in a text, or None if it holds none.

    Processes that fail at once write their lines in turns: where no exception follows the last
    header, what stands since the header before it is read as one.
    """
    start = max(text.rfind(_HEADER), text.rfind(_WORKER_MESSAGE))
    while start >= 0:
        first, *rest = text[start:].splitlines()
        lines = [first, *(line for line in rest if line != _HEADER)]
        end = _last_line(lines)
        if end is not None:
            return _from_lines(lines[: end + 1], stage)
        start = text.rfind(_HEADER, 0, start)
    return None


def _from_lines(lines: list[str], stage: str) -> ErrorFacts:
    match = _LAST_LINE.match(lines[-1])
    assert match is not None
    name = match["type"].rpartition(".")[2]
    shown = _tail("\n".join(lines))
    return _facts(stage, name, match["message"] or "", shown, _frames(lines))


def from_fault(text: str) -> ErrorFacts | None:
    """Facts of a crash in native code, from what faulthandler printed of it; else None."""
    start = text.find(_FAULT)
    if start < 0:
        return None
    kind, _, stacks = text[start + len(_FAULT) :].partition("\n")
    _, _, current = stacks.partition("Current thread 0x")
    stack = current.partition("\n\n")[0]
    found = [m for line in stack.splitlines() if (m := _FAULT_FRAME.match(line))]
    frames = [Frame(m["file"], int(m["line"]), m["function"]) for m in reversed(found)]
    return _facts("fault", kind.strip(), "", _tail(text[start:]), frames)


def source_line(file: str, line: int) -> str | None:
    """A line of source as it stands, without its indentation; None where it cannot be read."""
    return linecache.getline(file, line).strip() or None


def recursive_start_line(text: str) -> str | None:
    """``file:line`` of the top-level line that starts a process while its module is imported.

    Read from Python's own refusal (`multiprocessing.spawn`, "bootstrapping phase"). Several
    workers may be refused at once and write their lines in turns: where another's header stands
    between the refusal and its frames, the frames before that header are read.
    """
    end = text.find(_REFUSED)
    start = end
    while start > 0:
        start = text.rfind(_HEADER, 0, start)
        frames = _frames(text[max(start, 0) : end].splitlines())
        own = [f for f in frames if f.function == "<module>" and belongs_to_user(f.file)]
        if own:
            return f"{own[-1].file}:{own[-1].line}"
    return None


def _frames(lines: Iterable[str]) -> Iterable[Frame]:
    for line in lines:
        match = _FRAME.match(line)
        if match:
            yield Frame(match["file"], int(match["line"]), match["function"])


def _last_line(lines: list[str]) -> int | None:
    """Index of the line that names the exception: the first unindented one after a frame."""
    seen_frame = False
    for index, line in enumerate(lines):
        seen_frame = seen_frame or _FRAME.match(line) is not None
        if seen_frame and line and not line[0].isspace() and _LAST_LINE.match(line):
            return index
    return None


def _facts(stage: str, name: str, message: str, shown: str, frames: Iterable[Frame]) -> ErrorFacts:
    all_frames = list(frames)
    own = [frame for frame in all_frames if belongs_to_user(frame.file)]
    others = [frame for frame in all_frames if not frame.file.startswith(_PACKAGE + os.sep)]
    if not own and not others:
        return ErrorFacts(stage, name, message, shown)
    inner = (own or others)[-1]
    source = linecache.getline(inner.file, inner.line).strip() or None
    return ErrorFacts(stage, name, message, shown, inner.file, inner.line, inner.function, source)


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else ""


def _tail(text: str, limit: int = 6000) -> str:
    text = text.rstrip()
    if len(text) <= limit:
        return text
    return text[: limit // 3] + "\n  [...]\n" + text[-2 * limit // 3 :]
