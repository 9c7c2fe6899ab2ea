"""A language-model corpus that every machine has: the source files of the standard library."""

import os
import re
import sysconfig
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

PADDING = 0
VOCABULARY = 8192
_TOKEN = re.compile(r"\w+|[^\w\s]")
_SKIPPED_FOLDERS = frozenset(
    {"__pycache__", "dist-packages", "idle_test", "site-packages", "test", "tests"}
)


class Document(NamedTuple):
    """The start of one source file: its name, and int64 token ids of shape (length,)."""

    name: str
    tokens: Tensor


class DocumentBatch(NamedTuple):
    """Documents padded to the longest: tokens (batch, length), lengths (batch,), both int64."""

    names: tuple[str, ...]
    tokens: Tensor
    lengths: Tensor


class StdlibCorpus(Dataset[Document]):
    """The first `max_tokens` tokens of each of the first `limit` source files, by name."""

    def __init__(self, limit: int = 400, max_tokens: int = 256) -> None:
        self.root = Path(sysconfig.get_paths()["stdlib"])
        self.names = source_names(self.root, limit)
        self.max_tokens = max_tokens

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Document:
        name = self.names[index]
        ids = islice(token_ids(read_source(self.root / name)), self.max_tokens)
        return Document(name, torch.tensor(list(ids), dtype=torch.int64))


def collate_documents(documents: list[Document]) -> DocumentBatch:
    """Pad documents of different lengths into one batch."""
    tokens = [document.tokens for document in documents]
    return DocumentBatch(
        names=tuple(document.name for document in documents),
        tokens=pad_sequence(tokens, batch_first=True, padding_value=PADDING),
        lengths=torch.tensor([len(ids) for ids in tokens], dtype=torch.int64),
    )


def token_ids(text: str) -> Iterator[int]:
    """Ids in [1, VOCABULARY), alike in every process: `hash()` of a string would not be."""
    for match in _TOKEN.finditer(text):
        yield 1 + zlib.crc32(match.group().encode("utf-8")) % (VOCABULARY - 1)


def source_names(root: Path, limit: int) -> list[str]:
    """The first `limit` readable source files below `root`, as sorted relative POSIX paths."""
    # Sorted, because the order in which a folder lists its files differs between file systems.
    names = sorted(path.relative_to(root).as_posix() for path in _source_files(root))
    if not names:
        raise FileNotFoundError(f"no source files below {root}: this Python keeps them elsewhere")
    return list(islice((name for name in names if _is_utf8(root / name)), limit))


def read_source(path: Path) -> str:
    """The text of a source file; the encoding is named, so that no locale changes it."""
    return path.read_text(encoding="utf-8")


def _source_files(root: Path) -> Iterator[Path]:
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in _SKIPPED_FOLDERS]
        # `_sysconfigdata_*.py` describes the machine; without it the corpus is the same anywhere.
        yield from (
            Path(folder, name)
            for name in files
            if name.endswith(".py") and not name.startswith("_sysconfigdata")
        )


def _is_utf8(path: Path) -> bool:
    try:
        read_source(path)
    except (OSError, UnicodeDecodeError):
        return False
    return True
