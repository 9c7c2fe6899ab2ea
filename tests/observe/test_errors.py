"""Errors as facts: the user's innermost line, wherever the exception was raised."""

from __future__ import annotations

import builtins
import json
import os
import subprocess
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import Any

import pytest
from torch._utils import ExceptionWrapper

from pytest_dataloader import markers
from pytest_dataloader.observe.bench import lost_batch
from pytest_dataloader.observe.errors import (
    belongs_to_user,
    from_exception,
    from_fault,
    from_text,
    recursive_start_line,
)
from pytest_dataloader.observe.facts import ArrivalFacts, ErrorFacts

HERE = __file__


class Broken(Exception):
    class Inner(Exception):
        pass


class WithArguments(Exception):
    def __init__(self, code: int, *, needed: str) -> None:
        super().__init__(f"{code} {needed}")


def line_of(text: str) -> int:
    """The number of the one line of this file that ends with ``text`` as a comment."""
    lines = Path(HERE).read_text(encoding="utf-8").splitlines()
    (number,) = [n for n, line in enumerate(lines, 1) if line.endswith(f"# {text}")]
    return number


def fail(error: BaseException) -> None:
    raise error  # the line that raises


def raised(error: BaseException) -> BaseException:
    try:
        fail(error)
    except BaseException as caught:
        return caught
    raise AssertionError


def text_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def from_worker(error: Exception) -> ErrorFacts:
    """Facts of an error that travels from a worker as torch makes it travel."""
    try:
        fail(error)
    except Exception:
        wrapper = ExceptionWrapper(where="in DataLoader worker process 0")
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - any
        wrapper.reraise()
    return from_exception(caught.value, "iterate")


def seen(facts: ErrorFacts | None) -> tuple[Any, ...]:
    assert facts is not None
    return facts.type, facts.message, facts.where, facts.function, facts.source


RAISES = (f"{HERE}:{line_of('the line that raises')}", "fail")
SOURCE = "raise error  # the line that raises"


def test_an_exception_of_this_process() -> None:
    facts = from_exception(raised(ValueError("no\nsecond line")), "build")

    assert facts.stage == "build"
    assert seen(facts) == ("ValueError", "no", *RAISES, SOURCE)
    assert facts.traceback.startswith("Traceback (most recent call last):\n")
    assert facts.traceback.endswith("ValueError: no\nsecond line")


@pytest.mark.parametrize(
    ("error", "name", "message"),
    [
        (ValueError("no"), "ValueError", "no"),
        (ValueError("no\nsecond"), "ValueError", "no"),
        (ValueError("no: yes"), "ValueError", "no: yes"),
        (ValueError(), "ValueError", ""),
        (KeyError("a"), "KeyError", "'a'"),
        (Broken("b"), "Broken", "b"),
        (Broken.Inner("b"), "Inner", "b"),
        (WithArguments(3, needed="x"), "WithArguments", "3 x"),
        (json.JSONDecodeError("bad", "{", 0), "JSONDecodeError", "bad: line 1 column 1 (char 0)"),
    ],
)
def test_an_error_is_the_same_here_in_a_worker_and_as_text(
    error: Exception, name: str, message: str
) -> None:
    expected = (name, message, *RAISES, SOURCE)

    assert seen(from_exception(raised(error), "iterate")) == expected
    assert seen(from_text(text_of(raised(error)), "iterate")) == expected
    assert seen(from_worker(error)) == expected


def test_a_class_inside_a_function_is_named_without_it() -> None:
    class Local(Exception):
        pass

    error = Local("no\nlast")
    expected = ("Local", "no", *RAISES, SOURCE)

    assert seen(from_exception(raised(error), "iterate")) == expected
    assert seen(from_text(text_of(raised(error)), "iterate")) == expected
    assert seen(from_worker(error)) == expected


def test_a_workers_traceback_is_the_workers_own() -> None:
    facts = from_worker(ValueError("no"))

    assert facts.traceback.startswith("Traceback (most recent call last):\n")
    assert facts.traceback.endswith("\nValueError: no")
    assert "reraise" not in facts.traceback
    assert "Caught ValueError in DataLoader worker" not in facts.traceback


def test_the_last_of_chained_exceptions_is_told() -> None:
    def chained() -> None:
        try:
            fail(KeyError("first"))
        except KeyError as error:
            raise LookupError("second") from error  # the chained line

    with pytest.raises(LookupError) as caught:
        chained()
    expected = (
        "LookupError",
        "second",
        f"{HERE}:{line_of('the chained line')}",
        "chained",
        'raise LookupError("second") from error  # the chained line',
    )

    facts = from_exception(caught.value, "iterate")
    assert seen(facts) == expected
    assert "KeyError: 'first'" in facts.traceback
    assert seen(from_text(text_of(caught.value), "iterate")) == expected


