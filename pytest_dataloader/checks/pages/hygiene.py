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
    Code(
        name="leaked-process",
        family="hygiene",
        title="A process or a thread outlives the epoch that caused it",
        why="""
            A worker that starts a program and does not wait for it leaves it behind: when the
            worker ends or is ended, the program goes on and belongs to nobody. It keeps memory,
            files and the CPU, and a terminal or a CI job may wait for it. A thread that fills a
            queue waits in put() for ever when a loop breaks off early. What is started once and
            kept is no leak, and neither are the resource tracker and the fork server.
            """,
        mend="""
            Run programs to their end with subprocess.run and a timeout, or end them and tell
            threads to stop in a finally.
            """,
        before="""
            class Clips(Dataset):
                def __len__(self):
                    return 2

                def __getitem__(self, index):
                    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(20)"])
                    return index
            """,
        after="""
            class Clips(Dataset):
                def __len__(self):
                    return 2

                def __getitem__(self, index):
                    subprocess.run([sys.executable, "-c", "pass"], check=True, timeout=60)
                    return index
            """,
    ),
    Code(
        name="leaked-file",
        family="hygiene",
        title="Files stay open, or temporary ones stay behind, after each epoch",
        why="""
            A file object that something still refers to is not closed: one in a list or a cache on
            the dataset, or in the traceback of an exception that is kept. Each epoch adds some,
            until the limit of open files of the process is reached, which is 256 on macOS and 1024
            on many Linux systems. On Windows an open file cannot be deleted or replaced. Temporary
            files of tempfile.mkstemp and mkdtemp are nobody's to remove; and a forked worker ends
            without removing the TemporaryDirectory that its dataset holds.
            """,
        mend="""
            Open files and temporary folders in a with statement, and bound every cache of open
            ones.
            """,
        before="""
            class Texts(Dataset):
                def __init__(self, paths):
                    self.paths, self.files = paths, []

                def __len__(self):
                    return len(self.paths)

                def __getitem__(self, index):
                    self.files.append(open(self.paths[index], encoding="utf-8"))
                    return self.files[-1].read()
            """,
        after="""
            class Texts(Dataset):
                def __init__(self, paths):
                    self.paths = paths

                def __len__(self):
                    return len(self.paths)

                def __getitem__(self, index):
                    with open(self.paths[index], encoding="utf-8") as file:
                        return file.read()
            """,
    ),
    Code(
        name="leaked-shared-memory",
        family="hygiene",
        title="Shared memory is left behind",
        why="""
            A block of multiprocessing.shared_memory lives on POSIX systems until somebody calls
            unlink(), not until the last user has closed it. One that nobody unlinks takes memory
            until the resource tracker cleans up at the end of the program, or, where that process
            was killed, until the machine restarts.
            """,
        mend="""
            Call close() in every process and unlink() in exactly one, in a finally. For batches it
            is simpler to return tensors: PyTorch moves and frees them itself.
            """,
        before="""
            class Blocks(Dataset):
                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    block = shared_memory.SharedMemory(create=True, size=4096)
                    block.buf[0] = index
                    block.close()
                    return block.name
            """,
        after="""
            class Blocks(Dataset):
                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    block = torch.zeros(4096, dtype=torch.uint8)
                    block[0] = index
                    return block
            """,
    ),
)
