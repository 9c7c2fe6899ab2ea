"""Options and their ini twins: one table, resolved once into one frozen value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple


class SettingError(ValueError):
    """A value that an option or ini key does not take; the message names its source."""


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _start_methods(text: str) -> tuple[str, ...]:
    from pytest_dataloader.matrix import START_METHODS

    valid = (*START_METHODS, "all", "default")
    words = _words(text)
    for word in words:
        if word not in valid:
            raise SettingError(f"{word!r} is not a start method; valid: {', '.join(valid)}")
    if not words:
        raise SettingError(f"no start method given; valid: {', '.join(valid)}")
    return tuple(dict.fromkeys(words))


def _whole_numbers(what: str) -> Callable[[str], tuple[int, ...]]:
    def parse(text: str) -> tuple[int, ...]:
        words = _words(text)
        for word in words:
            if not (word.isascii() and word.isdigit()):
                raise SettingError(
                    f"{word!r} is not {what}; valid: whole numbers from 0, such as 0,2"
                )
        if not words:
            raise SettingError("no value given; valid: whole numbers from 0, such as 0,2")
        return tuple(dict.fromkeys(int(word) for word in words))

    return parse


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise SettingError(f"{text!r} is not a time; valid: seconds above 0, such as 60")
    return seconds


def _yes_or_no(text: str) -> bool:
    answers = {"true": True, "yes": True, "1": True, "on": True}
    answers |= {"false": False, "no": False, "0": False, "off": False}
    if text.lower() not in answers:
        raise SettingError(f"{text!r} is neither yes nor no; valid: {', '.join(answers)}")
    return answers[text.lower()]


def _codes(text: str) -> frozenset[str]:
    from pytest_dataloader.checks.catalogue import UnknownCode, select

    if not _words(text):
        raise SettingError("no code given; valid: codes and families, such as picklability,hang")
    try:
        return select(_words(text))
    except UnknownCode as error:
        raise SettingError(str(error)) from None


def _writable_file(text: str) -> Path:
    path = Path(text)
    if path.is_dir():
        raise SettingError(f"{text!r} is a folder; valid: a file's path")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise SettingError(f"{text!r} cannot be written: there is no folder {str(folder)!r}")
    existed = path.exists()
    try:
        with path.open("ab"):
            pass
        if not existed:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise SettingError(f"{text!r} cannot be written: {error.strerror}") from None
    return path


def _earlier_report(text: str) -> Path:
    from pytest_dataloader.report.reading import ReportError, read

    try:
        read(Path(text))
    except ReportError as error:
        raise SettingError(str(error)) from None
    return Path(text)


def _targets(text: str) -> tuple[str, ...]:
    targets = tuple(line.strip() for line in text.splitlines() if line.strip())
    if not targets:
        raise SettingError(
            "no target given; valid: package.module:attr, path/to/file.py:attr or path/to/script.py"
        )
    return targets


class Option(NamedTuple):
    """One option: flag, ini key, how its text is read, and its value when nothing is said.

    A named tuple, since every session pays for this class.
    """

    name: str
    metavar: str | None
    default: Any
    parse: Callable[[str], Any]
    help: str
    action: str = "store"
    has_ini: bool = True

    @property
    def flag(self) -> str:
        """The command-line option."""
        return "--dl-" + self.name.replace("_", "-")

    @property
    def key(self) -> str:
        """The ini key, and the option's place in ``config.option``."""
        return f"dl_{self.name}"


OPTIONS: tuple[Option, ...] = (
    Option(
        "start_methods",
        "METHODS",
        ("fork", "spawn"),
        _start_methods,
        "start methods to run under, comma-separated: fork, spawn, forkserver, all, or default "
        "(this interpreter's own). Default: fork,spawn.",
    ),
    Option(
        "num_workers",
        "COUNTS",
        (0, 2),
        _whole_numbers("a worker count"),
        "worker counts, comma-separated; 0 is the loader in the test process. Default: 0,2.",
    ),
    Option(
        "seeds",
        "SEEDS",
        (0, 1),
        _whole_numbers("a seed"),
        "seeds used wherever a marker names none, comma-separated. Default: 0,1.",
    ),
    Option(
        "timeout",
        "SECONDS",
        60.0,
        _seconds,
        "seconds without a new batch after which a run counts as a hang. Default: 60.",
    ),
    Option(
        "check",
        "TARGET",
        (),
        _targets,
        "conformance-test TARGET without a test file: package.module:attr, path/to/file.py:attr, "
        "or path/to/script.py, which is run as __main__. Repeatable.",
        action="append",
    ),
    Option(
        "true_starts",
        None,
        False,
        _yes_or_no,
        "start every worker as the user's own program would; no warm starts for repeats.",
        action="store_const",
    ),
    Option(
        "select",
        "CODES",
        None,
        _codes,
        "only these findings count, by code or family, comma-separated. Default: all.",
    ),
    Option(
        "ignore",
        "CODES",
        frozenset(),
        _codes,
        "these findings do not count, by code or family, comma-separated. Default: none.",
    ),
    Option("report", "FILE", None, _writable_file, "write the JSON report to FILE."),
    Option(
        "tune",
        None,
        False,
        _yes_or_no,
        "measure numbers of workers and further arguments of each pipeline; recommend what helps.",
        action="store_const",
    ),
    Option(
        "compare",
        "FILE",
        None,
        _earlier_report,
        "judge this session against an earlier JSON report: rates and start-up on a machine of the "
        "same kind, content on any.",
    ),
    Option(
        "explain",
        "CODE",
        None,
        str,
        "print what a code means, why it happens and how to mend it; then exit.",
        has_ini=False,
    ),
)


@dataclass(frozen=True)
class Settings:
    """All settings of a session, and for each where its value came from."""

    start_methods: tuple[str, ...] = ("fork", "spawn")
    num_workers: tuple[int, ...] = (0, 2)
    seeds: tuple[int, ...] = (0, 1)
    timeout: float = 60.0
    check: tuple[str, ...] = ()
    true_starts: bool = False
    select: frozenset[str] | None = None
    ignore: frozenset[str] = frozenset()
    report: Path | None = None
    tune: bool = False
    compare: Path | None = None
    sources: Mapping[str, str] = field(default_factory=dict)

    def counts(self, code: str) -> bool:
        """Whether findings of this code count."""
        return code not in self.ignore and (self.select is None or code in self.select)

    @property
    def was_asked(self) -> bool:
        """Whether any setting came from the command line."""
        return any(source.startswith("--") for source in self.sources.values())


def resolve(option: Callable[[str], Any], ini: Callable[[str], Any]) -> Settings:
    """Read every option: command line, else ini, else default. Raises `SettingError`.

    ``option`` gives the command line's value for a key, or None; ``ini`` the ini file's text.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for one in OPTIONS:
        if not one.has_ini:
            continue
        values[one.name], sources[one.name] = _value_of(one, option(one.key), ini(one.key))
    return Settings(**values, sources=sources)


def _value_of(one: Option, given: Any, text: str | None) -> tuple[Any, str]:
    if given is not None:
        return _parsed(one, _as_text(given), one.flag), one.flag
    if text:
        return _parsed(one, text, f"the ini key {one.key}"), f"ini {one.key}"
    return one.default, "default"


def _as_text(given: str | bool | Sequence[str]) -> str:
    if isinstance(given, bool):
        return "true" if given else "false"
    return given if isinstance(given, str) else "\n".join(given)


def _parsed(one: Option, text: str, source: str) -> Any:
    try:
        return one.parse(text)
    except SettingError as error:
        raise SettingError(f"{source}: {error}") from None
