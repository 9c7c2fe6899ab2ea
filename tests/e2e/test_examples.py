"""The examples: the sound ones pass with real figures, the broken ones show what is promised."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_dataloader.checks.catalogue import BY_NAME

from .conftest import Runner, Session, needs_fork

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
BROKEN = "examples/broken_pipelines.py"

pytestmark = [
    needs_fork,
    pytest.mark.timeout(600),  # a minute and a half on a machine of its own
    pytest.mark.skipif(not EXAMPLES.is_dir(), reason="the examples are not here"),
]


@pytest.fixture(scope="module")
def examples(run: Runner) -> Session:
    options = ("examples", "-rs", "--dl-start-methods=fork,spawn", "--dl-report=report.json")
    return run({}, *options, ready_made=EXAMPLES, deadline_s=500)


def test_the_examples_pass(examples: Session) -> None:
    failed = {n: t.words for n, t in examples.tests.items() if t.outcome in ("failed", "error")}
    assert failed == {}
    assert examples.status == pytest.ExitCode.OK, examples.text


@pytest.mark.parametrize(
    ("pipeline_id", "samples"),
    [
        ("test_stdlib_corpus.py::test_conforms", 50),
        ("test_sharded_stream.py::test_conforms", 50),
        ("test_augmented_images.py::test_conforms", 20),
        ("test_hdf5_reader.py::test_conforms[hdf5]", 500),
        ("test_hdf5_reader.py::test_conforms[mapped]", 500),
    ],
)
@pytest.mark.parametrize("config", ["w0", "fork-w2", "spawn-w2"])
def test_the_rows_hold_real_figures(
    examples: Session, pipeline_id: str, samples: int, config: str
) -> None:
    assert examples.report is not None
    if pipeline_id not in [pipeline["id"] for pipeline in examples.report["pipelines"]]:
        assert f"{pipeline_id.partition('::')[0]}: needs" in examples.text
        pytest.skip("what this example reads is not installed")
    run = examples.runs(pipeline_id)[config]
    assert run["outcome"] == "ok"
    assert run["samples"] >= samples
    assert run["batches"] > 0
    assert run["batches_per_s"] > 1
    assert 0 < run["startup_s"] < 60
    assert (run["worker_unique_bytes"] or 0) > (2**20 if config != "w0" else -1)


def test_the_script_is_run_under_each_start_method(examples: Session) -> None:
    runs = examples.runs("test_stdlib_corpus.py::test_training_script_is_guarded")
    assert {method: run["exit_code"] for method, run in runs.items()} == {"fork": 0, "spawn": 0}


# The broken ones -----------------------------------------------------------------------------


def promised() -> dict[str, list[str]]:
    """What the examples' README says that each broken one shows, where such a code exists."""
    if not EXAMPLES.is_dir():
        return {}
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8").partition("## The broken ones")[2]
    found = {}
    for line in text.splitlines():
        names, _, shows = line.strip("| ").partition(" | ")
        codes = [word for word in re.findall(r"`([a-z-]+)`", shows) if word in BY_NAME]
        for name in re.findall(r"`(\w+(?:\.py)?)`", names):
            if codes:
                found[target_of(name)] = codes
    return found


def target_of(name: str) -> str:
    return f"examples/{name}" if name.endswith(".py") else f"{BROKEN}:{name}"


PROMISED = promised()


# What fork does not show; for all the rest it is the quicker one.
SPAWN_ONLY = ("unpicklable", "differs-by-start-method", "recursive-start")


def selection() -> str:
    """Picks the items that can show what is promised; all the others would take minutes."""
    wanted = {
        (
            target.rpartition("/")[2].rpartition(":")[2],
            BY_NAME[code].family.split()[0],
            "spawn" if code in SPAWN_ONLY else "fork",
        )
        for target, codes in PROMISED.items()
        for code in codes
    }
    return " or ".join(f"({' and '.join(words)})" for words in sorted(wanted))


@pytest.fixture(scope="module")
def broken(run: Runner) -> Session:
    return run(
        {},
        *(f"--dl-check={target}" for target in PROMISED),
        f"-k={selection()}",
        "--dl-num-workers=2",
        "--dl-seeds=0",
        "--dl-timeout=10",
        "--dl-report=report.json",
        ready_made=EXAMPLES,
        deadline_s=500,
    )


def test_every_broken_example_is_promised_a_code() -> None:
    source = (EXAMPLES / "broken_pipelines.py").read_text(encoding="utf-8")
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for name in re.findall(r"^def (make_\w+)", source, re.MULTILINE):
        assert f"`{name}`" in readme


@pytest.mark.parametrize("target", PROMISED)
def test_a_broken_example_shows_what_is_promised(broken: Session, target: str) -> None:
    findings = broken.findings(f"check:{target}")
    assert set(PROMISED[target]) <= set(findings), broken.text
    for code in PROMISED[target]:
        assert findings[code]["severity"] == "error"


@pytest.mark.parametrize(
    ("name", "code", "culprit"),
    [
        ("make_lambda", "unpicklable", "dataset.transform.steps[1]"),
        ("make_lambda_collate", "unpicklable", "loader.collate_fn"),
        ("make_open_file", "unpicklable", "dataset.file"),
        ("make_unsendable_batch", "unsendable-batch", "batch['undo']"),
    ],
)
def test_the_culprit_is_named(broken: Session, name: str, code: str, culprit: str) -> None:
    findings = broken.pipeline(f"check:{target_of(name)}")["findings"]
    assert (code, culprit) in {(f["code"], f["culprit"]) for f in findings}


def test_the_broken_script_names_its_line(broken: Session) -> None:
    source = (EXAMPLES / "broken_script.py").read_text(encoding="utf-8")
    line = next(n for n, text in enumerate(source.splitlines(), 1) if text.startswith("for batch"))
    finding = broken.findings("check:examples/broken_script.py")["recursive-start"]
    assert finding["culprit"] == f"examples/broken_script.py:{line}"


def test_nothing_is_left(broken: Session) -> None:
    assert broken.left_processes == ()
    assert "INTERNALERROR" not in broken.text
