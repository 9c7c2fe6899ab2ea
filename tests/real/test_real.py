"""What people really use: sound pipelines of many libraries come out clean, faulty ones do not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
METHODS = ("fork", "spawn", "forkserver") if sys.platform == "linux" else ("spawn",)
CONFIGURATIONS = {(None, 0), *((method, 2) for method in METHODS)}
DEADLINE_S = 1500

# the first test of each kind waits for the session that the others share
pytestmark = pytest.mark.timeout(DEADLINE_S + 60)

# each target with the library that it needs, and the samples of an epoch
SOUND = {
    "torch_own.py:make_tensors": ("torch", 24),
    "torch_own.py:make_subset": ("torch", 12),
    "torch_own.py:make_concatenated": ("torch", 36),
    "torch_own.py:make_stacked": ("torch", 24),
    "torch_own.py:make_split": ("torch", 18),
    "torch_own.py:make_weighted": ("torch", 24),
    "stateful_loader.py:make_stateful": ("torchdata", 24),
    "hugging_face.py:make_map_style": ("datasets", 24),
    "hugging_face.py:make_streaming": ("datasets", 24),
    "hugging_face.py:make_shuffled_stream": ("datasets", 24),
    "tar_shards.py:make_shards": ("webdataset", 24),
    "hdf5_file.py:make_hdf5": ("h5py", 24),
    "lightning_db.py:make_lmdb": ("lmdb", 24),
    "sklearn_digits.py:make_digits": ("sklearn", 64),
    "pillow_images.py:make_images": ("PIL", 24),
    "pillow_images.py:make_pixels": ("PIL", 24),
    "pandas_frame.py:make_frame": ("pandas", 24),
    "arrow_rows.py:make_table": ("pyarrow", 24),
    "arrow_rows.py:make_mapped": ("pyarrow", 24),
}

# each target with the library that it needs, and the findings that it must have
FAULTY = {
    "hdf5_open.py:make_hdf5": (
        "h5py",
        {"unpicklable": "dataset.file", "fork-unsafe-handle": "dataset.file"},
    ),
    "hdf5_open.py:make_hdf5_part": (
        "h5py",
        {
            "unpicklable": "dataset.parts['images']",
            "fork-unsafe-handle": "dataset.parts['images']",
        },
    ),
    "lightning_db_open.py:make_lmdb": (
        "lmdb",
        {"unpicklable": "dataset.environment", "fork-unsafe-handle": "dataset.environment"},
    ),
    "standard_library.py:make_archive": (
        "torch",
        {"unpicklable": "dataset.archive", "fork-unsafe-handle": "dataset.archive"},
    ),
    "standard_library.py:make_rows": (
        "torch",
        {"unpicklable": "dataset.connection", "fork-unsafe-handle": "dataset.connection"},
    ),
    "hugging_face_lambda.py:make_transformed": (
        "datasets",
        {"unpicklable": "dataset._format_kwargs['transform']"},
    ),
    "hugging_face_lambda.py:make_mapped": (
        "datasets",
        {"unpicklable": "dataset._ex_iterable.function"},
    ),
    "tar_shards_faults.py:make_unsplit": (
        "webdataset",
        {"duplicated-samples": "dataset.__iter__", "depends-on-num-workers": "batch[0]"},
    ),
    "tar_shards_faults.py:make_lambda": (
        "webdataset",
        {"unpicklable": "dataset.pipeline[9].args[0]"},
    ),
    "heavy_frame.py:make_frame": (
        "pandas",
        {
            "heavy-pickle": "dataset.dataset.frame",
            "copied-per-worker": "dataset.dataset.frame",
        },
    ),
    "arrow_open.py:make_reader": ("pyarrow", {"unpicklable": "dataset.reader"}),
}
ONLY_FORK = {"fork-unsafe-handle"}
ALL_METHODS = {"duplicated-samples", "depends-on-num-workers"}

Pipelines = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def sound(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pipelines:
    """The sound pipelines in the report of one session."""
    targets = _selected(request, SOUND, test_a_sound_pipeline_is_clean)
    return _checked(HERE / "sound", targets, tmp_path_factory.mktemp("sound"))


@pytest.fixture(scope="module")
def faulty(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pipelines:
    """The faulty pipelines in the report of one session."""
    targets = _selected(request, FAULTY, test_a_faulty_pipeline_is_told)
    return _checked(HERE / "faulty", targets, tmp_path_factory.mktemp("faulty"))


def _selected(
    request: pytest.FixtureRequest, listed: dict[str, tuple[str, Any]], test: Any
) -> list[str]:
    """Those targets whose tests are selected, and whose library is there."""
    items = [i for i in request.session.items if getattr(i, "function", None) is test]
    names = {item.callspec.params["target"] for item in items}  # type: ignore[attr-defined]
    return [t for t, (library, _) in listed.items() if t in names and find_spec(library)]


def _checked(where: Path, targets: list[str], folder: Path) -> Pipelines:
    if not targets:
        return {}
    (folder / "pytest.ini").write_text(
        f"[pytest]\npythonpath = {HERE} {HERE / 'sound'}\n", encoding="utf-8"
    )
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "no:cacheprovider"]
    command += ["-p", "no:randomly", "--dl-report=report.json", "--dl-num-workers=0,2"]
    command += [f"--dl-start-methods={','.join(METHODS)}", "--dl-seeds=0"]
    command += [f"--dl-check={where / target}" for target in targets]
    kept = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    done = subprocess.run(
        command,
        check=False,
        cwd=folder,
        env=kept,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED), done.stdout
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return {p["id"].removeprefix(f"check:{where}{os.sep}"): p for p in report["pipelines"]}


@pytest.mark.parametrize("target", SOUND)
def test_a_sound_pipeline_is_clean(target: str, sound: Pipelines) -> None:
    library, samples = SOUND[target]
    pytest.importorskip(library)
    pipeline = sound[target]

    passes = [run for run in pipeline["runs"] if run["purpose"] == "content"]

    assert [f for f in pipeline["findings"] if f["severity"] != "info"] == []
    assert {run["outcome"] for run in pipeline["runs"]} == {"ok"}, pipeline["runs"]
    assert {(run["start_method"], run["num_workers"]) for run in passes} == CONFIGURATIONS
    assert {run["samples"] for run in passes} == {samples, 3 * samples}  # one epoch, and three
    assert [run["not_compared"] for run in passes if run["not_compared"]] == []


@pytest.mark.parametrize("target", FAULTY)
def test_a_faulty_pipeline_is_told(target: str, faulty: Pipelines) -> None:
    library, culprits = FAULTY[target]
    pytest.importorskip(library)
    expected = {
        code: (culprit, methods) for code, culprit in culprits.items() if (methods := _where(code))
    }

    found = {
        f["code"]: (f["culprit"], {c["start_method"] for c in f["configurations"]})
        for f in faulty[target]["findings"]
        # under fork it is told of each that forkserver will refuse it
        if f["code"] != "will-break-on-forkserver"
        and (f["severity"] != "info" or f["code"] in culprits)
    }

    assert found == expected


def _where(code: str) -> set[str]:
    """The start methods, of those that are run, under which a code must be found."""
    if code in ALL_METHODS:
        return set(METHODS)
    return {method for method in METHODS if (method == "fork") == (code in ONLY_FORK)}
