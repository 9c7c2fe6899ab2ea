"""Pages of the fork-safety family."""

from __future__ import annotations

from pytest_dataloader.checks.pages.code import Code

CODES = (
    Code(
        name="fork-unsafe-handle",
        family="fork-safety",
        title="Forked workers share a handle that was opened before the fork",
        why="""
            A forked worker inherits the open files and sockets of the main process, and with a
            file also its position: one worker's seek moves the place where another reads, and
            bytes of different samples are mixed. A socket's answers go to whoever reads first.
            Libraries such as HDF5, LMDB and SQLite forbid the use of a handle after a fork. Under
            spawn the same handle is refused by pickle.
            """,
        mend="""
            Open the handle on first use in the process that uses it, and remember os.getpid() to
            open it again after a fork. Positioned reads (os.pread) do not move the position.
            """,
        before="""
            class Records(Dataset):
                def __init__(self, path):
                    self.file = open(path, "rb", buffering=0)

                def __len__(self):
                    return 20_000

                def __getitem__(self, index):
                    self.file.seek(index * 8)
                    return int.from_bytes(self.file.read(8), "little")
            """,
        after="""
            class Records(Dataset):
                def __init__(self, path):
                    self.path = path

                def __len__(self):
                    return 20_000

                def __getitem__(self, index):
                    with open(self.path, "rb") as file:
                        file.seek(index * 8)
                        return int.from_bytes(file.read(8), "little")
            """,
    ),
    Code(
        name="fork-unsafe-lock",
        family="fork-safety",
        title="A lock can be held by another thread at the moment of the fork",
        why="""
            A fork copies a lock as it stands. If another thread holds it at that moment, it is
            held in the worker too, where the thread that would release it does not exist: the
            worker waits for ever, now and then. Locks of the standard library's logging are made
            anew after a fork; those of users and of most native libraries are not.
            """,
        mend="""
            Make the lock in the process that uses it, register os.register_at_fork to replace it
            in the child, or use spawn or forkserver.
            """,
        before="""
            LOCK = threading.Lock()


            class Guarded(Dataset):
                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    with LOCK:
                        return index
            """,
        after="""
            class Guarded(Dataset):
                lock = None

                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    self.lock = self.lock or threading.Lock()
                    with self.lock:
                        return index
            """,
    ),
    Code(
        name="fork-unsafe-thread",
        family="fork-safety",
        title="The pipeline relies on a thread that a fork leaves behind",
        why="""
            fork copies the memory of a process and only the thread that calls it. Objects that
            belong to other threads are there in the worker, but nothing fills the queue or
            answers the request any more, so whoever waits for them waits for ever. Python warns of
            forking a process with several threads since 3.12. Under spawn a thread is refused by
            pickle.
            """,
        mend="""
            Start the thread on first use in the process that uses it, or make the loader's
            iterator before any thread is started.
            """,
        before="""
            class Fed(Dataset):
                def __init__(self):
                    self.queue = queue.Queue(maxsize=1)
                    threading.Thread(target=self.feed, daemon=True).start()

                def feed(self):
                    while True:
                        self.queue.put(1)

                def __getitem__(self, index):
                    return self.queue.get()
            """,
        after="""
            class Fed(Dataset):
                queue = None

                def feed(self):
                    while True:
                        self.queue.put(1)

                def __getitem__(self, index):
                    if self.queue is None:
                        self.queue = queue.Queue(maxsize=1)
                        threading.Thread(target=self.feed, daemon=True).start()
                    return self.queue.get()
            """,
    ),
)