def test_the_innermost_line_of_the_user_is_told_not_the_librarys() -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("{")  # own line

    facts = from_exception(caught.value, "iterate")

    assert facts.type == "JSONDecodeError"
    assert facts.where == f"{HERE}:{line_of('own line')}"
    assert facts.source == 'json.loads("{")  # own line'


def test_without_a_line_of_the_user_the_innermost_is_told() -> None:
    file = json.decoder.__file__
    text = (
        "Traceback (most recent call last):\n"
        f'  File "{json.__file__}", line 346, in loads\n'
        f'  File "{file}", line 337, in decode\n'
        "ValueError: no\n"
    )

    facts = from_text(text, "start")

    assert facts is not None
    assert (facts.stage, facts.where, facts.function) == ("start", f"{file}:337", "decode")


def test_an_error_without_a_traceback_has_no_place() -> None:
    facts = from_exception(ValueError("no"), "build")

    assert seen(facts) == ("ValueError", "no", None, None, None)


def test_a_syntax_error_is_at_the_line_that_does_not_parse(tmp_path: Path) -> None:
    file = tmp_path / "user.py"
    file.write_text("x = 1\ny = (\n", encoding="utf-8")
    with pytest.raises(SyntaxError) as caught:
        compile(file.read_text(encoding="utf-8"), str(file), "exec")

    facts = from_exception(caught.value, "build")
    told = from_text(text_of(caught.value), "build")

    assert (facts.type, facts.where, facts.function, facts.source) == (
        "SyntaxError",
        f"{file}:2",
        None,
        "y = (",
    )
    assert told is not None
    assert (told.type, told.where, told.source) == ("SyntaxError", f"{file}:2", "y = (")


def test_the_last_traceback_of_a_childs_standard_error_is_told() -> None:
    text = (
        "a warning\n"
        + text_of(raised(ValueError("first")))
        + "between\n"
        + text_of(raised(TypeError("second")))
        + "/lib/resource_tracker.py:254: UserWarning: leaked\n"
    )

    facts = from_text(text, "start")

    assert seen(facts) == ("TypeError", "second", *RAISES, SOURCE)
    assert facts is not None
    assert facts.traceback.endswith("TypeError: second")
    assert "first" not in facts.traceback


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no traceback",
        "Traceback (most recent call last):\n",
        'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    cut',
    ],
)
def test_a_text_without_a_whole_traceback_tells_nothing(text: str) -> None:
    assert from_text(text, "start") is None


def test_a_long_traceback_keeps_its_ends() -> None:
    facts = from_exception(raised(ValueError("x" * 20_000)), "iterate")

    assert len(facts.traceback) < 6100
    assert "\n  [...]\n" in facts.traceback
    assert facts.traceback.startswith("Traceback (most recent call last):\n")
    assert facts.traceback.endswith("xxx")


# Whose line ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "users"),
    [
        (HERE, True),
        ("relative.py", True),
        ("<string>", False),
        ("<frozen importlib._bootstrap>", False),
        (os.__file__, False),
        (pytest.__file__, False),
        (from_text.__code__.co_filename, False),
        (sysconfig.get_path("stdlib") + "_of_mine/data.py", True),
    ],
)
def test_whose_a_file_is(file: str, users: bool) -> None:
    assert belongs_to_user(file) is users


# Python's own refusal ------------------------------------------------------------------------


def test_the_line_that_starts_processes_at_import_is_found(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(
        "import multiprocessing\n"
        "def work():\n"
        "    pass\n"
        "def go():\n"
        "    process = multiprocessing.get_context('spawn').Process(target=work)\n"
        "    process.start()\n"
        "    process.join()\n"
        "go()\n",
        encoding="utf-8",
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)

    assert recursive_start_line(done.stderr) == f"{script}:8"


def test_other_texts_hold_no_such_line() -> None:
    assert recursive_start_line(text_of(raised(RuntimeError("other")))) is None


def test_the_line_is_found_where_two_workers_write_in_turns() -> None:
    first = [
        "Traceback (most recent call last):",
        '  File "<string>", line 1, in <module>',
        '  File "/home/u/train.py", line 25, in <module>',
        "RuntimeError: ",
        "        An attempt has been made to start a new process before the",
        "        current process has finished its bootstrapping phase.",
    ]
    woven = "\n".join([*first[:3], *first[:2], *first[3:], *first[2:]])

    assert recursive_start_line(woven) == "/home/u/train.py:25"


def test_an_exception_is_found_where_two_workers_write_in_turns() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "/usr/lib/python3.11/multiprocessing/queues.py", line 244, in _feed',
        "    obj = _ForkingPickler.dumps(obj)",
        "AttributeError: Can't pickle local object 'make.<locals>.<lambda>'",
    ]
    woven = "\n".join([*lines[:3], *lines[:1], *lines[3:], *lines[1:]])
    told = from_text(woven, "send")
    assert told is not None
    assert (told.type, told.message) == (
        "AttributeError",
        "Can't pickle local object 'make.<locals>.<lambda>'",
    )
    assert lost_batch(f"a warning\n{woven}") == woven


