"""Runs a user's script as ``__main__`` under a start method, in a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import psutil

from pytest_dataloader.observe import clock, errors, processes, scripthost
from pytest_dataloader.observe.facts import (
    DIED,
    HUNG,
    OK,
    RAISED,
    TRUE_START,
    WARM_START,
    LeftBehind,
    RunFacts,
    RunRequest,
)
from pytest_dataloader.observe.starting import Starter

MOST_PROCESSES = 64
_POLL_S = 0.05
_LONGEST_TIMEOUTS = 20
_TAIL_BYTES = 64 * 1024


class _Host(Protocol):
    """The script's process, however it was started."""

    pid: int

    def poll(self) -> int | None: ...


def run_script(
    request: RunRequest,
    starter: Starter,
    *,
    folder: Path,
    timeout_s: float,
    tick: Callable[[], None],
) -> RunFacts:
    """Run ``request.script`` with its arguments in this working directory.

    It is ended when it and its children neither write nor compute for ``timeout_s``, when it
    takes twenty times as long in all, or when it has more than `MOST_PROCESSES` descendants.
    """
    out, err = folder / "script-out", folder / "script-err"
    for stream in (out, err):
        stream.write_bytes(b"")
    host, start, others = _start(request, starter, (str(out), str(err)))
    watch = _Watch(host, others, (out, err), timeout_s)
    try:
        while host.poll() is None and not watch.verdict:
            tick()
            watch.look()
            time.sleep(_POLL_S)
    finally:
        left = watch.end()
    return _facts(request, start, host.poll(), watch, stderr=_tail(err), left=left)


def _start(
    request: RunRequest, starter: Starter, streams: tuple[str, str]
) -> tuple[_Host, str, Callable[[], set[psutil.Process]]]:
    """Start the script; also says where else its processes are to be looked for."""
    method = request.config.start_method or "spawn"
    assert request.script is not None
    server = starter.warm_server()
    if server is None:
        command = [sys.executable, scripthost.__file__, method, request.script, *request.args]
        env = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
        with open(streams[0], "ab") as out, open(streams[1], "ab") as err:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=env,
                start_new_session=True,
            )
        return process, TRUE_START, set
    known = processes.children_of(starter.server_pid)
    context = starter.script_context()
    target: Any = context.Process(
        target=scripthost.run_in_warm_process,
        args=(request.script, request.args, method, streams, server),
        name="script",
    )
    target.start()

    def others() -> set[psutil.Process]:
        return processes.children_of(starter.server_pid) - known

    return _WarmHost(target), WARM_START, others


class _WarmHost:
    """A warm-started script, with the face of `subprocess.Popen`."""

    def __init__(self, process: Any) -> None:
        self.process = process
        self.pid: int = process.pid

    def poll(self) -> int | None:
        code: int | None = self.process.exitcode
        return code


class _Watch:
    """Counts a script's processes and notices when they neither write nor compute."""

    def __init__(
        self,
        host: _Host,
        others: Callable[[], set[psutil.Process]],
        streams: tuple[Path, Path],
        timeout_s: float,
    ) -> None:
        self.host = host
        self.others = others
        self.streams = streams
        self.timeout_s = timeout_s
        self.most = 1
        self.verdict = ""
        self._seen: set[psutil.Process] = set()
        self._progress: tuple[int, int] = (0, 0)
        self._began = self._last = clock.now()

    def look(self) -> None:
        """Look once; sets ``verdict`` when the script must be ended."""
        now = clock.now()
        alive = self._alive()
        self._seen |= alive
        self.most = max(self.most, len(alive | {self.host.pid}))
        progress = (sum(s.stat().st_size for s in self.streams), _cpu_tenths(alive))
        if progress != self._progress:
            self._progress, self._last = progress, now
        if len(alive) > MOST_PROCESSES:
            self.verdict = f"it had started {len(alive)} processes, more than {MOST_PROCESSES}"
        elif now - self._last > self.timeout_s:
            self.verdict = f"no output and no computing for {self.timeout_s:g} s"
        elif now - self._began > self.timeout_s * _LONGEST_TIMEOUTS:
            self.verdict = f"not at its end after {self.timeout_s * _LONGEST_TIMEOUTS:g} s"

    def _alive(self) -> set[psutil.Process]:
        found = processes.children_of(self.host.pid) | self.others()
        with contextlib.suppress(psutil.Error):
            found.add(psutil.Process(self.host.pid))
        return found

    def end(self) -> tuple[str, ...]:
        """End what is left of the script's processes; names those that outlived it."""
        left = {p for p in self._seen | self.others() if p.is_running()}
        survivors = [p for p in left if p.pid != self.host.pid and not processes.is_helper(p)]
        names = tuple(processes.described(p) for p in survivors)
        processes.end_trees(left)
        deadline = clock.now() + 5.0
        while self.host.poll() is None and clock.now() < deadline:
            time.sleep(_POLL_S)
        return names


def _cpu_tenths(alive: set[psutil.Process]) -> int:
    total = 0.0
    for process in alive:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return int(total * 10)


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        return file.read().decode("utf-8", "replace")


def _facts(
    request: RunRequest,
    start: str,
    code: int | None,
    watch: _Watch,
    *,
    stderr: str,
    left: tuple[str, ...],
) -> RunFacts:
    outcome, reason = OK, None
    if watch.verdict:
        outcome, reason = HUNG, watch.verdict
    elif code is not None and code < 0:
        with contextlib.suppress(ValueError):
            reason = f"the script was ended by {signal.Signals(-code).name} (signal {-code})"
        outcome = DIED
    elif code:
        outcome, reason = RAISED, f"the script ended with exit code {code}"
    return RunFacts(
        request=request,
        start=start,
        outcome=outcome,
        reason=reason,
        error=errors.from_text(stderr, "script") if outcome != OK else None,
        stderr_tail=stderr[-8000:],
        exit_code=code,
        most_processes=watch.most,
        recursive_at=errors.recursive_start_line(stderr),
        left_behind=LeftBehind(processes=left),
    )
