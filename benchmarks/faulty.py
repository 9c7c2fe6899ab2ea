"""Datasets that do something to their worker at one sample; copied beside the tests of a session.

``when`` is ``first`` or ``later``: a later epoch is one that `set_epoch` told of, or one in which
a worker that lives on meets the sample again.
"""

from __future__ import annotations

import ctypes
import functools
import multiprocessing
import os
import re
import resource
import signal
import sys
import threading
import time
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info

AT = 5
COUNT = 16
_LIMIT_BYTES = 1 << 28


class Numbers(Dataset[Any]):
    """Numbers, and a fault at one of them in a worker; ``anywhere`` also without workers."""

    anywhere = False

    def __init__(self, when: str) -> None:
        self.when = when
        self.epoch = 0
        self.met = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        if index == AT and (self.anywhere or get_worker_info() is not None):
            self.met += 1
            if self.when == "first" or self.epoch or self.met > 1:
                return self.fault()
        return torch.tensor(float(index))

    def fault(self) -> Any:
        return torch.tensor(float(AT))


class Sound(Numbers):
    """Without a fault."""


class Exits0(Numbers):
    def fault(self) -> Any:
        os._exit(0)


class Exits1(Numbers):
    def fault(self) -> Any:
        sys.exit(1)


class Killed(Numbers):
    def fault(self) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


class Segfaults(Numbers):
    def fault(self) -> Any:
        return ctypes.string_at(0)


class BusError(Numbers):
    """As a full /dev/shm ends a worker."""

    def fault(self) -> Any:
        os.kill(os.getpid(), signal.SIGBUS)


class Large(Numbers):
    """More than a small /dev/shm has room for."""

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(1 << 20)


class Loops(Numbers):
    def fault(self) -> Any:
        while True:
            pass


class LoopsInC(Numbers):
    """Backtracks for ages, without letting other Python code run."""

    def fault(self) -> Any:
        return re.match(r"(a+)+$", "a" * 64 + "b")


_lock = threading.Lock()


@functools.cache
def hold_lock() -> None:
    """A thread that holds the lock nearly always."""

    def hold() -> None:
        while True:
            with _lock:
                time.sleep(0.5)

    threading.Thread(target=hold, name="holder", daemon=True).start()
    time.sleep(0.05)


class WaitsForLock(Numbers):
    def __init__(self, when: str) -> None:
        super().__init__(when)
        hold_lock()

    def fault(self) -> Any:
        with _lock:
            return torch.tensor(0.0)


class Unsendable(Numbers):
    def fault(self) -> Any:
        return Holder()


class Holder:
    def __init__(self) -> None:
        self.undo = lambda value: value


def keep(samples: list[Any]) -> Any:
    return samples


def _local() -> type[Exception]:
    class Local(Exception):
        pass

    return Local


_Local = _local()


class RaisesUnsendable(Numbers):
    anywhere = True

    def fault(self) -> Any:
        raise _Local("not to be sent")


class TwoArguments(Exception):
    def __init__(self, path: str, line: int) -> None:
        super().__init__(f"{path}:{line}")


class RaisesTwoArguments(Numbers):
    anywhere = True

    def fault(self) -> Any:
        raise TwoArguments("rows.csv", 7)


class RaisesAtInit(Numbers):
    def __init__(self, when: str) -> None:
        super().__init__(when)
        raise ValueError("broken")


class RaisesAtLen(Numbers):
    def __len__(self) -> int:
        raise ValueError("broken")


class RaisesAtIter(IterableDataset[Any]):
    def __init__(self, when: str) -> None:
        self.when = when
        self.met = 0
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        self.met += 1
        if self.when == "first" or self.epoch or self.met > 1:
            raise ValueError("broken")
        info = get_worker_info()
        return iter(range(info.id if info else 0, COUNT, info.num_workers if info else 1))


def broken_init(_worker: int) -> None:
    raise ValueError("broken")


def broken_collate(samples: list[Any]) -> Any:
    raise ValueError("broken")


class BrokenSampler(Sampler[int]):
    def __iter__(self) -> Any:
        yield 0
        raise ValueError("broken")

    def __len__(self) -> int:
        return COUNT


class StuckSampler(BrokenSampler):
    def __iter__(self) -> Any:
        yield 0
        time.sleep(3600)


class KeepsThread(Numbers):
    def fault(self) -> Any:
        threading.Thread(target=time.sleep, args=(3600,)).start()
        return torch.tensor(float(AT))


class StartsProcesses(Numbers):
    def fault(self) -> Any:
        with multiprocessing.Pool(1) as pool:
            return torch.tensor(float(pool.apply(abs, (AT,))))


class FillsMemory(Numbers):
    """Up to a limit that it sets itself, above what the worker has."""

    def fault(self) -> Any:
        with open("/proc/self/statm") as pages:
            used = int(pages.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + _LIMIT_BYTES, resource.RLIM_INFINITY))
        kept = []
        while True:
            kept.append(bytearray(1 << 24))


class Shouts(Numbers):
    """100 MB on standard error, and nothing wrong."""

    def fault(self) -> Any:
        line = b"x" * 1023 + b"\n"
        for _ in range(100):
            os.write(2, line * 1024)
        return torch.tensor(float(AT))


class Sleeps(Numbers):
    """In the middle of which the session is ended from outside."""

    def fault(self) -> Any:
        with open("asleep", "w") as mark:
            mark.write(str(os.getpid()))
        time.sleep(3600)
