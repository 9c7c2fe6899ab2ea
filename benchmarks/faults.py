"""Faults of workers, each in a session of its own: is it told, does all go on, is nothing left?

Runs every fault under every start method, with 1 and 4 workers, persistent or not, in the first
and in a later epoch, and prints how many were survived. POSIX only.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).resolve().parent
GRACE_S = 10
# Longer than a start takes on a busy machine.
TIMEOUTS_S = {"fork": 4, "spawn": 15, "forkserver": 15}
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the POSIX place of shared memory, only read
METHODS, WORKERS, EPOCHS = ("fork", "spawn", "forkserver"), (1, 4), ("first", "later")
_MARK = "FAULTS_SESSION"


@dataclass(frozen=True)
class Fault:
    """A fault, and what must come of it: one of the codes, and pytest's exit status.

    ``persistent`` and ``later`` say whether these axes mean anything for it, ``signal`` what the
    session is ended with in the middle, ``waits_s`` how long it waits beside the timeout.
    """

    dataset: str
    codes: tuple[str, ...]
    status: int = 1
    loader: str = ""
    methods: tuple[str, ...] = METHODS
    later: bool = True
    persistent: bool = True
    signal: int | None = None
    marker: str = ""
    waits_s: float = 0.0
    # The size of /dev/shm that the session has for itself; it takes the right to mount one.
    shared_memory: str = ""


@dataclass(frozen=True)
class Combination:
    """Where a fault happens."""

    method: str
    workers: int
    persistent: bool
    epoch: str

    def __str__(self) -> str:
        kept = "persistent" if self.persistent else "restarted"
        return f"{self.method}-w{self.workers}-{kept}-{self.epoch}"


@dataclass
class Result:
    """How a session went; without ``wrong`` the fault was survived."""

    seconds: float
    text: str
    wrong: list[str] = field(default_factory=list)


FAULTS: dict[str, Fault] = {
    "exit-0": Fault("Exits0", ("worker-died",)),
    "exit-1": Fault("Exits1", ("worker-died",)),
    "sigkill": Fault("Killed", ("worker-died",)),
    "sigsegv": Fault("Segfaults", ("worker-died",)),
    "sigbus": Fault("BusError", ("worker-died",)),
    "full-shm": Fault("Large", ("small-shared-memory",), later=False, shared_memory="1m"),
    "loop": Fault("Loops", ("hang",)),
    "loop-in-c": Fault("LoopsInC", ("hang",)),
    "lock": Fault("WaitsForLock", ("hang", "fork-unsafe-lock"), methods=("fork",)),
    "unsendable-batch": Fault("Unsendable", ("unsendable-batch",), loader="collate_fn=keep"),
    "unsendable-exception": Fault("RaisesUnsendable", ("unsendable-batch",)),
    "two-arguments": Fault("RaisesTwoArguments", ("exception-changed",)),
    "init": Fault("RaisesAtInit", ("raises",), later=False, persistent=False),
    "len": Fault("RaisesAtLen", ("raises",), later=False, persistent=False),
    # torch guards the first iter() of a persistent worker, and not the later ones
    "iter": Fault("RaisesAtIter", ("raises", "worker-died")),
    "worker-init": Fault(
        "Sound", ("fails-with-workers",), loader="worker_init_fn=broken_init", later=False
    ),
    "collate": Fault("Sound", ("raises",), loader="collate_fn=broken_collate", later=False),
    "sampler": Fault("Sound", ("raises",), loader="sampler=BrokenSampler()", later=False),
    "stuck-sampler": Fault("Sound", ("hang",), loader="sampler=StuckSampler()", later=False),
    # torch waits five seconds for a worker to end, which is longer than the timeout here
    "thread": Fault("KeepsThread", ("slow-close", "hang"), waits_s=5),
    "processes": Fault("StartsProcesses", ("nested-processes",)),
    "memory": Fault("FillsMemory", ("fails-with-workers", "raises")),
    "stderr": Fault("Shouts", (), status=0),
    "ctrl-c": Fault("Sleeps", (), status=2, signal=signal.SIGINT, later=False),
    "sigterm": Fault("Sleeps", (), status=2, signal=signal.SIGTERM, later=False),
    "pytest-timeout": Fault(
        "Sleeps", (), later=False, marker='@pytest.mark.timeout(6, method="signal")'
    ),
    "none": Fault("Sound", (), status=0),
}

_SUITE = """\
import pytest
from faulty import *