def test_a_refusal_without_a_line_of_the_user_tells_nothing() -> None:
    refusal = (
        "Traceback (most recent call last):\n"
        '  File "<string>", line 1, in <module>\n'
        "RuntimeError: \n"
        "        An attempt has been made to start a new process before the\n"
        "        current process has finished its bootstrapping phase.\n"
    )

    assert recursive_start_line(refusal) is None


def test_our_own_line_is_never_the_place() -> None:
    with pytest.raises(ValueError, match="takes none") as caught:
        markers.parse("dl_fork_safe", (5,), {})
    below_this_test = caught.value.with_traceback(caught.tb.tb_next)

    assert from_exception(below_this_test, "start").where is None


# What an exception becomes on its way from a worker ----------------------------------------------


class WithMessage(Exception):
    """torch gives a type that has a ``message`` the text by that name."""

    message = "always there"


def reraised(error: BaseException) -> BaseException:
    """What torch raises in the test process for an exception of a worker."""
    try:
        raise error
    except BaseException:
        wrapper = ExceptionWrapper(where="in DataLoader worker process 0")
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of any type
        wrapper.reraise()
    return caught.value


def place_of(kind: type) -> str:
    return f"{HERE}:{kind.__init__.__code__.co_firstlineno}"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("error", "name", "message", "arrival"),
    [
        (Broken("x"), "Broken", "x", None),
        (Broken.Inner("x"), "Inner", "x", None),
        (KeyError("x"), "KeyError", "'x'", None),
        (
            WithArguments(3, needed="n"),
            "WithArguments",
            "3 n",
            ArrivalFacts(
                "RuntimeError",
                "WithArguments(code: 'int', *, needed: 'str') -> 'None'",
                place_of(WithArguments),
            ),
        ),
        (
            UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"),
            "UnicodeDecodeError",
            "'utf-8' codec can't decode byte 0x78 in position 0: bad",
            ArrivalFacts("RuntimeError"),
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_what_an_exception_arrives_as(
    error: BaseException, name: str, message: str, arrival: ArrivalFacts | None
) -> None:
    facts = from_exception(reraised(error), "iterate")
    assert (facts.type, facts.message, facts.arrival) == (name, message, arrival)
    assert facts.file == HERE


@pytest.mark.skipif(sys.version_info < (3, 11), reason="there are no exception groups here")
def test_a_group_arrives_as_a_mistake_of_its_making() -> None:
    kind: Any = getattr(builtins, "ExceptionGroup", None)
    facts = from_exception(reraised(kind("two", [ValueError("a"), ValueError("b")])), "iterate")
    assert (facts.type, facts.message) == ("ExceptionGroup", "two (2 sub-exceptions)")
    assert facts.arrival == ArrivalFacts("TypeError", keyword=True)
    assert facts.file == HERE


def test_a_message_on_the_type_is_taken_for_a_parameter() -> None:
    arrival = from_exception(reraised(WithMessage("x")), "iterate").arrival
    assert arrival is not None
    assert (arrival.type, arrival.keyword) == ("TypeError", True)


# A crash in native code --------------------------------------------------------------------------


def test_a_crash_is_told_by_the_innermost_line_of_the_user() -> None:
    stdlib = sysconfig.get_path("stdlib")
    text = (
        "Fatal Python error: Segmentation fault\n\n"
        "Thread 0x00007f01 (most recent call first):\n"
        f'  File "{stdlib}/threading.py", line 324 in wait\n\n'
        "Current thread 0x00007f02 (most recent call first):\n"
        f'  File "{stdlib}/ctypes/__init__.py", line 519 in string_at\n'
        '  File "/home/u/data.py", line 12 in read\n'
        '  File "/home/u/data.py", line 30 in __getitem__\n\n'
        "Extension modules: torch._C (total: 1)\n"
        "ERROR: Unexpected segmentation fault encountered in worker.\n"
    )
    facts = from_fault(text)
    assert facts is not None
    assert (facts.stage, facts.type, facts.message) == ("fault", "Segmentation fault", "")
    assert (facts.where, facts.function) == ("/home/u/data.py:12", "read")


def test_no_crash_is_no_fault() -> None:
    assert from_fault("Traceback (most recent call last):\nValueError: x\n") is None
