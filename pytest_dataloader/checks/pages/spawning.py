"""Pages of the spawning family."""

from __future__ import annotations

from pytest_dataloader.checks.pages.code import Code

CODES = (
    Code(
        name="recursive-start",
        family="spawning",
        title="Importing the script or module starts processes again",
        why="""
            Under spawn and forkserver a worker first imports the main script again, to find the
            classes in it. A loader that is iterated at the top level is then iterated in the
            worker, which would start workers of its own. Python stops it with 'An attempt has been
            made to start a new process before the current process has finished its bootstrapping
            phase', the worker dies, and the main process reports a worker that exited
            unexpectedly. The rule stands in 'multiprocessing: programming guidelines', 'Safe
            importing of main module'.
            """,
        mend="""
            Put everything that runs, rather than defines, into a function and call it below 'if
            __name__ == "__main__":'.
            """,
        before="""
            class Squares(Dataset):
                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    return index**2


            for batch in DataLoader(Squares(), num_workers=2, multiprocessing_context="spawn"):
                print(batch)
            """,
        after="""
            class Squares(Dataset):
                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    return index**2


            if __name__ == "__main__":
                for batch in DataLoader(Squares(), num_workers=2, multiprocessing_context="spawn"):
                    print(batch)
            """,
    ),
    Code(
        name="import-side-effect",
        family="spawning",
        title="Importing what the workers import does more than define",
        why="""
            A spawned worker imports the main script again as __mp_main__, and the dataset's
            module. Whatever stands at the top level is done once more in each worker, and in each
            epoch without persistent workers: files are written, logging is set up, seeds are set,
            devices are initialised. 'multiprocessing: programming guidelines', 'Safe importing of
            main module', warns of unintended side effects.
            """,
        mend="""
            Move it into a function that is called below 'if __name__ == "__main__":'.
            """,
        before="""
            with open("run.log", "a", encoding="utf-8") as log:
                log.write("started\\n")

            if __name__ == "__main__":
                list(DataLoader(range(8), num_workers=2, multiprocessing_context="spawn"))
            """,
        after="""
            if __name__ == "__main__":
                with open("run.log", "a", encoding="utf-8") as log:
                    log.write("started\\n")
                list(DataLoader(range(8), num_workers=2, multiprocessing_context="spawn"))
            """,
    ),
    Code(
        name="slow-import",
        family="spawning",
        title="Importing what the workers import takes long",
        why="""
            A spawned worker imports the dataset's module and the main script from scratch, with
            all that they import, before it can do anything. Time spent there is spent again in
            each worker, by all workers at once on the same CPUs, and in each epoch without
            persistent workers. Under fork it is spent once.
            """,
        mend="""
            Compute tables on first use, and import heavy packages where they are needed. python -X
            importtime shows where the time goes.
            """,
        before="""
            SQUARES = {n: n * n for n in range(5_000_000)}


            def square(n):
                return SQUARES[n]
            """,
        after="""
            @functools.cache
            def squares():
                return {n: n * n for n in range(5_000_000)}


            def square(n):
                return squares()[n]
            """,
    ),
    Code(
        name="nested-processes",
        family="spawning",
        title="A worker starts processes of its own",
        why="""
            The workers of a DataLoader are daemonic processes, so that they end with the main
            process. multiprocessing forbids such a process to have children: 'daemonic processes
            are not allowed to have children'. Processes started in another way are allowed, but
            compete with the workers for the same CPUs and nobody ends them when a worker is ended.
            """,
        mend="""
            Do the work in the worker itself and raise num_workers, or use threads where the work
            releases the interpreter's lock. Prepare what truly needs a pool before the loader.
            """,
        before="""
            class Sums(Dataset):
                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    with multiprocessing.Pool(2) as pool:
                        return sum(pool.map(abs, range(-index, 0)))
            """,
        after="""
            class Sums(Dataset):
                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    return sum(map(abs, range(-index, 0)))
            """,
    ),
)
