"""An Arrow file whose reader is kept on the dataset."""

from pathlib import Path
from typing import Any

import pyarrow as pa
from arrow_rows import row_of, write_file
from scratch import written
from torch.utils.data import Dataset


class Reader(Dataset[Any]):
    def __init__(self, path: Path) -> None:
        self.reader = pa.ipc.open_file(pa.memory_map(str(path)))
        self.length = len(self.reader.read_all())

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return row_of(self.reader.read_all(), index)


def make_reader() -> Reader:
    return Reader(written(write_file) / "rows.arrow")
