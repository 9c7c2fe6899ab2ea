"""The standard library as a stream: each worker reads its own share of the files."""

import sysconfig
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from stdlib_corpus import PADDING, read_source, source_names, token_ids
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info


class Chunk(NamedTuple):
    """Part `position` of a source file: int64 token ids of shape (chunk_length,)."""

    name: str
    position: int
    tokens: Tensor


class StdlibStream(IterableDataset[Chunk]):
    """Chunks of `chunk_length` tokens out of the first `limit` source files, by name.

    A chunk never spans two files, so the set of chunks is the same for any number of workers.
    """

    def __init__(self, limit: int = 100, chunk_length: int = 256) -> None:
        self.root = Path(sysconfig.get_paths()["stdlib"])
        self.names = source_names(self.root, limit)
        self.chunk_length = chunk_length

    def __iter__(self) -> Iterator[Chunk]:
        for name in worker_share(self.names):
            yield from self._chunks(name)

    def _chunks(self, name: str) -> Iterator[Chunk]:
        ids = token_ids(read_source(self.root / name))
        position = 0
        while chunk := list(islice(ids, self.chunk_length)):
            # The last chunk of a file is padded: every chunk has one length, no token is lost.
            chunk += [PADDING] * (self.chunk_length - len(chunk))
            yield Chunk(name, position, torch.tensor(chunk, dtype=torch.int64))
            position += 1


def worker_share(names: list[str]) -> list[str]:
    """The names this worker reads; all of them where there are no workers."""
    worker = get_worker_info()
    return names if worker is None else names[worker.id :: worker.num_workers]


def chunk_key(chunk: Chunk) -> tuple[str, int]:
    """What makes a chunk the same chunk, whichever worker delivers it."""
    return chunk.name, int(chunk.position)
