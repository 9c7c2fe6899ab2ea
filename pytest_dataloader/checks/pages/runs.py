"""Pages of the runs family."""

from __future__ import annotations

from pytest_dataloader.checks.pages.code import Code

CODES = (
    Code(
        name="raises",
        family="runs",
        title="The run ends with an exception",
        why="""
            An exception in __getitem__, __iter__ or collate_fn ends the epoch. With workers,
            PyTorch carries its type and its traceback as text to the main process and raises the
            type again there with 'Caught ... in DataLoader worker process 0' and the original
            traceback. A type whose constructor does not accept one string arrives as a
            RuntimeError instead. An exception that the worker cannot pickle never arrives, and is
            a hang.
            """,
        mend="""
            Read the original traceback: its last line of your own code is the place. Check or
            drop bad records when the dataset is built, or handle them in __getitem__.
            """,
        before="""
            class Prices(Dataset):
                def __init__(self):
                    self.rows = ["1.50", "2.25", "n/a"]

                def __len__(self):
                    return len(self.rows)

                def __getitem__(self, index):
                    return float(self.rows[index])
            """,
        after="""
            class Prices(Dataset):
                def __init__(self):
                    self.rows = [row for row in ["1.50", "2.25", "n/a"] if row != "n/a"]

                def __len__(self):
                    return len(self.rows)

                def __getitem__(self, index):
                    return float(self.rows[index])
            """,
    ),
    Code(
        name="fails-without-workers",
        family="runs",
        title="The pipeline works with workers and fails with num_workers=0",
        why="""
            With num_workers=0 the dataset runs in the main process. There
            torch.utils.data.get_worker_info() returns None and worker_init_fn is never called, so
            code that takes an id from the one, or relies on what the other sets up, fails. It
            shows when somebody turns workers off to debug or to profile.
            """,
        mend="""
            Treat None as one worker that does it all, and set up on first use what
            worker_init_fn would have set up.
            """,
        before="""
            class Count(IterableDataset):
                def __iter__(self):
                    info = get_worker_info()
                    return iter(range(info.id, 100, info.num_workers))
            """,
        after="""
            class Count(IterableDataset):
                def __iter__(self):
                    info = get_worker_info()
                    start, step = (info.id, info.num_workers) if info else (0, 1)
                    return iter(range(start, 100, step))
            """,
    ),
    Code(
        name="fails-with-workers",
        family="runs",
        title="The pipeline works with num_workers=0 and fails with workers",
        why="""
            A worker is another process, and under spawn and forkserver a new interpreter in which
            the modules are imported afresh: globals that were set, registries that were filled
            and functions that were patched at run time are back in their first state. The Python
            docs say so in 'multiprocessing: programming guidelines', 'Global variables'. Workers
            are daemons too, which may not start processes of their own with multiprocessing.
            """,
        mend="""
            Keep what the dataset needs on the dataset, which travels to the worker, or set it
            when the module is imported. Where that is impossible, set it in worker_init_fn.
            """,
        before="""
            SCALE = None


            class Scaled(Dataset):
                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    return index * SCALE


            if __name__ == "__main__":
                SCALE = 2.0
                list(DataLoader(Scaled(), num_workers=2, multiprocessing_context="spawn"))
            """,
        after="""
            class Scaled(Dataset):
                def __init__(self, scale):
                    self.scale = scale

                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    return index * self.scale


            if __name__ == "__main__":
                list(DataLoader(Scaled(2.0), num_workers=2, multiprocessing_context="spawn"))
            """,
    ),
    Code(
        name="worker-died",
        family="runs",
        title="A worker process ended without a word",
        why="""
            The worker was killed (by the system when memory ran out, for one), crashed in native
            code, or left through sys.exit() or os._exit(), which PyTorch does not catch as it
            catches an exception. The main process reports 'DataLoader worker (pid(s) ...) exited
            unexpectedly', on Linux and macOS with the cause 'DataLoader worker (pid ...) is killed
            by signal: ...' where a signal ended it. An exit with status 0 is noticed only at
            PyTorch's next poll, 5 seconds later, or at the loader's timeout.
            """,
        mend="""
            Look at the worker's standard error and, after 'Killed', at the system's log for its
            out-of-memory killer. Raise an exception where the code leaves the process.
            faulthandler.enable() in worker_init_fn shows where native code crashed; python -X
            faulthandler does not, since PyTorch's own signal handlers take its place in a worker.
            """,
        before="""
            class Lines(Dataset):
                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    path = Path(f"missing/{index}.txt")
                    if not path.exists():
                        sys.exit(f"no such file: {path}")
                    return path.read_text(encoding="utf-8")
            """,
        after="""
            class Lines(Dataset):
                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    path = Path(f"missing/{index}.txt")
                    if not path.exists():
                        raise FileNotFoundError(path)
                    return path.read_text(encoding="utf-8")
            """,
    ),
    Code(
        name="hang",
        family="runs",
        title="No batch came within the deadline and no error was raised",
        why="""
            The main process waits for the next batch for as long as the workers are alive, and a
            DataLoader has no timeout unless one is given. A worker stays alive and silent when it
            reads from a socket or a queue that gives nothing, waits for a lock that a thread held
            at the moment of a fork, or loses a batch or an exception that cannot be pickled.
            """,
        mend="""
            Look at the place where the worker stands. Give every wait in the dataset its own
            timeout; DataLoader(timeout=...) turns what remains into an error.
            """,
        before="""
            class Remote(Dataset):
                def __init__(self, urls):
                    self.urls = urls

                def __len__(self):
                    return len(self.urls)

                def __getitem__(self, index):
                    return urllib.request.urlopen(self.urls[index]).read()
            """,
        after="""
            class Remote(Dataset):
                def __init__(self, urls):
                    self.urls = urls

                def __len__(self):
                    return len(self.urls)

                def __getitem__(self, index):
                    return urllib.request.urlopen(self.urls[index], timeout=10).read()
            """,
    ),
    Code(
        name="unsendable-batch",
        family="runs",
        title="A worker made a batch that it cannot send to the main process",
        why="""
            A batch goes back through a multiprocessing queue. It is pickled in the queue's feeder
            thread, after the worker has moved on: an error there is printed on the worker's
            standard error, the batch is lost, and the main process waits for it for ever. It
            happens with lambdas, local classes, open files and generators in a batch, and with
            tensors that require a gradient and are not leaves. num_workers=0 pickles nothing and
            works, and fork suffers as much as spawn.
            """,
        mend="""
            Return tensors, arrays, numbers, strings and containers of them. Send what a function
            would need instead of the function, and detach() tensors.
            """,
        before="""
            def collate(samples):
                x = torch.tensor(samples, dtype=torch.float32)
                mean = x.mean()
                return {"x": x - mean, "undo": lambda y: y + mean}
            """,
        after="""
            def collate(samples):
                x = torch.tensor(samples, dtype=torch.float32)
                mean = x.mean()
                return {"x": x - mean, "mean": mean}
            """,
    ),
    Code(
        name="exception-changed",
        family="runs",
        title="An exception from a worker arrives as another type",
        why="""
            PyTorch sends the type of a worker's exception and its traceback as text, and calls the
            type with that text in the main process. A type whose constructor asks for more than
            one argument cannot be made that way, and arrives as a RuntimeError. Attributes of the
            exception never arrive, so 'except BadRow' and what follows it work with num_workers=0
            only.
            """,
        mend="""
            Give the type a constructor that one string satisfies, and put into the message what
            the handler needs.
            """,
        before="""
            class BadRow(Exception):
                def __init__(self, path, line):
                    super().__init__(f"{path}:{line}")


            class Rows(Dataset):
                def __getitem__(self, index):
                    raise BadRow("rows.csv", index)
            """,
        after="""
            class BadRow(Exception):
                pass


            class Rows(Dataset):
                def __getitem__(self, index):
                    raise BadRow(f"rows.csv:{index}")
            """,
    ),
    Code(
        name="cuda-in-worker",
        family="runs",
        title="A worker uses the GPU",
        why="""
            CUDA cannot be used in a forked process once the main process has initialised it:
            PyTorch raises 'Cannot re-initialize CUDA in forked subprocess', and native code fails
            with 'CUDA error: initialization error'. Under spawn it works, but each worker takes
            hundreds of megabytes on the GPU for its own context, and its tensors must be kept
            alive there until the main process has let go of them.
            """,
        mend="""
            Return tensors on the CPU and move batches to the GPU in the training loop, with
            pin_memory=True and non_blocking=True. Work that needs the GPU belongs after the loader.
            """,
        before="""
            class Images(Dataset):
                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    return torch.zeros(3, 224, 224, device="cuda")
            """,
        after="""
            class Images(Dataset):
                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    return torch.zeros(3, 224, 224)
            """,
    ),
    Code(
        name="unpinnable-batch",
        family="runs",
        title="pin_memory=True does not reach the tensors of a batch",
        why="""
            PyTorch pins tensors, mappings, tuples and sequences of them, and objects with a
            pin_memory() method. Any other object is passed on as it is, without a word, and its
            tensors stay in pageable memory: copies to the GPU then block, whatever non_blocking
            says. The docs say so under 'Memory Pinning'.
            """,
        mend="""
            Give the class a pin_memory() method that pins its tensors and returns the object, or
            return a dict or a named tuple.
            """,
        before="""
            class Batch:
                def __init__(self, samples):
                    self.x = torch.stack(samples)
            """,
        after="""
            class Batch:
                def __init__(self, samples):
                    self.x = torch.stack(samples)

                def pin_memory(self):
                    self.x = self.x.pin_memory()
                    return self
            """,
    ),
)
