"""What a pipeline leaves behind is found with its place; what is opened once and kept is not."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import psutil
import pytest
from torch.utils.data import Dataset, IterableDataset

from pytest_dataloader.matrix import LoaderConfig
from pytest_dataloader.observe import leaks, made, worker
from pytest_dataloader.observe.facts import (
    BROKEN_OFF,
    FAILED,
    FINISHED,
    GONE,
    LEAKS,
    LEFT_FILE,
    LEFT_MEMORY,
    LEFT_OPEN,
    LEFT_PROCESS,
    LEFT_THREAD,
    OK,
    RAISED,
    WARM_START,
    RunFacts,
    RunRequest,
)
from pytest_dataloader.observe.holdings import open_files, threads
from pytest_dataloader.pipeline import Pipeline

W0 = LoaderConfig(None, 0)
FORK = LoaderConfig("fork", 2)
SPAWN = LoaderConfig("spawn", 2)
ENDINGS = (FINISHED, BROKEN_OFF, FAILED)
SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]

needs_fork = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="fork is not available here"
)


@pytest.fixture(autouse=True, scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A temporary folder of our own, and little patience with what is left on purpose."""
    folder = tmp_path_factory.mktemp("left")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        patch.setattr(leaks, "_PATIENCE_S", 0.3)
        patch.setattr(leaks, "_MOMENT_S", 0.1)
        yield folder


