"""Pages of the picklability family."""

from __future__ import annotations

from pytest_dataloader.checks.pages.code import Code

CODES = (
    Code(
        name="unpicklable",
        family="picklability",
        title="A part of the pipeline cannot be pickled, so no worker can be started with it",
        why="""
            The dataset, collate_fn and worker_init_fn reach a worker that is started by spawn or
            forkserver as a pickle. Pickle stores a function or a class as the name under which a
            module holds it, so lambdas and local functions have nothing to store; open files,
            sockets, threads and locks refuse. Under fork nothing is pickled, which is why the
            same code works there. The Python docs ask for it in 'multiprocessing: programming
            guidelines', 'More picklability'.
            """,
        mend="""
            Move the function to the top level of a module, or use functools.partial on one that
            is there. Open a file or a connection on first use inside the worker, and leave it out
            of the pickle in __getstate__.
            """,
        before="""
            class Words(Dataset):
                def __init__(self, words):
                    self.words = words
                    self.clean = lambda word: word.strip()

                def __getitem__(self, index):
                    return self.clean(self.words[index])

                def __len__(self):
                    return len(self.words)
            """,
        after="""
            class Words(Dataset):
                def __init__(self, words):
                    self.words = words
                    self.clean = str.strip

                def __getitem__(self, index):
                    return self.clean(self.words[index])

                def __len__(self):
                    return len(self.words)
            """,
    ),
    Code(
        name="unpickle-fails",
        family="picklability",
        title="The pipeline can be pickled, but the worker cannot rebuild it",
        why="""
            A pickle is a recipe: the worker imports modules by name, makes each object without
            calling __init__ and then restores its attributes. That fails when a module cannot be
            imported there, when __setstate__ or a constructor called by __reduce__ raises, or when
            __getattr__ reads an attribute that is not restored yet and calls itself for ever. The
            true traceback goes to the worker's standard error. The parent only says 'DataLoader
            worker (pid(s) ...) exited unexpectedly'.
            """,
        mend="""
            Raise AttributeError from __getattr__ for names that start with an underscore, before
            any attribute is read. Keep code in modules that a new interpreter finds through
            sys.path, and give __setstate__ everything it needs in the state.
            """,
        before="""
            class Renamed(Dataset):
                def __init__(self, inner):
                    self._inner = inner

                def __getattr__(self, name):
                    return getattr(self._inner, name)

                def __getitem__(self, index):
                    return self._inner[index]
            """,
        after="""
            class Renamed(Dataset):
                def __init__(self, inner):
                    self._inner = inner

                def __getattr__(self, name):
                    if name.startswith("_"):
                        raise AttributeError(name)
                    return getattr(self._inner, name)

                def __getitem__(self, index):
                    return self._inner[index]
            """,
    ),
    Code(
        name="main-only-class",
        family="picklability",
        title="A class or function exists only in the main process's __main__",
        why="""
            Pickle stores a class as its module and name. Under spawn and forkserver the worker
            imports the main script again under the name __mp_main__, so what stands below 'if
            __name__ == "__main__":', or was typed into a notebook, an interactive session or
            'python -c', is not there: 'Can't get attribute'. The PyTorch docs 'torch.utils.data',
            'Platform-specific behaviors', ask for datasets, collate_fn and worker_init_fn at the
            top level, outside the check of __main__.
            """,
        mend="""
            Move the definition into a module of its own and import it, or at least above the
            guard of the script.
            """,
        before="""
            if __name__ == "__main__":

                class Squares(Dataset):
                    def __len__(self):
                        return 8

                    def __getitem__(self, index):
                        return index**2

                list(DataLoader(Squares(), num_workers=2, multiprocessing_context="spawn"))
            """,
        after="""
            class Squares(Dataset):
                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    return index**2


            if __name__ == "__main__":
                list(DataLoader(Squares(), num_workers=2, multiprocessing_context="spawn"))
            """,
    ),
    Code(
        name="context-bound",
        family="picklability",
        title="A lock, queue or shared value belongs to another start method",
        why="""
            multiprocessing.Lock(), Queue() and Value() belong to the start method that was the
            default when they were made. One made for fork has no name by which another process
            could open it and travels only by inheritance, so a spawned worker is refused: 'A
            SemLock created in a fork context is being shared with a process in a spawn context'.
            The default differs between platforms (spawn on Windows and macOS; on Linux fork up to
            Python 3.13, forkserver since 3.14), so this shows up on one machine and not on
            another.
            """,
        mend="""
            Make it with multiprocessing.get_context(method) and give the loader the same context
            as multiprocessing_context. Better still, do without: let the workers share nothing.
            """,
        before="""
            class Counted(Dataset):
                def __init__(self):
                    self.seen = multiprocessing.get_context("fork").Value("i", 0)

                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    with self.seen.get_lock():
                        self.seen.value += 1
                    return index
            """,
        after="""
            class Counted(Dataset):
                def __init__(self, context):  # the loader's multiprocessing_context
                    self.seen = context.Value("i", 0)

                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    with self.seen.get_lock():
                        self.seen.value += 1
                    return index
            """,
    ),
    Code(
        name="heavy-pickle",
        family="picklability",
        title="What travels to each worker is heavy",
        why="""
            Under spawn and forkserver every worker gets its own pickle of the dataset, written
            and read again at each start: with the default persistent_workers=False that is in
            every epoch. Lists and dicts of many small objects cost most, since each object is
            pickled and rebuilt one by one and weighs more in memory than on the wire. Tensors
            travel as handles of shared memory and are not copied; arrays and memory maps travel
            by value. Fork sends nothing.
            """,
        mend="""
            Hold the records in one tensor (numbers, or text as bytes with offsets), or hold only a
            path and open the data on first use in the worker. persistent_workers=True pays the
            price once instead of in every epoch.
            """,
        before="""
            class Pairs(Dataset):
                def __init__(self):
                    self.rows = [{"x": n, "y": n + 1} for n in range(1_000_000)]

                def __len__(self):
                    return len(self.rows)

                def __getitem__(self, index):
                    return self.rows[index]
            """,
        after="""
            class Pairs(Dataset):
                def __init__(self):
                    x = torch.arange(1_000_000)
                    self.rows = torch.stack([x, x + 1], dim=1)

                def __len__(self):
                    return len(self.rows)

                def __getitem__(self, index):
                    x, y = self.rows[index].tolist()
                    return {"x": x, "y": y}
            """,
    ),
    Code(
        name="arrives-changed",
        family="picklability",
        title="The pipeline arrives in the worker with another state than it left with",
        why="""
            Pickling is not copying: what travels is what __getstate__ or __reduce__ returns, and
            what arrives is what __setstate__ makes of it. An attribute that is left out falls back
            to the class's own, or is computed anew. A forked worker keeps the original, so the two
            start methods see different data and neither raises an error.
            """,
        mend="""
            Start __getstate__ from a copy of __dict__ and take out only what cannot travel.
            Compare the state before and after a round trip in a test.
            """,
        before="""
            class Scaled(Dataset):
                scale = 1.0

                def __init__(self, rows):
                    self.rows, self.scale = rows, max(rows)

                def __getstate__(self):
                    return {"rows": self.rows}

                def __getitem__(self, index):
                    return self.rows[index] / self.scale
            """,
        after="""
            class Scaled(Dataset):
                scale = 1.0

                def __init__(self, rows):
                    self.rows, self.scale = rows, max(rows)

                def __getstate__(self):
                    return self.__dict__.copy()

                def __getitem__(self, index):
                    return self.rows[index] / self.scale
            """,
    ),
)
