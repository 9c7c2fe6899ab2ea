"""Reads a JSON report back: every field that is used is checked, nothing is ever unpickled."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from pytest_dataloader.checks.finding import SEVERITIES
from pytest_dataloader.report.schema import SCHEMA

_MOST_BYTES = 256 * 1024 * 1024
_SHOWN = 60

_Check = Callable[[Any, str], None]


class ReportError(ValueError):
    """A file that is no report; the message names the file, the field, what was expected."""


def read(path: Path) -> dict[str, Any]:
    """The report of a file, as plain data. Raises `ReportError`."""
    try:
        size = path.stat().st_size
        if size > _MOST_BYTES:
            raise ReportError(
                f"{path}: expected a report of at most {_MOST_BYTES:,} bytes, got {size:,}"
            )
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise ReportError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ReportError(f"{path}: expected UTF-8 text; {error.reason}") from None
    return parse(text, str(path))


def parse(text: str, name: str) -> dict[str, Any]:
    """The report in a text; ``name`` says in errors where it came from. Raises `ReportError`."""
    try:
        data = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ReportError(f"{name}: expected a report, got JSON that is nested too deep") from None
    except ValueError as error:
        raise ReportError(f"{name}: expected a JSON report; {error}") from None
    try:
        _report(data, "the report")
    except _WrongError as wrong:
        raise ReportError(f"{name}: {wrong}") from None
    found: dict[str, Any] = data
    return found


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON number")


class _WrongError(ValueError):
    """A field that is not what it should be."""


def _wrong(where: str, expected: str, got: Any) -> NoReturn:
    shown = repr(got)
    shown = shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 3]}..."
    raise _WrongError(f"{where} must be {expected}; got {shown}")


def _text(value: Any, where: str) -> None:
    if not isinstance(value, str):
        _wrong(where, "text", value)


def _number(value: Any, where: str) -> None:
    fits = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not fits or not _is_finite(value):
        _wrong(where, "a number", value)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float holds
        return False


def _from_zero(value: Any, where: str) -> None:
    _number(value, where)
    if value < 0:
        _wrong(where, "a number from 0", value)


def _whole(value: Any, where: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        _wrong(where, "a whole number from 0", value)


def _flag(value: Any, where: str) -> None:
    if not isinstance(value, bool):
        _wrong(where, "true or false", value)


def _one_of(*words: str) -> _Check:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, str) or value not in words:
            _wrong(where, f"one of {', '.join(words)}", value)

    return check


def _or_null(check: _Check) -> _Check:
    return lambda value, where: None if value is None else check(value, where)


def _list_of(check: _Check) -> _Check:
    def check_list(value: Any, where: str) -> None:
        if not isinstance(value, list):
            _wrong(where, "a list", value)
        for index, item in enumerate(value):
            check(item, f"{where}[{index}]")

    return check_list


def _object(required: Mapping[str, _Check], optional: Mapping[str, _Check] = {}) -> _Check:
    """An object with these fields; further ones are nobody's to judge."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            _wrong(where, "an object", value)
        for name, of_field in required.items():
            if name not in value:
                _wrong(where, f"an object with {name!r}", value)
            of_field(value[name], f"{where}.{name}")
        for name, of_field in optional.items():
            if name in value:
                of_field(value[name], f"{where}.{name}")

    return check


_AXES = {
    "persistent_workers": _or_null(_flag),
    "prefetch_factor": _or_null(_whole),
    "pin_memory": _or_null(_flag),
}
_CONFIGURATION = {"start_method": _or_null(_text), "num_workers": _or_null(_whole)}
_RUN = _object(
    {**_CONFIGURATION, "outcome": _one_of("ok", "raised", "died", "hung", "skipped")},
    {
        **_AXES,
        "reason": _or_null(_text),
        "purpose": _text,
        "script": _or_null(_text),
        "start": _text,
        "seed": _whole,
        "repeat": _whole,
        "samples": _or_null(_whole),
        "batches": _or_null(_whole),
        "digest": _or_null(_text),
        "startup_s": _or_null(_from_zero),
        "batches_per_s": _or_null(_from_zero),
        "batches_per_s_low": _or_null(_from_zero),
        "batches_per_s_high": _or_null(_from_zero),
        "reference_s": _or_null(_from_zero),
        "worker_unique_bytes": _or_null(_whole),
    },
)
_FINDING = _object(
    {
        "code": _text,
        "severity": _one_of(*SEVERITIES),
        "configurations": _list_of(_object(_CONFIGURATION, _AXES)),
        "culprit": _or_null(_text),
        "message": _text,
        "advice": _text,
    },
    {"expected": _flag},
)
_PIPELINE = _object({"id": _text, "runs": _list_of(_RUN), "findings": _list_of(_FINDING)})


def _schema(value: Any, where: str) -> None:
    if value != SCHEMA:
        _wrong(where, f"{SCHEMA!r}, the only kind that this version reads", value)


_report = _object(
    {
        "schema": _schema,
        "environment": _object({}, {"os": _text, "python": _text, "torch": _or_null(_text)}),
        "pipelines": _list_of(_PIPELINE),
    }
)
