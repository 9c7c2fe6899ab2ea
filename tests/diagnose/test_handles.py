"""Handles and locks: what is one, where it is held, whether it is in use."""

from __future__ import annotations

import io
import socket
import sqlite3
import threading
import zipfile

import pytest

from pytest_dataloader.diagnose.handles import handles, held_locks, kind_of_handle


class Holder:
    def __init__(self, **fields):
        self.__dict__.update(fields)


def test_a_file_is_told_with_the_offset_of_its_descriptor(tmp_path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"0123456789")
    with path.open("rb", buffering=0) as file:
        file.seek(4)
        holder = Holder(readers=[Holder(f=file)])
        assert handles({"dataset": holder}) == {
            "dataset.readers[0].f": [id(file), "an open file", 4]
        }
        assert file.tell() == 4


@pytest.mark.parametrize("mode", ["r", "rb"])
def test_text_and_buffered_files_are_not_opened_as_objects(tmp_path, mode) -> None:
    path = tmp_path / "data"
    path.write_text("abc")
    with path.open(mode) as file:
        assert list(handles({"dataset": Holder(f=file)})) == ["dataset.f"]


def test_closed_files_memory_files_and_standard_streams_are_no_handles(tmp_path) -> None:
    closed = (tmp_path / "data").open("wb")
    closed.close()
    with open(2, "w", closefd=False) as stream:
        assert [kind_of_handle(v) for v in (closed, io.BytesIO(), stream, 3, None)] == [None] * 5


def test_connections_and_archives(tmp_path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive, socket.socket() as plug:
        connection = sqlite3.connect(":memory:")
        kinds = [kind_of_handle(v) for v in (archive, plug, connection)]
        connection.close()
    assert kinds == ["an open zip archive", "a socket", "an SQLite connection"]


@pytest.mark.parametrize("make", [threading.Lock, threading.RLock])
def test_a_held_lock_is_found_by_its_path(make) -> None:
    lock = make()
    roots = {"dataset": Holder(parts={"stats": Holder(lock=lock)})}
    assert held_locks(roots, ()) == ()
    with lock:
        assert held_locks(roots, ()) == ("dataset.parts['stats'].lock",)


MODULE_LOCK = threading.Lock()


def test_a_held_lock_of_a_module() -> None:
    with MODULE_LOCK:
        assert held_locks({}, [__name__]) == (f"{__name__}.MODULE_LOCK",)
