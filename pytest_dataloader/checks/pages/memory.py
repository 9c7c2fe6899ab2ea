"""Pages of the memory family."""

from __future__ import annotations

from pytest_dataloader.checks.pages.code import Code

CODES = (
    Code(
        name="copied-per-worker",
        family="memory",
        title="Every worker has its own copy of the data",
        why="""
            Under spawn and forkserver what the dataset holds is pickled into each worker, and n
            workers hold it n times more. NumPy arrays, memory maps and Python objects are copied;
            tensors are not, since PyTorch moves them into shared memory. Under fork memory is
            shared until it is written, but looking at a Python object writes its reference count,
            so lists and dicts are copied in the end too: PyTorch's docs warn of it under
            'Multi-process data loading'.
            """,
        mend="""
            Hold the data in tensors, or hold a path and open a memory map in the worker.
            """,
        before="""
            class Images(Dataset):
                def __init__(self):
                    self.images = numpy.zeros((1000, 100, 100), dtype=numpy.uint8)

                def __len__(self):
                    return len(self.images)

                def __getitem__(self, index):
                    return self.images[index]
            """,
        after="""
            class Images(Dataset):
                def __init__(self):
                    self.images = torch.zeros((1000, 100, 100), dtype=torch.uint8)

                def __len__(self):
                    return len(self.images)

                def __getitem__(self, index):
                    return self.images[index]
            """,
    ),
    Code(
        name="memory-over-budget",
        family="memory",
        title="A worker uses more memory than the budget allows",
        why="""
            What counts is the memory that only this worker has, since shared pages exist once
            whatever the number of workers. It is made up of the interpreter with torch, the
            worker's copy of the dataset, what the dataset reads in the worker, and the batches
            prefetched. All of it but the shared part is multiplied by num_workers.
            """,
        mend="""
            Map large files instead of reading them, opened in the worker on first use. Fewer
            workers, or a smaller prefetch_factor, reduce the rest.
            """,
        before="""
            class Rows(Dataset):
                def __init__(self, path):
                    self.path, self.rows = path, None

                def __getitem__(self, index):
                    if self.rows is None:
                        self.rows = numpy.load(self.path)
                    return self.rows[index].copy()
            """,
        after="""
            class Rows(Dataset):
                def __init__(self, path):
                    self.path, self.rows = path, None

                def __getitem__(self, index):
                    if self.rows is None:
                        self.rows = numpy.load(self.path, mmap_mode="r")
                    return self.rows[index].copy()
            """,
    ),
    Code(
        name="view-of-large-buffer",
        family="memory",
        title="A batch drags along a buffer much larger than itself",
        why="""
            A slice of a tensor is a view of its storage. To send it from a worker PyTorch moves
            the whole storage into shared memory, and it stays there for as long as the slice
            lives. Collating samples into a batch copies them and hides it; without automatic
            batching (batch_size=None), or with a collate_fn that stacks nothing, it shows.
            """,
        mend="""
            clone() the slice before it is returned.
            """,
        before="""
            class Crops(Dataset):
                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    image = torch.zeros(1000, 1000)
                    return image[:10, :10]
            """,
        after="""
            class Crops(Dataset):
                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    image = torch.zeros(1000, 1000)
                    return image[:10, :10].clone()
            """,
    ),
    Code(
        name="memory-growth",
        family="memory",
        title="A worker's memory grows from epoch to epoch",
        why="""
            Something on the dataset, in a module or in a cache takes in each sample and lets none
            go. With persistent workers, in long epochs and with num_workers=0 it grows until
            memory runs out and the system kills a process. A cache that is full after the first
            epoch is no growth. Under fork there is a second cause: reading Python objects writes
            their reference counts, so pages shared with the main process are copied one by one.
            """,
        mend="""
            Bound the cache (functools.lru_cache with a maxsize, on a function and not on a
            method), or let go of what was taken in. Hold records in tensors or arrays instead of
            lists of objects.
            """,
        before="""
            class Watched(Dataset):
                def __init__(self):
                    self.seen = []

                def __getitem__(self, index):
                    sample = torch.full((100_000,), index)
                    self.seen.append(sample)
                    return sample
            """,
        after="""
            class Watched(Dataset):
                def __init__(self):
                    self.seen = collections.deque(maxlen=8)

                def __getitem__(self, index):
                    sample = torch.full((100_000,), index)
                    self.seen.append(sample)
                    return sample
            """,
    ),
)
