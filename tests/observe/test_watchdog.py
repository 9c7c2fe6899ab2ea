"""The watchdog: silence ends a run, beats do not, and nothing of it stays behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from pytest_dataloader.observe.watchdog import RunInterrupted, Watchdog, ask_for_stacks

needs_pthread_kill = pytest.mark.skipif(
    not hasattr(signal, "pthread_kill"), reason="a blocking call cannot be interrupted here"
)


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name == "pytest-dataloader-watchdog"]


class Calls:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def wait_for(condition: Callable[[], object], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@needs_pthread_kill
def test_silence_interrupts_a_sleep_in_the_main_thread() -> None:
    ended = Calls()
    dog = Watchdog(0.3, ended, grace_s=0.1)
    began = time.monotonic()

    with pytest.raises(RunInterrupted), dog.watching():
        time.sleep(30)

    assert time.monotonic() - began < 5
    assert dog.fired
    assert ended.count == 1
    assert "time.sleep(30)" in dog.parent_stack
    assert threads() == []


@needs_pthread_kill
def test_a_run_that_swallows_the_interruption_is_interrupted_again() -> None:
    dog = Watchdog(0.2, Calls(), grace_s=0.1)
    swallowed: list[RunInterrupted] = []

    def body() -> None:
        with dog.watching():
            try:
                time.sleep(30)
            except RunInterrupted as interruption:
                swallowed.append(interruption)
            time.sleep(30)

    with pytest.raises(RunInterrupted):
        body()
    assert len(swallowed) == 1


def test_a_run_whose_end_comes_with_its_workers_is_not_interrupted() -> None:
    released = threading.Event()
    dog = Watchdog(0.2, released.set, grace_s=20)

    with dog.watching():
        assert released.wait(10)

    assert dog.fired


def test_beats_keep_it_quiet() -> None:
    ended = Calls()
    dog = Watchdog(1.0, ended)

    with dog.watching():
        for _ in range(14):
            time.sleep(0.1)
            dog.beat()

    assert not dog.fired
    assert ended.count == 0
    assert dog.parent_stack == ""


def test_the_time_before_watching_does_not_count() -> None:
    dog = Watchdog(0.8, Calls())
    time.sleep(0.9)

    with dog.watching():
        time.sleep(0.3)

    assert not dog.fired


def test_a_lost_batch_ends_the_run_before_its_time() -> None:
    released = threading.Event()
    dog = Watchdog(60, released.set, lost=lambda: True, grace_s=20)
    began = time.monotonic()

    with dog.watching():
        assert released.wait(10)

    assert 1.0 <= time.monotonic() - began < 5
    assert dog.fired


def test_it_ticks_while_it_watches() -> None:
    ticks = Calls()
    dog = Watchdog(60, Calls(), tick=ticks)

    with dog.watching():
        assert wait_for(lambda: ticks.count >= 2)
    counted = ticks.count
    time.sleep(0.25)

    assert ticks.count == counted


def test_no_thread_stays_when_the_body_raises() -> None:
    seen: list[list[str]] = []

    def body() -> None:
        with Watchdog(60, Calls()).watching():
            seen.append(threads())
            1 / 0  # noqa: B018

    with pytest.raises(ZeroDivisionError):
        body()
    assert seen == [["pytest-dataloader-watchdog"]]
    assert threads() == []


@pytest.mark.skipif(not hasattr(signal, "SIGURG"), reason="no such signal here")
@pytest.mark.parametrize("before", ["default", "own"])
def test_the_signals_handler_is_given_back(before: str) -> None:
    handler = signal.SIG_DFL if before == "default" else (lambda signum, frame: None)
    found = signal.signal(signal.SIGURG, handler)
    try:
        with Watchdog(60, Calls()).watching():
            assert signal.getsignal(signal.SIGURG) is not handler
        assert signal.getsignal(signal.SIGURG) is handler
    finally:
        signal.signal(signal.SIGURG, found)


def test_in_another_thread_it_fires_and_interrupts_nobody() -> None:
    released = threading.Event()
    dog = Watchdog(0.2, released.set, grace_s=0.05)
    errors: list[BaseException] = []

    def body() -> None:
        try:
            with dog.watching():
                released.wait(10)
                time.sleep(0.3)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join(10)

    assert dog.fired
    assert "released.wait(10)" in dog.parent_stack
    assert errors == []
    assert threads() == []


# Asking workers ------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(signal, "SIGUSR2"), reason="no such signal here")
def test_workers_that_offered_it_print_where_they_stand() -> None:
    code = (
        "import faulthandler, signal, sys, time\n"
        "def stuck():\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(30)\n"
        "faulthandler.register(signal.SIGUSR2, all_threads=True, chain=False)\n"
        "stuck()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"

    ask_for_stacks([child.pid], signal.SIGUSR2)
    assert child.stderr is not None
    told = [child.stderr.readline() for _ in range(2)]
    child.kill()
    child.communicate()

    assert told[0].endswith("(most recent call first):\n")
    assert told[1].startswith('  File "<string>", line ')
    assert told[1].endswith(" in stuck\n")


def test_workers_that_are_gone_or_offered_nothing_are_left_alone() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()

    ask_for_stacks([child.pid], getattr(signal, "SIGUSR2", None))
    ask_for_stacks([os.getpid()], None)


# A request to end --------------------------------------------------------------------------------

needs_posix = pytest.mark.skipif(os.name != "posix", reason="there is no such request here")


@needs_posix
def test_a_request_to_end_goes_through_as_ctrl_c_does() -> None:
    def ask_and_wait() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(30)

    with pytest.raises(KeyboardInterrupt) as caught, Watchdog(60, Calls()).watching():
        ask_and_wait()
    assert str(caught.value) == "the process was asked to end (SIGTERM)"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert threads() == []


@needs_posix
def test_a_handler_of_the_users_is_left_alone() -> None:
    asked = Calls()
    signal.signal(signal.SIGTERM, lambda _signum, _frame: asked())
    try:
        with Watchdog(60, Calls()).watching():
            os.kill(os.getpid(), signal.SIGTERM)
            assert wait_for(lambda: asked.count)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@needs_posix
def test_a_process_forked_meanwhile_ends_as_by_default() -> None:
    context = multiprocessing.get_context("fork")
    started = context.Event()

    def wait() -> None:
        started.set()
        time.sleep(30)

    with Watchdog(60, Calls()).watching():
        child = context.Process(target=wait)
        child.start()
        assert started.wait(20)
        child.terminate()
        child.join(20)
    assert child.exitcode == -signal.SIGTERM
