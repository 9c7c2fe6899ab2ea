"""Apache Arrow: a table in memory, and a file that each process maps for itself."""

from pathlib import Path
from typing import Any

import pyarrow as pa
from scratch import written
from torch.utils.data import Dataset


def table() -> pa.Table:
    return pa.table({"number": range(24), "text": [f"sentence {n}" for n in range(24)]})


def write_file(folder: Path) -> None:
    path = str(folder / "rows.arrow")
    rows = table()
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows)


class Table(Dataset[dict[str, Any]]):
    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return row_of(self.rows, index)


class MappedTable(Dataset[dict[str, Any]]):
    """The map is dropped where the dataset is pickled: it would travel by value."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.length = len(mapped(path))
        self.rows: pa.Table | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "rows": None}

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self.rows is None:
            self.rows = mapped(self.path)
        return row_of(self.rows, index)


def mapped(path: Path) -> pa.Table:
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


def row_of(rows: pa.Table, index: int) -> dict[str, Any]:
    return {name: rows[name][index].as_py() for name in rows.column_names}


def make_table() -> Table:
    return Table(table())


def make_mapped() -> MappedTable:
    return MappedTable(written(write_file) / "rows.arrow")


def make_loader_kwargs() -> dict[str, Any]:
    return {"batch_size": 4, "shuffle": True}
