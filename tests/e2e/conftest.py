"""Runs pytest in a process of its own and keeps what it said, wrote and left behind."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import psutil
import pytest

PARTS = Path(__file__).with_name("parts.py")

needs_fork = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(),
    reason="tells what happens under fork; test_windows.py stands for platforms without it",
)

_MARK = "E2E_SESSION"
_COLUMNS = 100
_DROPPED = {"CI", "BUILD_NUMBER", "PY_COLORS", "FORCE_COLOR", "NO_COLOR"}
# Without bytecode each session and each of its workers would compile this package again.
_DROPPED |= {"PYTHONDONTWRITEBYTECODE"}


@dataclass(frozen=True)
class Outcome:
    """One test of a session: passed, failed, error, skipped or xfailed, and what it said."""

    outcome: str
    words: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Session:
    """One pytest session.

    ``tests`` go by ``name[ids]``, after their class's or target's name and a space if there is one.
    """

    status: int
    text: str
    seconds: float
    folder: Path
    tests: Mapping[str, Outcome]
    report: dict[str, Any] | None
    left_processes: tuple[str, ...]
    left_files: tuple[str, ...]
    left_memory: frozenset[str]

    @property
    def words(self) -> str:
        """The terminal's text on one line: sentences in it are not wrapped."""
        return one_line(self.text)

    @property
    def section(self) -> list[str]:
        """The lines of the dataloader section; none if it was not printed."""
        lines = self.text.splitlines()
        heads = [i for i, line in enumerate(lines) if line.strip("= ") == "dataloader report"]
        if not heads:
            return []
        body = lines[heads[0] + 1 :]
        ends = [i for i, line in enumerate(body) if line.startswith("==")]
        return body[: ends[0]] if ends else body

    @property
    def outcomes(self) -> dict[str, str]:
        """The outcome of each test."""
        return {name: test.outcome for name, test in self.tests.items()}

    def pipeline(self, pipeline_id: str) -> dict[str, Any]:
        """One pipeline of the JSON report."""
        assert self.report is not None, self.text
        return next(p for p in self.report["pipelines"] if p["id"] == pipeline_id)

    def runs(self, pipeline_id: str) -> dict[str, dict[str, Any]]:
        """The first run of each configuration of one pipeline."""
        runs: dict[str, dict[str, Any]] = {}
        for run in self.pipeline(pipeline_id)["runs"]:
            runs.setdefault(configuration(run), run)
        return runs

    def findings(self, pipeline_id: str) -> dict[str, dict[str, Any]]:
        """The findings of one pipeline by their codes."""
        return {f["code"]: f for f in self.pipeline(pipeline_id)["findings"]}


def configuration(config: Mapping[str, Any]) -> str:
    """``w0`` or ``fork-w2``."""
    method, workers = config["start_method"], config["num_workers"]
    parts = [method] if method else []
    return "-".join([*parts, *([] if workers is None else [f"w{workers}"])])


def one_line(text: str) -> str:
    return " ".join(text.split())


def line_of(source: str, words: str) -> int:
    """The number of the line of ``source`` that holds ``words``."""
    return next(n for n, line in enumerate(source.splitlines(), 1) if words in line)


class Runner:
    """Starts sessions, each in a folder of its own with `parts` beside its files."""

    def __init__(self, folder_of: Callable[[str], Path]) -> None:
        self._folder_of = folder_of

    def __call__(
        self,
        files: Mapping[str, str],
        *options: str,
        ini: str = "",
        deadline_s: float = 120,
        ready_made: Path | None = None,
        **environment: str,
    ) -> Session:
        folder = self._folder_of("suite")
        for name, source in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(source), encoding="utf-8")
        shutil.copy(PARTS, folder)
        if ready_made is not None:
            shutil.copytree(ready_made, folder / ready_made.name)
        (folder / "pytest.ini").write_text("[pytest]\n" + textwrap.dedent(ini), encoding="utf-8")
        return self._run(folder, options, environment, deadline_s)

    def _run(
        self, folder: Path, options: tuple[str, ...], more: Mapping[str, str], deadline_s: float
    ) -> Session:
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly"]
        command += ["--junitxml=tests.xml", *options]
        mark = uuid.uuid4().hex
        # short, because the paths of sockets lie in it
        scratch = Path(tempfile.mkdtemp(prefix="dl-"))
        memory = shared_memory()
        began = time.monotonic()
        try:
            status, text = _finish(
                command, folder, _environment(mark, scratch) | dict(more), deadline_s
            )
            seconds = time.monotonic() - began
            left = _still_there(mark)
            files = tuple(sorted(path.name for path in scratch.iterdir()))
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return Session(
            status,
            text,
            seconds,
            folder,
            _tests(folder),
            _report(folder),
            left,
            files,
            shared_memory() - memory,
        )


