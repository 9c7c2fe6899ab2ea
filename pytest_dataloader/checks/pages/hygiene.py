"""Pages of the hygiene family."""

from __future__ import annotations

from pytest_dataloader.checks.pages.code import Code

CODES = (
    Code(
        name="slow-close",
        family="hygiene",
        title="The workers take long to end",
        why="""
            At the end of an epoch the loader tells its workers to stop and waits up to 5 seconds
            for each before it terminates it. A worker ends when its threads have: one that is not
            a daemon is waited for. A long sample in hand, or a slow __del__, delays it as well.
            Without persistent workers every epoch ends that way.
            """,
        mend="""
            Make helper threads daemons or tell them to stop, and keep single samples short.
            """,
        before="""
            class Watched(Dataset):
                def __len__(self):
                    return 2

                def __getitem__(self, index):
                    threading.Thread(target=time.sleep, args=(20,)).start()
                    return index
            """,
        after="""
            class Watched(Dataset):
                def __len__(self):
                    return 2

                def __getitem__(self, index):
                    threading.Thread(target=time.sleep, args=(20,), daemon=True).start()
                    return index
            """,
    ),
    Code(
        name="too-many-files",
        family="hygiene",
        title="Batches that are kept use up the limit of open files",
        why="""
            On Linux a tensor from a worker is a shared memory file that stays open for as long as
            the tensor lives: that is PyTorch's sharing strategy 'file_descriptor'. Keeping batches
            in a list keeps one file open per tensor, up to the limit ('ulimit -n', often 1024),
            and then fails with 'Too many open files'.
            """,
        mend="""
            clone() what you keep. torch.multiprocessing.set_sharing_strategy("file_system") lifts
            the limit, at the risk of leaked shared memory.
            """,
        before="""
            def collect(loader):
                return [batch for batch in loader]
            """,
        after="""
            def collect(loader):
                return [batch.clone() for batch in loader]
            """,
    ),
)
