"""Handles of the standard library opened where the dataset is built."""

import sqlite3
import zipfile
from pathlib import Path
from typing import Any

from scratch import written
from torch.utils.data import Dataset


def write_archive(folder: Path) -> None:
    """More than a buffer holds, so that each sample is read from the file."""
    with zipfile.ZipFile(folder / "texts.zip", "w") as archive:
        for n in range(8):
            archive.writestr(f"{n}.txt", f"sentence {n}\n" * 1000)


def write_rows(folder: Path) -> None:
    with sqlite3.connect(folder / "texts.db") as connection:
        connection.execute("CREATE TABLE texts (number INTEGER, text TEXT)")
        rows = [(n, f"sentence {n}") for n in range(8)]
        connection.executemany("INSERT INTO texts VALUES (?, ?)", rows)
    connection.close()


class Archive(Dataset[Any]):
    def __init__(self, path: Path) -> None:
        self.archive = zipfile.ZipFile(path)

    def __len__(self) -> int:
        return len(self.archive.namelist())

    def __getitem__(self, index: int) -> str:
        return self.archive.read(f"{index}.txt").decode()


class Rows(Dataset[Any]):
    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path)

    def __len__(self) -> int:
        return int(self.connection.execute("SELECT count(*) FROM texts").fetchone()[0])

    def __getitem__(self, index: int) -> str:
        query = "SELECT text FROM texts WHERE number = ?"
        return str(self.connection.execute(query, (index,)).fetchone()[0])


def make_archive() -> Archive:
    return Archive(written(write_archive) / "texts.zip")


def make_rows() -> Rows:
    return Rows(written(write_rows) / "texts.db")
