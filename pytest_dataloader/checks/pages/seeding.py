"""Pages of the seeding family."""

from __future__ import annotations

from pytest_dataloader.checks.pages.code import Code

CODES = (
    Code(
        name="duplicate-randomness",
        family="seeding",
        title="Several workers draw the same random numbers",
        why="""
            PyTorch gives each worker its own seed for torch, random and numpy.random. A generator
            that the dataset holds is not among them: it is copied with its state into every
            worker, by fork as by spawn, so all workers draw the same sequence from it. The data
            looks random, but each draw occurs once per worker.
            """,
        mend="""
            Draw from torch, random or numpy.random, or make the generator in the worker from
            torch.initial_seed(), which differs between workers and epochs.
            """,
        before="""
            class Noisy(Dataset):
                def __init__(self):
                    self.random = random.Random(0)

                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    return self.random.random()
            """,
        after="""
            class Noisy(Dataset):
                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    return random.random()
            """,
    ),
    Code(
        name="epochs-identical",
        family="seeding",
        title="Every epoch draws the same random numbers",
        why="""
            Unless persistent_workers=True, workers are started anew for every epoch from the
            dataset in the main process, which no worker ever changed. A generator on the dataset
            therefore begins at the same place each time, and so does one that is made from a
            constant or from the index alone. Random augmentation is then done once and repeated.
            """,
        mend="""
            Draw from torch, random or numpy.random, which are seeded anew in each worker and
            epoch, or let the epoch enter the seed through a set_epoch that the training loop
            calls. torch.initial_seed() + index is no way out: it is the base seed plus the
            worker's id, so two workers' sums meet.
            """,
        before="""
            class Noisy(Dataset):
                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    return random.Random(0).random()
            """,
        after="""
            class Noisy(Dataset):
                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    return random.random()
            """,
    ),
    Code(
        name="epochs-drift",
        family="seeding",
        title="Samples change from epoch to epoch because they are edited in place",
        why="""
            An operation in place on what the dataset holds changes it for the next time. With
            num_workers=0 that is the dataset itself. Under spawn and forkserver a tensor on the
            dataset is shared memory, so an edit in one worker reaches the others and all later
            epochs. Under fork an ordinary tensor is copied on write, and only persistent workers
            see their own edits again.
            """,
        mend="""
            Use the operation that returns a new tensor, or clone() the sample first.
            """,
        before="""
            class Dimmed(Dataset):
                def __init__(self, images):
                    self.images = images

                def __len__(self):
                    return len(self.images)

                def __getitem__(self, index):
                    return self.images[index].mul_(0.5)
            """,
        after="""
            class Dimmed(Dataset):
                def __init__(self, images):
                    self.images = images

                def __len__(self):
                    return len(self.images)

                def __getitem__(self, index):
                    return self.images[index].mul(0.5)
            """,
    ),
    Code(
        name="seed-ignored",
        family="seeding",
        title="Another seed gives the same random numbers",
        why="""
            Somewhere in the pipeline a seed is set or a generator is made from a constant, after
            the seed of the run was set. Runs over several seeds, meant to show how much a result
            varies, then all see the same data. A constant seed set through torch.manual_seed in
            the main process also takes away the randomness of everything that comes after it.
            """,
        mend="""
            Draw from torch, random or numpy.random, or take the seed of a generator as an
            argument. Do not call torch.manual_seed inside a dataset or a transform.
            """,
        before="""
            class Noisy(Dataset):
                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    generator = torch.Generator().manual_seed(1234)
                    return torch.rand(1, generator=generator)
            """,
        after="""
            class Noisy(Dataset):
                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    return torch.rand(1)
            """,
    ),
)
