"""Runs in the script's process: makes it what ``python script.py args`` would be, then runs it.

Imports nothing of the package, so that it can be run as a file by a fresh interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing.context
import multiprocessing.process
import os
import sys
import traceback
import types
from collections.abc import Sequence
from typing import Any


def run(path: str, args: Sequence[str], method: str, context: Any = None) -> int:
    """Run a script as ``__main__`` with ``method`` as the default start method; its exit code."""
    _set_default_start_method(method, context)
    sys.argv = [path, *args]
    sys.path[0] = os.path.dirname(os.path.abspath(path))
    code = _exit_code(lambda: _execute(path))
    _flush()
    return code


def _set_default_start_method(method: str, context: Any) -> None:
    """Change the default without fixing it, so that the script may still choose its own."""
    module: Any = multiprocessing.context
    module._default_context._default_context = context or module._concrete_contexts[method]
    module._default_context._actual_context = None


def _execute(path: str) -> None:
    main = types.ModuleType("__main__")
    main.__file__ = os.path.abspath(path)
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    with open(path, "rb") as file:
        code = compile(file.read(), main.__file__, "exec", dont_inherit=True)
    exec(code, main.__dict__)  # noqa: S102 - running the user's script is the purpose


def _exit_code(body: Any) -> int:
    """The exit code that the interpreter would give."""
    try:
        body()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)  # noqa: T201 - as the interpreter does
        return 1
    except BaseException as error:  # noqa: BLE001 - the interpreter prints whatever ends a script
        traceback.print_exception(type(error), error, _without_our_frames(error.__traceback__))
        return 1
    return 0


def _without_our_frames(raised: types.TracebackType | None) -> types.TracebackType | None:
    """The traceback from the script's own first line on."""
    while raised is not None and raised.tb_frame.f_code.co_filename == __file__:
        raised = raised.tb_next
    return raised


def run_in_warm_process(
    path: str, args: Sequence[str], method: str, streams: tuple[str, str], server: Any
) -> None:
    """The target of a warm-started process that becomes a script's process. Does not return."""
    _become_main_process(streams)
    context = None
    if method != "fork":
        from pytest_dataloader.observe.starting import warm_contexts

        context = warm_contexts(server)[method]
    code = run(path, args, method, context)
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()
    _flush()
    sys.exit(code)


def _become_main_process(streams: tuple[str, str]) -> None:
    """A session and streams of its own; no trace of being a child of multiprocessing."""
    if sys.platform != "win32":
        os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    for fd, stream in enumerate(streams, start=1):
        file = os.open(stream, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(file, fd)
        os.close(file)
    module: Any = multiprocessing.process
    kinds = {kind.__name__: kind for kind in module.BaseProcess.__subclasses__()}
    module._current_process = kinds["_MainProcess"]()
    module._parent_process = None
    os.environ.pop("PYTEST_CURRENT_TEST", None)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


if __name__ == "__main__":
    _method, _path, *_args = sys.argv[1:]
    sys.exit(run(_path, _args, _method))