class Samples(Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        self.make(index)
        return index

    def make(self, index: int) -> None:
        raise NotImplementedError


class Untidy(Samples):
    """Leaves one of each kind with each epoch."""

    def __init__(self) -> None:
        self.files: list[Any] = []

    def make(self, index: int) -> None:
        if index == 0:
            subprocess.Popen(SLEEP)
            self.files.append(open(__file__))
            os.close(tempfile.mkstemp()[0])
            shared_memory.SharedMemory(create=True, size=16).close()


def line_of(words: str) -> str:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return f"{__file__}:{next(n for n, line in enumerate(lines, 1) if words in line)}"


PLACES = {
    LEFT_PROCESS: line_of("subprocess.Popen(SLEEP)"),
    LEFT_OPEN: line_of("self.files.append(open"),
    LEFT_FILE: line_of("os.close(tempfile.mkstemp"),
    LEFT_MEMORY: line_of("shared_memory.SharedMemory(create=True, size=16)"),
}


def observed(observer: Any, make: Any, config: LoaderConfig) -> RunFacts:
    pipeline = Pipeline(f"{make.__qualname__}", make_dataset=make, loader_kwargs={"batch_size": 4})
    facts: RunFacts = observer.observe(pipeline, RunRequest(config, purpose=LEAKS))
    return facts


def removed(facts: RunFacts) -> RunFacts:
    for leak in facts.leaks:
        if leak.kind == LEFT_MEMORY:
            name = leak.what.rpartition("/")[2]
            with contextlib.suppress(FileNotFoundError):
                shared_memory.SharedMemory(name).unlink()
    return facts


@pytest.fixture(scope="module")
def in_process(observer: Any) -> RunFacts:
    return removed(observed(observer, Untidy, W0))


@pytest.fixture(scope="module")
def in_workers(observer: Any) -> RunFacts:
    return removed(observed(observer, Untidy, FORK))


def kinds() -> set[str]:
    return set(PLACES) if os.name == "posix" else set(PLACES) - {LEFT_MEMORY}


def test_what_each_epoch_leaves_in_this_process(in_process) -> None:
    found = {leak.kind: leak for leak in in_process.leaks}
    assert in_process.outcome == OK
    assert set(found) == kinds()
    for kind, leak in found.items():
        assert (leak.where, leak.in_worker) == (PLACES[kind], False)
        assert (leak.endings, leak.counts) == (ENDINGS, (1, 1, 1))
    assert found[LEFT_OPEN].holder == "dataset.files"


@needs_fork
def test_what_workers_leave(in_workers) -> None:
    found = {leak.kind: leak for leak in in_workers.leaks}
    assert in_workers.outcome == OK
    assert set(found) == kinds()
    for kind, leak in found.items():
        assert (leak.where, leak.in_worker, leak.holder) == (PLACES[kind], True, None)
    # the files of a worker end with it: they are counted over the epochs of one that lives on
    assert (found[LEFT_OPEN].endings, found[LEFT_OPEN].counts) == ((FINISHED,), (1, 1))
    assert (found[LEFT_PROCESS].endings, found[LEFT_PROCESS].counts) == (ENDINGS, (1, 1, 1))


@needs_fork
def test_the_programs_that_are_left_are_ended(in_process, in_workers) -> None:
    left = list(psutil.process_iter(["cmdline", "status"]))
    ours = [p for p in left if p.info["cmdline"] == SLEEP and p.info["status"] != "zombie"]
    assert ours == []


class Filling(IterableDataset[Any]):
    """A thread fills a queue; nobody stops it when the loop breaks off."""

    def __iter__(self) -> Iterator[int]:
        waiting: queue.Queue[int] = queue.Queue(1)

        def fill() -> None:
            for number in range(40):
                waiting.put(number)

        threading.Thread(target=fill, daemon=True).start()
        for _ in range(40):
            yield waiting.get()


def test_a_thread_that_waits_for_ever_when_a_loop_breaks_off(observer) -> None:
    (leak,) = observed(observer, Filling, W0).leaks
    assert (leak.kind, leak.where) == (LEFT_THREAD, line_of("threading.Thread(target=fill"))
    assert (leak.endings, leak.counts) == ((BROKEN_OFF, FAILED), (1, 1, 1))


class Serving(Samples):
    """Starts a program for each dataset."""

    def __init__(self) -> None:
        subprocess.Popen([*SLEEP, "served"])

    def make(self, index: int) -> None:
        pass


def test_a_program_that_outlives_its_dataset(observer) -> None:
    (leak,) = observed(observer, Serving, W0).leaks
    assert (leak.kind, leak.where) == (LEFT_PROCESS, line_of('[*SLEEP, "served"]'))
    assert (leak.endings, leak.counts) == ((GONE,), (1, 1, 1))


# Sound -------------------------------------------------------------------------------------------


class Sound(Samples):
    """Opens at first use and keeps; removes what it makes; its data is a temporary file."""

    def __init__(self) -> None:
        self.file: Any = None
        self.pool: Any = None
        fd, self.data = tempfile.mkstemp()
        os.close(fd)

    def __getstate__(self) -> dict[str, Any]:
        return {"file": None, "pool": None, "data": self.data}

    def make(self, index: int) -> None:
        self.file = self.file or open(self.data)
        self.pool = self.pool or ThreadPoolExecutor(2)
        assert list(self.pool.map(abs, [index])) == [index]
        with tempfile.NamedTemporaryFile(), tempfile.TemporaryDirectory():
            pass
        subprocess.run([sys.executable, "-S", "-c", ""], check=True) if index == 0 else None
        Path(tempfile.gettempdir(), f"cached-{index}").touch()


@needs_fork
@pytest.mark.parametrize("config", [W0, FORK], ids=lambda config: config.id)
def test_what_is_opened_once_or_removed_is_no_leak(observer, config) -> None:
    facts = observed(observer, Sound, config)
    assert (facts.outcome, facts.reason, facts.leaks) == (OK, None, ())


class Registered(Samples):
    """Its memory is removed when the program ends."""

    def __init__(self) -> None:
        block = shared_memory.SharedMemory(create=True, size=16)
        block.close()
        atexit.register(block.unlink)

    def make(self, index: int) -> None:
        pass


def test_what_is_removed_at_exit_is_no_leak(observer) -> None:
    assert observed(observer, Registered, W0).leaks == ()


class Folder(Samples):
    """Has a temporary folder from its first sample on."""

    folder: Any = None

    def make(self, index: int) -> None:
        self.folder = self.folder or tempfile.TemporaryDirectory()


@needs_fork
def test_a_folder_of_a_dataset_stays_behind_where_workers_end_by_exit(observer) -> None:
    """A spawned worker ends as an interpreter does, and also if it is warm-started."""
    spawned = observed(observer, Folder, SPAWN)
    assert (spawned.start, spawned.leaks) == (WARM_START, ())
    (leak,) = observed(observer, Folder, FORK).leaks
    assert (leak.kind, leak.in_worker) == (LEFT_FILE, True)
    assert leak.where == line_of("self.folder = self.folder or")


class Broken(Samples):
    def make(self, index: int) -> None:
        raise ValueError("no")


def test_a_run_that_raises_says_so(observer) -> None:
    facts = observed(observer, Broken, W0)
    assert (facts.outcome, facts.reason, facts.leaks) == (RAISED, "it raised ValueError: no", ())


# The recorder ------------------------------------------------------------------------------------


def test_what_is_replaced_is_given_back(tmp_path) -> None:
    start = threading.Thread.start
    journal = worker.Journal(str(tmp_path / "notes"))
    with made.Recorder(journal).recording():
        assert threading.Thread.start is not start
        tempfile.TemporaryDirectory().cleanup()
    assert threading.Thread.start is start
    tempfile.TemporaryDirectory().cleanup()
    notes = [note for note in worker.read_journal(journal.path) if note["what"] == made.TEMPORARY]
    journal.close()
    assert len({note["name"] for note in notes}) == 1


def test_open_files_are_told_by_their_paths(tmp_path) -> None:
    path = tmp_path / "file"
    before = open_files()
    with path.open("w"):
        assert list((open_files() - before).elements()) == [str(path)]
    assert open_files() == before


def test_threads_of_one_pool_count_as_one() -> None:
    before = threads()
    with ThreadPoolExecutor(2) as pool:
        barrier = threading.Barrier(2)
        list(pool.map(lambda _: barrier.wait(10), range(2)))
        assert len(threads()) == len(before) + 1
