"""Kinds and remedies: what each sort of object is called, and what to write instead."""

from __future__ import annotations

import concurrent.futures
import ctypes
import functools
import io
import multiprocessing
import os
import queue
import sqlite3
import ssl
import tarfile
import threading
import weakref
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from pytest_dataloader.diagnose.remedies import kind_and_remedy

PER_PROCESS = (
    "open it in each process on first use: keep the path, set the attribute to None in "
    "__getstate__, and open it where it is used"
)
PER_WORKER = "make it in each worker (worker_init_fn, or on first use) and drop it in __getstate__"
OTHERWISE = "leave it out in __getstate__ and make it again on first use"
OWN_CONTEXT = "make it with multiprocessing.get_context(method) of the loader's own start method"
OF_CTYPES = "keep what it is made from, and load or make it in each process on first use"
STRONG = "keep a strong reference or drop it in __getstate__"


class Other:
    pass


def local_function() -> Any:
    def inner() -> None:
        pass

    return inner


def local_class() -> type:
    class Inner:
        pass

    return Inner


def decorated() -> None:
    pass


async def numbers() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("value", "kind", "remedy"),
    [
        (
            lambda: None,
            "a lambda",
            "write a module-level function (or functools.partial of one)",
        ),
        (
            local_function(),
            "the function local_function.<locals>.inner, defined inside another function",
            "move it to module level; pass what it closes over with functools.partial",
        ),
        (
            local_class(),
            "the class local_class.<locals>.Inner, defined inside a function",
            "move it to module level",
        ),
        (
            local_class()(),
            (
                f"an instance of {__name__}.local_class.<locals>.Inner, a class defined inside a "
                "function"
            ),
            "move the class to module level",
        ),
        (
            decorated,
            "the function decorated, which its own name does not lead to",
            (
                "give the decorated function its own name, or decorate with functools.wraps and "
                "@ syntax"
            ),
        ),
        (sqlite3.connect(":memory:"), "an SQLite object (sqlite3.Connection)", PER_PROCESS),
        (
            sqlite3.connect(":memory:").cursor(),
            "an SQLite object (sqlite3.Cursor)",
            PER_PROCESS,
        ),
        (
            ssl.create_default_context(),
            "a network connection (ssl.SSLContext)",
            PER_WORKER,
        ),
        (threading.Thread(), "a thread (threading.Thread)", PER_WORKER),
        (threading.Timer(1, print), "a thread (threading.Timer)", PER_WORKER),
        (threading.Lock(), "a lock or queue of threads (thread.lock)", PER_WORKER),
        (threading.RLock(), "a lock or queue of threads (thread.RLock)", PER_WORKER),
        (threading.Condition(), "a lock or queue of threads (threading.Condition)", PER_WORKER),
        (threading.Event(), "a lock or queue of threads (threading.Event)", PER_WORKER),
        (threading.local(), "a lock or queue of threads (thread._local)", PER_WORKER),
        (queue.Queue(), "a lock or queue of threads (queue.Queue)", PER_WORKER),
        (queue.PriorityQueue(), "a lock or queue of threads (queue.PriorityQueue)", PER_WORKER),
        (queue.SimpleQueue(), "a lock or queue of threads (queue.SimpleQueue)", PER_WORKER),
        (
            concurrent.futures.ThreadPoolExecutor(1),
            "a pool or future (concurrent.futures.thread.ThreadPoolExecutor)",
            PER_WORKER,
        ),
        (
            concurrent.futures.Future(),
            "a pool or future (concurrent.futures._base.Future)",
            PER_WORKER,
        ),
        (
            multiprocessing.get_context("spawn").Lock(),
            "a multiprocessing object (multiprocessing.synchronize.Lock)",
            OWN_CONTEXT,
        ),
        ((n for n in ()), "a generator", "keep what it is made from, and make it in __iter__"),
        (numbers(), "a generator", "keep what it is made from, and make it in __iter__"),
        (
            iter(DataLoader([1])),
            "an iterator of an inner DataLoader",
            "keep the loader, and call iter() on it where it is used",
        ),
        (os, "a module", "import it where it is used, or keep its name"),
        ({}.keys(), "a view of a dict (dict_keys)", "make a list of it"),
        ({}.values(), "a view of a dict (dict_values)", "make a list of it"),
        ({}.items(), "a view of a dict (dict_items)", "make a list of it"),
        (ctypes.c_int(1), "a ctypes object (ctypes.c_int)", OF_CTYPES),
        (ctypes.pointer(ctypes.c_int(1)), "a ctypes object ({})", OF_CTYPES),
        (ctypes.pythonapi, "a ctypes object (ctypes.PyDLL)", OF_CTYPES),
        (weakref.ref(Other), "a weak reference", STRONG),
        (weakref.WeakSet(), "a weak reference", STRONG),
        (weakref.WeakValueDictionary(), "a weak reference", STRONG),
        (Other(), f"a {__name__}.Other object", OTHERWISE),
        (memoryview(b""), "a memoryview object", OTHERWISE),
        (functools.partial(print), "a functools.partial object", OTHERWISE),
    ],
)
def test_kinds_and_remedies(value: Any, kind: str, remedy: str) -> None:
    name = type(value).__qualname__
    module = type(value).__module__
    if module not in ("builtins", "__main__"):
        name = f"{module.removeprefix('_')}.{name}"

    assert kind_and_remedy(value) == (kind.replace("{}", name), remedy)


@pytest.mark.parametrize(
    ("mode", "buffering", "name"),
    [("r", -1, "TextIOWrapper"), ("rb", -1, "BufferedReader"), ("rb", 0, "FileIO")],
)
def test_files(tmp_path: Path, mode: str, buffering: int, name: str) -> None:
    (tmp_path / "file").touch()
    with open(tmp_path / "file", mode, buffering) as file:
        assert kind_and_remedy(file) == (f"an open file (io.{name})", PER_PROCESS)


def test_archives() -> None:
    with zipfile.ZipFile(io.BytesIO(), "w") as file:
        assert kind_and_remedy(file) == ("an open archive (zipfile.ZipFile)", PER_PROCESS)
    with tarfile.open(fileobj=io.BytesIO(), mode="w") as tar:
        assert kind_and_remedy(tar) == ("an open archive (tarfile.TarFile)", PER_PROCESS)


def test_hdf5(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "file.h5", "w") as file:
        data = file.create_dataset("data", data=[1])

        assert kind_and_remedy(file) == (
            "an open HDF5 object (h5py._hl.files.File)",
            PER_PROCESS,
        )
        assert kind_and_remedy(data) == (
            "an open HDF5 object (h5py._hl.dataset.Dataset)",
            PER_PROCESS,
        )


def test_lmdb(tmp_path: Path) -> None:
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(tmp_path / "lmdb")) as environment, environment.begin() as transaction:
        for value in (environment, transaction, transaction.cursor()):
            kind, remedy = kind_and_remedy(value)
            assert kind.startswith("an open LMDB object (")
            assert kind.endswith(f"{type(value).__name__})")
            assert remedy == PER_PROCESS
