"""The catalogue of codes: what each one means, why it happens and how to mend it."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

PAGE_WIDTH = 88


@dataclass(frozen=True)
class Code:
    """One code and the parts of its page."""

    name: str
    family: str
    title: str
    why: str
    mend: str
    before: str
    after: str


class UnknownCode(ValueError):
    """A word that names neither a code nor, where families count too, a family."""


# The examples leave out their imports. `before` shows the fault with two spawned workers (with none
# for fails-without-workers); `after` is the same code without it.
_PICKLABILITY = (
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
)

_RUNS = (
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
)

_DETERMINISM = (
    Code(
        name="not-repeatable",
        family="determinism",
        title="Two runs with the same seed give different batches",
        why="""
            PyTorch seeds random and torch, and numpy.random where NumPy is installed, in every
            worker from the main process's seed. Anything else is not seeded: random.Random() and
            numpy.random.default_rng() without an argument, os.urandom, uuid, the clock. The order
            of a set of strings also differs between interpreters, since each has its own hash
            seed unless PYTHONHASHSEED is set, and so does the order in which threads finish.
            """,
        mend="""
            Draw from torch, random or numpy.random, which are seeded, or make a generator from a
            seed that you pass in. Sort sets and directory listings.
            """,
        before="""
            class Noisy(Dataset):
                def __init__(self):
                    self.random = random.Random()

                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    return index + self.random.random()
            """,
        after="""
            class Noisy(Dataset):
                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    return index + random.random()
            """,
    ),
    Code(
        name="differs-by-start-method",
        family="determinism",
        title="The same seed gives different batches under different start methods",
        why="""
            A forked worker inherits the main process as it stands; a spawned one imports the
            modules afresh and unpickles the dataset. What was set at run time stays behind:
            module globals, torch.set_default_dtype, registries, patches, and attributes that
            __getstate__ drops. The hash seed is new too, so hash() of a string differs. No error
            is raised: a model that was trained on Linux has seen other data on Windows or macOS.
            Random streams themselves agree between start methods for the same number of workers.
            """,
        mend="""
            Say it explicitly: put the value on the dataset, pass dtype, set globals when the
            module is imported or in worker_init_fn. For hashing use hashlib or zlib.crc32.
            """,
        before="""
            class Ratios(Dataset):
                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    return torch.tensor(index / 3)


            if __name__ == "__main__":
                torch.set_default_dtype(torch.float64)
                batches = list(DataLoader(Ratios(), num_workers=2, multiprocessing_context="spawn"))
            """,
        after="""
            class Ratios(Dataset):
                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    return torch.tensor(index / 3, dtype=torch.float64)


            if __name__ == "__main__":
                batches = list(DataLoader(Ratios(), num_workers=2, multiprocessing_context="spawn"))
            """,
    ),
    Code(
        name="depends-on-num-workers",
        family="determinism",
        title="The same seed gives different batches with another number of workers",
        why="""
            Each worker has its own random stream, seeded with a base seed plus its id, and gets
            every n-th batch of a map-style dataset. With another number of workers a sample falls
            to another stream, or to another place in it. That is how PyTorch works ('Randomness in
            multi-process data loading') and no fault in itself. It matters to those who must
            reproduce a run on a machine with other CPUs. An iterable dataset also changes the
            order of its samples.
            """,
        mend="""
            Seed a generator from the epoch and the index of the sample, so that the draw does not
            depend on who makes it. With persistent_workers=True a set_epoch in the main process
            does not reach the workers: share the epoch, or start them anew.
            """,
        before="""
            class Noisy(Dataset):
                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    return index + torch.rand(1)
            """,
        after="""
            class Noisy(Dataset):
                epoch = 0

                def set_epoch(self, epoch):
                    self.epoch = epoch

                def __len__(self):
                    return 8

                def __getitem__(self, index):
                    generator = torch.Generator().manual_seed(self.epoch * len(self) + index)
                    return index + torch.rand(1, generator=generator)
            """,
    ),
)

_SPAWNING = (
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
)

_THROUGHPUT = (
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
)


def _tidy(code: Code) -> Code:
    """Undo what writing the texts inside the tuples above adds: indentation and line breaks."""
    return Code(
        name=code.name,
        family=code.family,
        title=code.title,
        why=" ".join(code.why.split()),
        mend=" ".join(code.mend.split()),
        before=textwrap.dedent(code.before).strip("\n") + "\n",
        after=textwrap.dedent(code.after).strip("\n") + "\n",
    )


CODES: tuple[Code, ...] = tuple(
    _tidy(code) for code in (*_PICKLABILITY, *_RUNS, *_DETERMINISM, *_SPAWNING, *_THROUGHPUT)
)
BY_NAME: Mapping[str, Code] = MappingProxyType({code.name: code for code in CODES})
FAMILIES: tuple[str, ...] = tuple(dict.fromkeys(code.family for code in CODES))


def explain(name: str) -> str:
    """Return the page of one code as plain text."""
    if name not in BY_NAME:
        raise _unknown(name, "is not a code", f"The codes are: {', '.join(BY_NAME)}.", BY_NAME)
    code = BY_NAME[name]
    parts = (
        f"{code.name} ({code.family}): {code.title}",
        f"Why it happens\n{_wrapped(code.why)}",
        f"How to mend it\n{_wrapped(code.mend)}",
        f"Before:\n{_indented(code.before)}",
        f"After:\n{_indented(code.after)}",
    )
    return "\n\n".join(parts)


def select(words: Iterable[str]) -> frozenset[str]:
    """Expand names of codes and of families to names of codes."""
    return frozenset(name for word in words for name in _expanded(word))


def _expanded(word: str) -> tuple[str, ...]:
    if word in BY_NAME:
        return (word,)
    if word in FAMILIES:
        return tuple(code.name for code in CODES if code.family == word)
    valid = f"The families are: {', '.join(FAMILIES)}. The codes are: {', '.join(BY_NAME)}."
    raise _unknown(word, "is neither a code nor a family", valid, (*FAMILIES, *BY_NAME))


def _unknown(word: str, rule: str, valid: str, names: Iterable[str]) -> UnknownCode:
    closest = difflib.get_close_matches(word, names, n=1)
    hint = f"; did you mean {closest[0]!r}?" if closest else "."
    return UnknownCode(f"{word!r} {rule}{hint} {valid}")


def _wrapped(prose: str) -> str:
    return textwrap.fill(prose, PAGE_WIDTH, break_long_words=False, break_on_hyphens=False)


def _indented(code: str) -> str:
    return textwrap.indent(code.rstrip("\n"), "    ")
