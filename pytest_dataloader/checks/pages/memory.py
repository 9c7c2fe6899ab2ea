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
)