class TestFault:
    @pytest.fixture
    def dl_make_dataset(self):
        return lambda: {dataset}({epoch!r})

    @pytest.fixture
    def dl_loader_kwargs(self):
        return {{"batch_size": 2, "persistent_workers": {persistent}, **dict({loader})}}

    {marker}
    @pytest.mark.dl_fork_safe
    def test_it(self): ...


class TestFollowing:
    @pytest.fixture
    def dl_make_dataset(self):
        return lambda: Sound("first")

    def test_it(self, dl_run):
        assert dl_run.outcome == "ok"
"""


def combinations(fault: Fault) -> Iterator[Combination]:
    """Where the fault can happen."""
    kept = (True, False) if fault.persistent else (False,)
    epochs = EPOCHS if fault.later else ("first",)
    for method, workers, persistent, epoch in itertools.product(
        fault.methods, WORKERS, kept, epochs
    ):
        yield Combination(method, workers, persistent, epoch)


def session(fault: Fault, where: Combination, folder: Path, scratch: Path, mark: str) -> Result:
    """Run one session to its end, or end it as the fault asks."""
    shutil.copy(HERE / "faulty.py", folder)
    marker = "@pytest.mark.dl_complete" if where.epoch == "later" else fault.marker
    suite = _SUITE.format(
        dataset=fault.dataset,
        epoch=where.epoch,
        persistent=where.persistent,
        loader=fault.loader,
        marker=marker,
    )
    (folder / "test_fault.py").write_text(suite, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly"]
    command += [
        "-rA",
        "--tb=short",
        f"--dl-timeout={60 if fault.marker else TIMEOUTS_S[where.method]}",
    ]
    command += [f"--dl-start-methods={where.method}", f"--dl-num-workers={where.workers}"]
    command += ["--dl-report=report.json"]
    if fault.shared_memory:
        command = in_small_shared_memory(fault.shared_memory, command)
    said = folder / "said.txt"
    began = time.monotonic()
    with said.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "TMPDIR": str(scratch), _MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        if fault.signal is not None:
            _wait_for(folder / "asleep")
            process.send_signal(fault.signal)
        try:
            status: int | None = process.wait(180)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            status = None
    text = said.read_text(encoding="utf-8", errors="replace")
    result = Result(time.monotonic() - began, text)
    if status != fault.status:
        result.wrong.append(f"exit status {status}, not {fault.status}")
    return result


_SMALL = """\
mount -t tmpfs -o size="$0" tmpfs /dev/shm || exit 125
"$@"
status=$?
ls /dev/shm > left_in_shared_memory
exit $status
"""


def in_small_shared_memory(size: str, command: list[str]) -> list[str]:
    """The command with a /dev/shm of its own, of which a file then tells what was left."""
    return ["unshare", "--mount", "sh", "-c", _SMALL, size, *command]


def can_have_small_shared_memory() -> bool:
    """Whether this user may mount a /dev/shm."""
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", str(SHARED_MEMORY)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)


def judged(fault: Fault, folder: Path, result: Result) -> list[str]:
    """What is wrong with what a session said."""
    if fault.signal is not None:
        return []
    wrong = []
    if "INTERNALERROR" in result.text:
        wrong.append("an internal error")
    if not any(
        line.startswith("PASSED") and "TestFollowing::test_it" in line
        for line in result.text.splitlines()
    ):
        wrong.append("the following test did not pass")
    with contextlib.suppress(OSError, ValueError):
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        codes = {f["code"] for f in _findings(report)}
        if fault.codes and not codes & set(fault.codes):
            wrong.append(f"told {sorted(codes) or 'nothing'}, not {' or '.join(fault.codes)}")
        if not fault.codes and not fault.marker and codes:
            wrong.append(f"told {sorted(codes)}")
        if fault.shared_memory:
            left = (folder / "left_in_shared_memory").read_text(encoding="utf-8").split()
            wrong += [f"left {name} in its shared memory" for name in left]
        return wrong
    return [*wrong, "no report"]


def _findings(report: Any) -> Iterator[Any]:
    for pipeline in report["pipelines"]:
        if "TestFault" in pipeline["id"]:
            yield from (f for f in pipeline["findings"] if f["severity"] == "error")


def left_of(mark: str, patience_s: float = 3.0) -> list[str]:
    """The processes that outlive their session, which are then ended."""
    deadline = time.monotonic() + patience_s
    while True:
        left = list(_marked(mark))
        if not left or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    told = [" ".join(process.cmdline())[:100] for process in left]
    for process in left:
        process.kill()
    return told


def _marked(mark: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            alive = process.status() != psutil.STATUS_ZOMBIE
            if alive and process.environ().get(_MARK) == mark:
                yield process


def shared_memory() -> set[str]:
    """The entries in shared memory, of whoever, that a loader or we may have made."""
    if not SHARED_MEMORY.is_dir():
        return set()
    names = {path.name for path in SHARED_MEMORY.iterdir()}
    return {name for name in names if name.startswith(("torch_", "sem.mp-"))}


def survived(fault: Fault, where: Combination, baseline_s: float | None) -> Result:
    """Run one session in a folder of its own, and look at all that must hold after it."""
    mark = uuid.uuid4().hex
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    scratch = Path(tempfile.mkdtemp(prefix="fs-"))
    before = shared_memory()
    try:
        result = session(fault, where, folder, scratch, mark)
        result.wrong += judged(fault, folder, result)
        result.wrong += [f"left process {name}" for name in left_of(mark)]
        result.wrong += [f"left {path.name} in the temporary folder" for path in scratch.iterdir()]
        lasting = _lasting(shared_memory() - before)
        result.wrong += [f"left {name} in shared memory" for name in lasting]
        allowed = TIMEOUTS_S[where.method] + fault.waits_s + GRACE_S
        limit = None if baseline_s is None else baseline_s + allowed
        if limit is not None and result.seconds > limit:
            result.wrong.append(f"took {result.seconds:.1f} s, not at most {limit:.1f} s")
        return result
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(scratch, ignore_errors=True)


def _lasting(names: set[str]) -> list[str]:
    """Entries that are still there a moment later and that no process uses: others have theirs."""
    time.sleep(1.0 if names else 0)
    left = names & shared_memory()
    return sorted(left - _used(left))


def _used(names: set[str]) -> set[str]:
    """The entries in shared memory that a living process has mapped or open, by their inodes:
    a semaphore is mapped under another name than it has then."""
    inodes: dict[str, str] = {}
    for name in names:
        with contextlib.suppress(OSError):
            inodes[str((SHARED_MEMORY / name).stat().st_ino)] = name
    found: set[str] = set()
    for process in psutil.process_iter() if names else ():
        with contextlib.suppress(psutil.Error, OSError):
            lines = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
            mapped = {line.split()[4] for line in lines if f"{SHARED_MEMORY}/" in line}
            opened = {str(p.readlink()) for p in Path(f"/proc/{process.pid}/fd").iterdir()}
            found |= {name for inode, name in inodes.items() if inode in mapped}
            found |= {name for name in names if f"{SHARED_MEMORY}/{name}" in opened}
    return found | (names - set(inodes.values()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was selected; the exit status says whether all were survived."""
    options = _options(arguments)
    # A shell's background job ignores it, and so would the sessions that are to be interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tried: Counter[str] = Counter()
    lived: Counter[str] = Counter()
    baselines: dict[Combination, float] = {}
    for number, name in enumerate(options.fault):
        if FAULTS[name].shared_memory and not can_have_small_shared_memory():
            print(f"{name:22} not tried: this user may not mount a shared memory")
            continue
        found = list(combinations(FAULTS[name]))
        for where in found[number % min(options.every, len(found)) :: options.every]:
            if not _selected(where, options):
                continue
            if options.baseline and where not in baselines:
                baselines[where] = survived(FAULTS["none"], where, None).seconds
            result = survived(FAULTS[name], where, baselines.get(where))
            tried[name] += 1
            lived[name] += not result.wrong
            state = "; ".join(result.wrong) or "survived"
            print(f"{name:22} {where!s:35} {result.seconds:6.1f} s  {state}", flush=True)
            if result.wrong and options.verbose:
                print(result.text[-6000:])
    print(f"\n{'fault':22} survived / tried")
    for name in tried:
        print(f"{name:22} {lived[name]} / {tried[name]}")
    print(f"{'all':22} {lived.total()} / {tried.total()}")
    return 0 if lived == tried else 1


def _selected(where: Combination, options: argparse.Namespace) -> bool:
    return (
        where.method in options.method
        and where.workers in options.workers
        and where.epoch in options.epoch
        and where.persistent in options.persistent
    )


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--method", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--workers", nargs="+", type=int, choices=WORKERS, default=list(WORKERS))
    parser.add_argument("--epoch", nargs="+", choices=EPOCHS, default=list(EPOCHS))
    parser.add_argument(
        "--persistent", nargs="+", type=int, choices=(0, 1), default=[0, 1], help="1 yes, 0 no"
    )
    parser.add_argument(
        "--every", type=int, default=1, help="only each N-th combination of a fault"
    )
    parser.add_argument(
        "--baseline",
        action="store_true",
        help="time a sound session first and hold the seconds against it",
    )
    parser.add_argument("--verbose", action="store_true", help="show the end of what went wrong")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
