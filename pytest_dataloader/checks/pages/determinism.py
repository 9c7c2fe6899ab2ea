"""Pages of the determinism family."""

from __future__ import annotations

from pytest_dataloader.checks.pages.code import Code

CODES = (
    Code(
        name="not-repeatable",
        family="determinism",
        title="Two runs with the same seed give different batches",
        why="""
            PyTorch seeds random and torch, and numpy.random where NumPy is installed, in every
            worker from the main process's seed. Anything else is not seeded: random.Random() and
            numpy.random.default_rng() without an argument, os.urandom, uuid, the clock. The order
            of a set of strings also differs between interpreters, since each has its own hash
            seed unless PYTHONHASHSEED is set, and so does the order in which threads finish.
            """,
        mend="""
            Draw from torch, random or numpy.random, which are seeded, or make a generator from a
            seed that you pass in. Sort sets and directory listings, and collect what threads return
            in the order in which it was asked for.
            """,
        before="""
            class Noisy(Dataset):
                def __init__(self):
                    self.random = random.Random()

                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    return index + self.random.random()
            """,
        after="""
            class Noisy(Dataset):
                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    return index + random.random()
            """,
    ),
    Code(
        name="differs-by-start-method",
        family="determinism",
        title="The same seed gives different batches under different start methods",
        why="""
            A forked worker inherits the main process as it stands; a spawned one imports the
            modules afresh and unpickles the dataset. What was set at run time stays behind:
            module globals, torch.set_default_dtype, registries, patches, and attributes that
            __getstate__ drops. The hash seed is new too, so hash() of a string differs. No error
            is raised: a model that was trained on Linux has seen other data on Windows or macOS.
            Random streams themselves agree between start methods for the same number of workers.
            """,
        mend="""
            Say it explicitly: put the value on the dataset, pass dtype, set globals when the
            module is imported or in worker_init_fn. For hashing use hashlib or zlib.crc32.
            """,
        before="""
            class Ratios(Dataset):
                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    return torch.tensor(index / 3)


            if __name__ == "__main__":
                torch.set_default_dtype(torch.float64)
                batches = list(DataLoader(Ratios(), num_workers=2, multiprocessing_context="spawn"))
            """,
        after="""
            class Ratios(Dataset):
                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    return torch.tensor(index / 3, dtype=torch.float64)


            if __name__ == "__main__":
                batches = list(DataLoader(Ratios(), num_workers=2, multiprocessing_context="spawn"))
            """,
    ),
    Code(
        name="depends-on-num-workers",
        family="determinism",
        title="The same seed gives different batches with another number of workers",
        why="""
            Each worker has its own random stream, seeded with a base seed plus its id, and gets
            every n-th batch of a map-style dataset. With another number of workers a sample falls
            to another stream, or to another place in it. That is how PyTorch works ('Randomness in
            multi-process data loading') and no fault in itself. It matters to those who must
            reproduce a run on a machine with other CPUs. An iterable dataset also changes the
            order of its samples.
            """,
        mend="""
            Seed a generator from the epoch and the index of the sample, so that the draw does not
            depend on who makes it. With persistent_workers=True a set_epoch in the main process
            does not reach the workers: share the epoch, or start them anew.
            """,
        before="""
            class Noisy(Dataset):
                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    return index + torch.rand(1)
            """,
        after="""
            class Noisy(Dataset):
                epoch = 0

                def set_epoch(self, epoch):
                    self.epoch = epoch

                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    generator = torch.Generator().manual_seed(self.epoch * len(self) + index)
                    return index + torch.rand(1, generator=generator)
            """,
    ),
)
