"""Pages of the throughput family."""

from __future__ import annotations

from pytest_dataloader.checks.pages.code import Code

CODES = (
    Code(
        name="slow",
        family="throughput",
        title="The steady rate of batches is below the budget",
        why="""
            The rate is measured after every worker has delivered, so that the start does not
            count. What is left is the time to make a sample, divided over the workers, and the
            time to send a batch. Usually the same work is done for every sample that could be done
            once: a file opened and parsed, a table read, a transform built. Workers that share
            too few CPUs or one disk do not help.

            Where a budget in batches a second is missed with workers, the same loader is timed
            once more with a batch that is in memory: its headspace, which no change to the
            dataset can pass. A budget above it needs smaller batches or fewer objects in them.
            """,
        mend="""
            Keep on the dataset, per worker, what one sample can use of the other's work. Then try
            more workers, and make whole batches at once in __getitems__.
            """,
        before="""
            class Table(Dataset):
                def __init__(self, path):
                    self.path = path

                def __len__(self):
                    return 100

                def __getitem__(self, index):
                    with open(self.path, encoding="utf-8") as file:
                        return json.load(file)[index]
            """,
        after="""
            class Table(Dataset):
                def __init__(self, path):
                    with open(path, encoding="utf-8") as file:
                        self.rows = torch.tensor(json.load(file))

                def __len__(self):
                    return 100

                def __getitem__(self, index):
                    return self.rows[index]
            """,
    ),
    Code(
        name="slow-start",
        family="throughput",
        title="The first batch comes later than the budget allows",
        why="""
            Before its first batch a spawned worker starts an interpreter, imports torch and the
            main script with everything that they import, unpickles the dataset and makes a whole
            batch. A forked worker skips all but the last. Unless persistent_workers=True, that
            price is paid in every epoch. A dataset that reads everything before it gives the first
            sample adds to it under every start method.
            """,
        mend="""
            Read what a sample needs and no more: map a large file instead of loading it. Keep heavy
            imports and heavy work out of the top level of the main script, keep the dataset light,
            and pass persistent_workers=True.
            """,
        before="""
            class Rows(Dataset):
                def __init__(self, path):
                    self.path, self.rows = path, None

                def __len__(self):
                    return 1000

                def __getitem__(self, index):
                    if self.rows is None:
                        self.rows = torch.load(self.path)
                    return self.rows[index]
            """,
        after="""
            class Rows(Dataset):
                def __init__(self, path):
                    self.path, self.rows = path, None

                def __len__(self):
                    return 1000

                def __getitem__(self, index):
                    if self.rows is None:
                        self.rows = torch.load(self.path, mmap=True)
                    return self.rows[index]
            """,
    ),
    Code(
        name="no-speedup",
        family="throughput",
        title="Workers do not deliver faster than the main process alone",
        why="""
            A batch from a worker has a price: indices go through one queue and the batch comes
            back through another, pickled, with each tensor in a shared memory of its own. Where
            making a batch costs less than that, workers lose. They also gain nothing where all
            wait for one thing: a lock, a disk, or a machine with fewer CPUs than workers. PyTorch
            gives each worker one thread, so tensor operations that used all CPUs in the main
            process no longer do.
            """,
        mend="""
            Use num_workers=0 where the work is this light, or make batches larger so that each
            trip carries more. Otherwise remove what the workers wait for.
            """,
        before="""
            class Squares(Dataset):
                def __len__(self):
                    return 2000

                def __getitem__(self, index):
                    return index**2


            def make_loader():
                return DataLoader(Squares(), num_workers=2)
            """,
        after="""
            class Squares(Dataset):
                def __len__(self):
                    return 2000

                def __getitem__(self, index):
                    return index**2


            def make_loader():
                return DataLoader(Squares(), num_workers=0)
            """,
    ),
    Code(
        name="stalls",
        family="throughput",
        title="A training loop would wait for batches too much of its time",
        why="""
            The mean rate is not all: a batch that takes long now and then makes the loop wait if
            the batches fetched ahead, num_workers * prefetch_factor of them, do not last that
            long. By default batches are delivered in order, so one slow batch also holds back
            those that other workers have ready.
            """,
        mend="""
            Raise prefetch_factor, or make the slow samples faster. in_order=False delivers what is
            ready, at the price of an order that is not repeatable.
            """,
        before="""
            class Uneven(Dataset):
                def __len__(self):
                    return 200

                def __getitem__(self, index):
                    time.sleep(0.4 if index % 50 == 49 else 0.005)
                    return index


            def make_loader():
                return DataLoader(Uneven(), num_workers=2, prefetch_factor=2)
            """,
        after="""
            class Uneven(Dataset):
                def __len__(self):
                    return 200

                def __getitem__(self, index):
                    time.sleep(0.4 if index % 50 == 49 else 0.005)
                    return index


            def make_loader():
                return DataLoader(Uneven(), num_workers=2, prefetch_factor=50)
            """,
    ),
    Code(
        name="slow-transfer",
        family="throughput",
        title="Sending a batch from the worker takes longer than it should",
        why="""
            A tensor is sent as a handle of shared memory. Lists, dicts and strings are pickled
            object by object in the worker, pushed through a pipe, and rebuilt in the main process,
            in the thread that trains. Many small tensors are slow too, since each gets a shared
            memory of its own.
            """,
        mend="""
            Return few large tensors: stack what belongs together, and send text as numbers.
            """,
        before="""
            def collate(samples):
                return [[float(n) for n in range(10_000)] for _ in samples]
            """,
        after="""
            def collate(samples):
                return torch.arange(10_000, dtype=torch.float64).repeat(len(samples), 1)
            """,
    ),
)
