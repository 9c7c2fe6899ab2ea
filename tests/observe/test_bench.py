"""One run's bench: which exceptions are a run's outcome, and which are meant for others."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_dataloader.matrix import LoaderConfig
from pytest_dataloader.observe import bench as benches, errors, processes
from pytest_dataloader.observe.bench import Bench
from pytest_dataloader.observe.facts import RAISED, RunRequest
from pytest_dataloader.observe.watchdog import RunInterrupted


class Stop(BaseException):
    """A user's own exception that is no `Exception`."""


#: Tools, pipeline, request and journal of a run with a forked worker.
FORKED: Any = (
    SimpleNamespace(),
    SimpleNamespace(build=lambda *_args, **_options: None, rebuilds=False),
    RunRequest(LoaderConfig("fork", 1)),
    SimpleNamespace(),
)


def guarded(error: BaseException) -> Bench:
    bench = Bench(*FORKED, before=frozenset(multiprocessing.active_children()))

    def body() -> None:
        raise error

    bench.guarded(body)
    return bench


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), Stop("no")], ids=repr)
def test_what_the_user_s_code_raises_is_an_outcome(error) -> None:
    bench = guarded(error)
    assert bench.outcome == RAISED
    assert bench.error is not None
    assert (bench.error.type, bench.error.stage) == (type(error).__name__, "build")


@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt(), RunInterrupted(), pytest.skip.Exception("x"), pytest.fail.Exception("x")],
    ids=lambda error: type(error).__name__,
)
def test_what_is_meant_for_others_goes_on(error) -> None:
    with pytest.raises(type(error)):
        guarded(error)


def forked() -> Any:
    return multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))


@pytest.mark.skipif(sys.platform == "win32", reason="starts processes by fork")
def test_processes_that_the_user_s_code_starts_are_not_taken_for_workers(monkeypatch) -> None:
    monkeypatch.setattr(benches, "_JOIN_S", 0.0)
    bench = Bench(*FORKED, before=frozenset(multiprocessing.active_children()))
    built, worker, pool, late = (forked() for _ in range(4))
    try:
        bench.pipeline.build = lambda *_args, **_options: built.start()
        bench.build(None)
        worker.start()
        pool.start()
        assert built not in bench.working
        assert {worker, pool} <= set(bench.working)  # workers may be on their way
        bench.take_workers(SimpleNamespace(_workers=[worker]))
        late.start()
        assert bench.working == [worker]
        bench.close()
        assert not worker.is_alive()
        assert all(process.is_alive() for process in (built, pool, late))
    finally:
        processes.end([built, worker, pool, late])


@pytest.mark.skipif(sys.platform == "win32", reason="starts its worker by fork")
def test_workers_are_ended_at_once_when_an_exception_is_meant_for_others() -> None:
    bench = Bench(*FORKED, before=frozenset(multiprocessing.active_children()))
    worker = forked()

    def body() -> None:
        worker.start()
        pytest.fail("out of time")

    with pytest.raises(pytest.fail.Exception, match="out of time"):
        bench.guarded(body)
    assert worker.exitcode == -signal.SIGTERM


def test_a_death_that_is_heard_of_while_another_error_is_written_down(monkeypatch) -> None:
    """torch's handler raises in the main thread, at whatever it is."""
    written_down = errors.from_exception
    heard: list[str] = []

    def interrupted(error: BaseException, stage: str) -> Any:
        heard.append(str(error))
        if len(heard) == 1:
            raise RuntimeError("DataLoader worker (pid 3) is killed by signal: Killed.")
        return written_down(error, stage)

    monkeypatch.setattr(errors, "from_exception", interrupted)
    bench = guarded(ConnectionResetError("cut off"))
    assert heard == ["cut off", "DataLoader worker (pid 3) is killed by signal: Killed."]
    assert bench.error is not None
    assert bench.error.type == "RuntimeError"
