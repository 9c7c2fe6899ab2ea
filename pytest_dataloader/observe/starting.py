"""Start methods as context objects, and the warm start: a private fork server that has torch.

A warm-started worker begins in the state that a spawned one has after ``import torch``: a
process forked from a server that has imported torch and nothing of the user's, which then gets
the parent's ``sys.path``, ``sys.argv``, working directory, environment and main module as
`multiprocessing.spawn.prepare` gives them to any spawned child. What it does not have is a hash
seed of its own: all warm-started workers of a session share the server's.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import multiprocessing.context
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import util
from pathlib import Path
from typing import Any

from pytest_dataloader.observe import worker
from pytest_dataloader.observe.facts import IN_PROCESS, TRUE_START, WARM_START

PRELOADED = ("torch", "torch.utils.data", "pytest_dataloader.observe.worker")


def can_warm_start() -> bool:
    """Whether this platform can fork a process from a server."""
    return "forkserver" in multiprocessing.get_all_start_methods()


class Starter:
    """Gives the context under which a run starts its workers; owns the warm server."""

    def __init__(self, *, true_starts: bool = False) -> None:
        self._warm = can_warm_start() and not true_starts
        self._server: Any = None
        self._seeded: dict[int, tuple[Any, dict[str, Any]]] = {}

    def context(self, method: str | None, *, repeat: bool) -> tuple[Any, str]:
        """The context for a start method, and the kind of start: true, warm or in-process."""
        if method is None:
            return None, IN_PROCESS
        if repeat and self._warm and method != "fork":
            return self._warm_contexts()[method], WARM_START
        return multiprocessing.get_context(method), TRUE_START

    def fresh_process(self) -> Any:
        """The context whose processes are fresh interpreters, started in the cheapest way."""
        return self.context("spawn", repeat=True)[0]

    def hash_seeds(self) -> tuple[int | None, ...]:
        """Hash seeds to compare; None stands for that of the warm server, drawn at its start."""
        ours = os.environ.get("PYTHONHASHSEED", "")
        chosen = tuple(seed for seed in (1, 2, 3) if str(seed) != ours)[:2]
        return (None, *chosen) if self._warm else chosen

    @contextlib.contextmanager
    def hash_seeded(self, seed: int | None) -> Iterator[Any]:
        """The context for a fresh interpreter with this hash seed, to start it in the body."""
        if seed is None:
            yield self.fresh_process()
        elif not self._warm:
            with _environment("PYTHONHASHSEED", str(seed)):
                yield multiprocessing.get_context("spawn")
        else:
            if seed not in self._seeded:
                with _environment("PYTHONHASHSEED", str(seed)):
                    self._seeded[seed] = _new_server()
            yield self._seeded[seed][1]["spawn"]

    def warm_server(self) -> WarmServer | None:
        """The address of the warm server, for processes that start others; None without one."""
        if not self._warm:
            return None
        self._warm_contexts()
        self._server.ensure_running()
        return WarmServer.of(self._server)

    def script_context(self) -> Any:
        """The context for a script's own process: it gets no main module and no path of ours."""
        self._warm_contexts()
        return warm_contexts(self._server, _for_script)["spawn"]

    @property
    def server_pid(self) -> int | None:
        """The process id of the warm server, if it runs."""
        return self._server._forkserver_pid if self._server is not None else None

    def _warm_contexts(self) -> dict[str, Any]:
        if self._server is None:
            self._server, self._contexts = _new_server()
        return self._contexts

    def close(self) -> None:
        """End the warm servers and wait for them."""
        if self._server is not None:
            self._server._stop()
            self._server = None
        while self._seeded:
            self._seeded.popitem()[1][0]._stop()


def _new_server() -> tuple[Any, dict[str, Any]]:
    from multiprocessing.forkserver import ForkServer

    server: Any = ForkServer()
    server.set_forkserver_preload(list(PRELOADED))
    with _package_importable():
        server.ensure_running()
    return server, warm_contexts(server)