def shared_memory() -> frozenset[str]:
    """The names in shared memory, of whoever; none where there is no such folder."""
    folder = Path("/dev/shm")
    return frozenset(path.name for path in folder.iterdir()) if folder.is_dir() else frozenset()


def _environment(mark: str, scratch: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in _DROPPED and "PYTEST" not in k}
    scratches = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))
    return kept | scratches | {_MARK: mark, "COLUMNS": str(_COLUMNS)}


def _finish(
    command: list[str], folder: Path, environment: dict[str, str], deadline_s: float
) -> tuple[int, str]:
    """Run to the end; what it says goes to a file, which no forgotten child can keep open."""
    said = folder / "said.txt"
    with said.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        try:
            status = process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            for one in _marked(environment[_MARK]):
                one.kill()
            process.wait()
            text = said.read_text(encoding="utf-8", errors="replace")
            pytest.fail(f"no end within {deadline_s:g} s: {command}\n{text}", pytrace=False)
    return status, said.read_text(encoding="utf-8", errors="replace")


def _marked(mark: str) -> Iterator[psutil.Process]:
    """The living processes that descend from a session, whoever their parent is by now."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(_MARK) == mark:
                yield process


def _still_there(mark: str, patience_s: float = 3.0) -> tuple[str, ...]:
    """The processes that outlive their session; Python's resource tracker gets time to leave."""
    deadline = time.monotonic() + patience_s
    while True:
        left = [p for p in _marked(mark) if p.status() != psutil.STATUS_ZOMBIE]
        if not left or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    names = tuple(" ".join(process.cmdline()) for process in left)
    for process in left:
        process.kill()
    return names


def _tests(folder: Path) -> dict[str, Outcome]:
    path = folder / "tests.xml"
    if not path.is_file():
        return {}
    found = {}
    for case in ET.parse(path).iter("testcase"):
        name, owner = case.get("name", ""), case.get("classname", "")
        last = owner.rpartition(".")[2]
        if owner.startswith("check:"):
            name = f"{owner} {name}"
        elif last.startswith("Test"):
            name = f"{last} {name}"
        found[name] = _outcome(case)
    return found


def _outcome(case: ET.Element) -> Outcome:
    seconds = float(case.get("time", "0"))
    for child in case:
        if child.tag == "skipped":
            kind = "xfailed" if child.get("type") == "pytest.xfail" else "skipped"
            return Outcome(kind, child.get("message", ""), seconds)
        if child.tag in ("failure", "error"):
            kind = "failed" if child.tag == "failure" else "error"
            return Outcome(kind, child.text or "", seconds)
    return Outcome("passed", "", seconds)


def _report(folder: Path) -> dict[str, Any] | None:
    path = folder / "report.json"
    if not path.is_file():
        return None
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return report


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """Runs a session: its files by name, then its options."""
    return Runner(tmp_path_factory.mktemp)


SOUND = """
    import pytest
    from parts import Numbers


    @pytest.fixture
    def dl_make_dataset():
        return Numbers


    @pytest.fixture
    def dl_loader_kwargs():
        return {"batch_size": 4, "timeout": 60}


    def test_config(dl_config):
        assert dl_config.id in ("w0", "fork-w2", "spawn-w2")


    def test_run(dl_config, dl_run):
        assert dl_run.config == dl_config
        assert (dl_run.outcome, dl_run.samples, dl_run.batches) == ("ok", 16, 4)


    @pytest.mark.dl_conforms
    def test_conforms():
        pass


    @pytest.mark.dl_matrix(["fork"], [0, 1], persistent_workers=[True, False], prefetch_factor=3)
    def test_axes(dl_config, dl_loader):
        assert dl_loader.num_workers == dl_config.num_workers
        assert dl_loader.persistent_workers == bool(dl_config.persistent_workers)
        assert dl_loader.prefetch_factor == dl_config.prefetch_factor


    @pytest.mark.skip(reason="not today")
    def test_skipped(dl_run):
        pass


    def test_none_of_ours():
        pass
    """


@pytest.fixture(scope="session")
def sound(run: Runner) -> Session:
    """A sound pipeline under the default matrix."""
    return run({"test_sound.py": SOUND}, "-v", "--dl-report=report.json")
