"""Pages of the machine family."""

from __future__ import annotations

from pytest_dataloader.checks.pages.code import Code

CODES = (
    Code(
        name="slow-filesystem",
        family="machine",
        title="The data lies on a file system that takes long to answer",
        why="""
            Each open and each read of a file on a Windows drive under WSL, a network file system,
            a mounted object store or a folder of a container's host goes through a server. That
            takes a millisecond or more where a local disk takes some microseconds, and a dataset
            of many small files pays it for every sample. A rotating disk moves its heads between
            the files of several workers. It is a warning where fetching a batch was measured to
            wait, else information.
            """,
        mend="""
            Copy the data to a local disk before training, or pack many small files into few large
            ones. Under WSL keep it in the file system of the distribution, not below /mnt/c.
            """,
        before="""
            def make_dataset():
                return ImageFolder("/mnt/c/Users/me/images")
            """,
        after="""
            def make_dataset():
                return ImageFolder(Path("~/images").expanduser())
            """,
    ),
    Code(
        name="small-shared-memory",
        family="machine",
        title="The batches under way do not fit into /dev/shm",
        why="""
            Workers put the tensors of a batch into shared memory, which on Linux is /dev/shm.
            Up to num_workers * prefetch_factor batches wait there, besides the one in use. A
            container gets 64 MiB of it by default. When it is full, a worker raises "unable to
            allocate shared memory" or dies of SIGBUS, often only after many batches: when the
            loop is slower than the workers. A warning where it would not fit, an error where it
            did not.
            """,
        mend="""
            Give the container more (docker run --shm-size=8g, or --ipc=host), or lower
            num_workers, prefetch_factor or the size of a batch.
            """,
        before="""
            def make_loader():
                return DataLoader(Images(), batch_size=256, num_workers=8, prefetch_factor=4)
            """,
        after="""
            def make_loader():
                return DataLoader(Images(), batch_size=32, num_workers=4, prefetch_factor=2)
            """,
    ),
    Code(
        name="too-many-workers",
        family="machine",
        title="There are more workers than CPUs for them",
        why="""
            Workers that compute share the CPUs that this process may use: those of its affinity
            and of its container's limit, which may be far fewer than the machine has. Beyond that
            number each further worker makes the others slower, and costs memory and time at the
            start. Workers that mostly wait, for a disk or a network, may be many: for these the
            code is not given.
            """,
        mend="""
            Lower num_workers to the number of CPUs allowed;
            pytest_dataloader.recommended_num_workers() gives a value to start with.
            """,
        before="""
            def make_loader():
                return DataLoader(Images(), num_workers=64)
            """,
        after="""
            def make_loader():
                return DataLoader(Images(), num_workers=recommended_num_workers())
            """,
    ),
)