def _package_importable() -> contextlib.AbstractContextManager[None]:
    """Let a new interpreter find this package even where only ``sys.path`` leads to it."""
    before = os.environ.get("PYTHONPATH")
    folder = str(Path(__file__).resolve().parents[2])
    return _environment("PYTHONPATH", folder if before is None else f"{before}{os.pathsep}{folder}")


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Another value of an environment variable, for the processes that the body starts."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@dataclass(frozen=True)
class WarmServer:
    """A running warm server, as a process that did not start it knows it. Picklable."""

    address: str
    secret: bytes | None

    @classmethod
    def of(cls, server: Any) -> WarmServer:
        return cls(server._forkserver_address, getattr(server, "_forkserver_authkey", None))

    def connect_to_new_process(self, fds: list[int]) -> tuple[int, int]:
        """Ask for a new process, through Python's own client code."""
        from multiprocessing import forkserver

        client: Any = forkserver.ForkServer()
        this_process: Any = forkserver._forkserver
        client._forkserver_address = self.address
        client._forkserver_alive_fd = this_process._forkserver_alive_fd
        client._forkserver_authkey = self.secret
        client.ensure_running = lambda: None
        pair: tuple[int, int] = client.connect_to_new_process(fds)
        return pair


def _for_script(data: dict[str, Any]) -> dict[str, Any]:
    dropped = ("sys_path", "sys_argv", "init_main_from_name", "init_main_from_path", "start_method")
    return {key: value for key, value in data.items() if key not in dropped}


class Prepared:
    """Preparation data that, unpickled in the child, also gives it what a spawn inherits.

    That is the environment and the standard streams, which are passed on as descriptors.
    """

    def __init__(self, data: dict[str, Any], streams: dict[int, int]) -> None:
        self.data = data
        self.streams = streams

    def __reduce__(self) -> tuple[Any, ...]:
        return worker.restore_state, (dict(os.environ), self.streams, self.data)


def _open_streams() -> list[int]:
    """Which of standard output and standard error this process has."""
    found = []
    for fd in (1, 2):
        with contextlib.suppress(OSError):
            os.fstat(fd)
            found.append(fd)
    return found


if sys.platform == "win32":

    def warm_contexts(
        server: Any, keep: Callable[[dict[str, Any]], dict[str, Any]] = dict
    ) -> dict[str, Any]:
        """There is no fork server on Windows; nobody asks where `can_warm_start` says no."""
        raise NotImplementedError

else:

    def warm_contexts(
        server: Any, keep: Callable[[dict[str, Any]], dict[str, Any]] = dict
    ) -> dict[str, Any]:
        """Contexts named spawn and forkserver whose processes are forked from ``server``."""
        from multiprocessing import popen_forkserver, spawn
        from multiprocessing.forkserver import read_signed

        private: Any = multiprocessing.context
        private_util: Any = util
        set_spawning_popen, reduction = private.set_spawning_popen, private.reduction

        class WarmPopen(popen_forkserver.Popen):
            _fds: list[int]

            def _launch(self, process_obj: Any) -> None:
                streams = {self.duplicate_for_child(fd): fd for fd in _open_streams()}
                prep_data = Prepared(keep(spawn.get_preparation_data(process_obj._name)), streams)
                buffer = io.BytesIO()
                set_spawning_popen(self)
                try:
                    reduction.dump(prep_data, buffer)
                    reduction.dump(process_obj, buffer)
                finally:
                    set_spawning_popen(None)
                self.sentinel, to_child = server.connect_to_new_process(self._fds)
                fds = (os.dup(to_child), self.sentinel)
                self.finalizer = util.Finalize(self, private_util.close_fds, fds)
                with open(to_child, "wb", closefd=True) as pipe:
                    pipe.write(buffer.getbuffer())
                self.pid = read_signed(self.sentinel)

        class SpawnProcess(multiprocessing.context.SpawnProcess):
            _Popen: Any = staticmethod(WarmPopen)
            __reduce_ex__: Any = _travel_as(multiprocessing.context.SpawnProcess)

        class ForkServerProcess(multiprocessing.context.ForkServerProcess):
            _Popen: Any = staticmethod(WarmPopen)
            __reduce_ex__: Any = _travel_as(multiprocessing.context.ForkServerProcess)

        class WarmSpawn(multiprocessing.context.SpawnContext):
            Process = SpawnProcess

        class WarmForkServer(multiprocessing.context.ForkServerContext):
            Process = ForkServerProcess

        return {"spawn": WarmSpawn(), "forkserver": WarmForkServer()}


def _travel_as(kind: type) -> Callable[[Any, int], tuple[Any, ...]]:
    """Let a process object arrive in the child as one of Python's own classes."""

    def reduce(self: Any, _protocol: int) -> tuple[Any, ...]:
        return worker.new_object, (kind,), self.__dict__

    return reduce
