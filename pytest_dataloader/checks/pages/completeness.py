"""Pages of the completeness family."""

from __future__ import annotations

from pytest_dataloader.checks.pages.code import Code

CODES = (
    Code(
        name="duplicated-samples",
        family="completeness",
        title="Samples come more than once in an epoch",
        why="""
            Every worker has a copy of an IterableDataset and iterates over all of it. Nothing
            divides the work unless __iter__ does: with n workers each sample comes n times, and
            the loader raises no error. The PyTorch docs 'torch.utils.data', 'IterableDataset',
            say that each copy must be configured to avoid it.
            """,
        mend="""
            Let each worker take its share in __iter__, by get_worker_info().id and num_workers.
            """,
        before="""
            class Count(IterableDataset):
                def __iter__(self):
                    return iter(range(10))
            """,
        after="""
            class Count(IterableDataset):
                def __iter__(self):
                    info = get_worker_info()
                    start, step = (info.id, info.num_workers) if info else (0, 1)
                    return iter(range(start, 10, step))
            """,
    ),
    Code(
        name="lost-samples",
        family="completeness",
        title="Samples do not come at all",
        why="""
            The usual cause is a share computed by a division that rounds down: what is left over
            belongs to no worker. Others are drop_last=True, which drops the last incomplete batch
            of each worker when the dataset is iterable, a sampler that is shorter than the
            dataset, and an error that is caught and skipped.
            """,
        mend="""
            Share out by stride, range(id, n, num_workers), which leaves nothing over. Use
            drop_last only where an incomplete batch would do harm.
            """,
        before="""
            class Count(IterableDataset):
                def __iter__(self):
                    info = get_worker_info()
                    number, workers = (info.id, info.num_workers) if info else (0, 1)
                    share = 11 // workers
                    return iter(range(number * share, (number + 1) * share))
            """,
        after="""
            class Count(IterableDataset):
                def __iter__(self):
                    info = get_worker_info()
                    number, workers = (info.id, info.num_workers) if info else (0, 1)
                    return iter(range(number, 11, workers))
            """,
    ),
    Code(
        name="wrong-length",
        family="completeness",
        title="len() of the loader is not the number of batches that come",
        why="""
            For an iterable dataset the loader computes its length from __len__ of the dataset,
            which nobody checks: PyTorch only warns when more samples come than announced. It also
            knows nothing of shares, and each worker may end with an incomplete batch of its own.
            For a map-style dataset it is the length of the sampler or batch sampler, which
            nobody checks either: one that drops, groups or filters may ask for another number.
            Progress bars and learning-rate schedules then count to the wrong end.
            """,
        mend="""
            Return the number of samples that __iter__ yields over all workers (the number of
            batches that a batch sampler asks for), or no length at all. Filter when the dataset
            is built, not while it is read.
            """,
        before="""
            class Even(IterableDataset):
                def __init__(self, rows):
                    self.rows = rows

                def __len__(self):
                    return len(self.rows)

                def __iter__(self):
                    info = get_worker_info()
                    start, step = (info.id, info.num_workers) if info else (0, 1)
                    return (row for row in self.rows[start::step] if row % 2 == 0)
            """,
        after="""
            class Even(IterableDataset):
                def __init__(self, rows):
                    self.rows = [row for row in rows if row % 2 == 0]

                def __len__(self):
                    return len(self.rows)

                def __iter__(self):
                    info = get_worker_info()
                    start, step = (info.id, info.num_workers) if info else (0, 1)
                    return iter(self.rows[start::step])
            """,
    ),
    Code(
        name="empty-epoch",
        family="completeness",
        title="An epoch has no batches",
        why="""
            The dataset holds an iterator, which can be used up once: a generator, a map, a csv
            reader, a file. In the first epoch it is read to its end, and in the second nothing is
            left, without an error. With workers that are started anew for every epoch the same
            code may seem right, since each epoch begins with a fresh copy.
            """,
        mend="""
            Hold what can be iterated again (a list, a path), and make the iterator in __iter__.
            """,
        before="""
            class Rows(IterableDataset):
                def __init__(self, rows):
                    self.rows = iter(rows)

                def __iter__(self):
                    info = get_worker_info()
                    start, step = (info.id, info.num_workers) if info else (0, 1)
                    return itertools.islice(self.rows, start, None, step)
            """,
        after="""
            class Rows(IterableDataset):
                def __init__(self, rows):
                    self.rows = rows

                def __iter__(self):
                    info = get_worker_info()
                    start, step = (info.id, info.num_workers) if info else (0, 1)
                    return itertools.islice(self.rows, start, None, step)
            """,
    ),
    Code(
        name="empty-worker",
        family="completeness",
        title="A worker has nothing to do",
        why="""
            The work is divided by files or shards and there are fewer of them than workers. The
            others start, import torch, and end. Their start is paid for, and the rate is that of
            the few that work.
            """,
        mend="""
            Use no more workers than shards, write more shards, or divide by rows within a shard.
            """,
        before="""
            class Shards(IterableDataset):
                shards = ([1, 2, 3, 4],)

                def __iter__(self):
                    info = get_worker_info()
                    start, step = (info.id, info.num_workers) if info else (0, 1)
                    for shard in self.shards[start::step]:
                        yield from shard
            """,
        after="""
            class Shards(IterableDataset):
                shards = ([1, 2, 3, 4],)

                def __iter__(self):
                    info = get_worker_info()
                    start, step = (info.id, info.num_workers) if info else (0, 1)
                    for shard in self.shards:
                        yield from shard[start::step]
            """,
    ),
    Code(
        name="silent-truncation",
        family="completeness",
        title="The epoch ends early without an error",
        why="""
            StopIteration is how an iterator says that it is done. When __getitem__ or a
            collate_fn lets one escape, from a next() without a default for instance, it passes
            through the loader and the for loop takes it for the end of the epoch: nothing is
            raised and the rest of the samples never comes.
            """,
        mend="""
            Give next() a default, or catch StopIteration where it arises and raise a LookupError
            that says what was not found.
            """,
        before="""
            class Labels(Dataset):
                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    return next(n for n in (0, 1, 2) if n == index)
            """,
        after="""
            class Labels(Dataset):
                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    label = next((n for n in (0, 1, 2) if n == index), None)
                    if label is None:
                        raise LookupError(f"no label {index}")
                    return label
            """,
    ),
    Code(
        name="stale-worker-state",
        family="completeness",
        title="A change of the dataset does not reach the workers",
        why="""
            A worker has a copy of the dataset from the moment when it was started. With
            persistent_workers=True that is before the first epoch, so what the training loop sets
            later (an epoch, a difficulty, a resolution) changes only the main process's copy.
            """,
        mend="""
            Hold the value in shared memory, in a tensor after share_memory_() for instance, or do
            without persistent workers.
            """,
        before="""
            class Epochs(Dataset):
                def __init__(self):
                    self.epoch = 0

                def set_epoch(self, epoch):
                    self.epoch = epoch

                def __getitem__(self, index):
                    return self.epoch
            """,
        after="""
            class Epochs(Dataset):
                def __init__(self):
                    self.epoch = torch.zeros((), dtype=torch.int64).share_memory_()

                def set_epoch(self, epoch):
                    self.epoch.fill_(epoch)

                def __getitem__(self, index):
                    return int(self.epoch)
            """,
    ),
    Code(
        name="rank-overlap",
        family="completeness",
        title="Several ranks read the same samples",
        why="""
            In distributed training each rank has its own loader and its own workers.
            get_worker_info() knows only the workers of one rank, so a dataset that divides by
            worker alone gives every rank the whole of the data. A map-style dataset is divided by
            a DistributedSampler; an iterable dataset must do it itself.
            """,
        mend="""
            Divide by rank * num_workers + worker id over world_size * num_workers.
            """,
        before="""
            class Count(IterableDataset):
                def __init__(self, rank, world_size):
                    self.rank, self.world_size = rank, world_size

                def __iter__(self):
                    info = get_worker_info()
                    number, workers = (info.id, info.num_workers) if info else (0, 1)
                    return iter(range(number, 12, workers))
            """,
        after="""
            class Count(IterableDataset):
                def __init__(self, rank, world_size):
                    self.rank, self.world_size = rank, world_size

                def __iter__(self):
                    info = get_worker_info()
                    number, workers = (info.id, info.num_workers) if info else (0, 1)
                    number += self.rank * workers
                    return iter(range(number, 12, workers * self.world_size))
            """,
    ),
    Code(
        name="not-resumable",
        family="completeness",
        title="A loader that was restored from its state does not go on where it stopped",
        why="""
            A state_dict is a promise that load_state_dict keeps. It is broken when a part of the
            position is not in the state (the index within a shard, a buffer for shuffling, the
            state of a generator), or when __iter__ begins at the start whatever was loaded.
            Samples then come twice or never after a restart.
            """,
        mend="""
            Put all that decides the next sample into the state, and begin __iter__ from it.
            """,
        before="""
            class Count(IterableDataset):
                position = 0

                def state_dict(self):
                    return {"position": self.position}

                def load_state_dict(self, state):
                    self.position = state["position"]

                def __iter__(self):
                    for self.position in range(1, 11):
                        yield self.position
            """,
        after="""
            class Count(IterableDataset):
                position = 0

                def state_dict(self):
                    return {"position": self.position}

                def load_state_dict(self, state):
                    self.position = state["position"]

                def __iter__(self):
                    for self.position in range(self.position + 1, 11):
                        yield self.position
                    self.position = 0
            """,
    ),
)
