"""Pipelines: rebuilt for a configuration, from what a user gives in one of several ways."""

from __future__ import annotations

import multiprocessing
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler

from pytest_dataloader.matrix import LoaderConfig
from pytest_dataloader.pipeline import (
    Pipeline,
    PipelineError,
    Script,
    Target,
    TargetError,
    fit_kwargs,
    importable_name,
    parse_target,
    pipeline_of,
    resolve,
)

W0 = LoaderConfig(None, 0)
SPAWN2 = LoaderConfig("spawn", 2)
SPAWN = multiprocessing.get_context("spawn")


class Numbers(Dataset[int]):
    def __init__(self, count: int = 6) -> None:
        self.count = count
        self.touched = 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        self.touched += 1
        return index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class Locked(Numbers):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class OwnLoader(DataLoader[Any]):
    made = 0

    def __init__(self) -> None:
        OwnLoader.made += 1
        super().__init__(Numbers(), batch_size=3)


class DataModule:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def prepare_data(self) -> None:
        self.calls.append("prepare_data")

    def setup(self, stage: str) -> None:
        self.calls.append(f"setup {stage}")

    def train_dataloader(self) -> DataLoader[Any]:
        assert self.calls == ["prepare_data", "setup fit"]
        return DataLoader(Numbers(), batch_size=2)


def batches(loader: DataLoader[Any]) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


def make_loader() -> DataLoader[Any]:
    return DataLoader(Numbers(), batch_size=4)


def make_numbers() -> Numbers:
    return Numbers()


def make_module() -> DataModule:
    return DataModule()


def make_nothing() -> None:
    return None


# The loader's arguments ----------------------------------------------------------------------


def test_what_needs_workers_is_left_out_without_them() -> None:
    given = {
        "batch_size": 2,
        "persistent_workers": True,
        "prefetch_factor": 4,
        "multiprocessing_context": "fork",
        "timeout": 5,
    }

    kwargs, notes = fit_kwargs(given, W0)

    assert kwargs == {"batch_size": 2, "num_workers": 0}
    assert notes == (
        "persistent_workers is left out: there are no workers",
        "prefetch_factor is left out: there are no workers",
        "multiprocessing_context is left out: there are no workers",
        "timeout is left out: there are no workers",
    )


def test_what_is_not_set_is_not_said_to_be_left_out() -> None:
    kwargs, notes = fit_kwargs({"persistent_workers": False, "timeout": 0}, W0)

    assert (kwargs, notes) == ({"num_workers": 0}, ())


@pytest.mark.parametrize("pinned", ["fork", multiprocessing.get_context("spawn")])
def test_a_pinned_context_is_replaced(pinned: Any) -> None:
    name = pinned if isinstance(pinned, str) else "spawn"

    kwargs, notes = fit_kwargs(
        {"multiprocessing_context": pinned, "timeout": 5}, LoaderConfig("forkserver", 2)
    )

    assert kwargs == {"num_workers": 2, "timeout": 5}
    assert notes == (f"multiprocessing_context={name!r} is replaced by the matrix's 'forkserver'",)


def test_the_configuration_wins_over_the_users_arguments() -> None:
    given = {"num_workers": 9, "prefetch_factor": 9, "pin_memory": False, "dataset": "ignored"}

    kwargs, notes = fit_kwargs(given, LoaderConfig("spawn", 2, True, 4, True))

    assert kwargs == {
        "num_workers": 2,
        "prefetch_factor": 4,
        "pin_memory": True,
        "persistent_workers": True,
    }
    assert notes == ()


# Ways to give a pipeline ---------------------------------------------------------------------


def test_a_dataset_and_arguments() -> None:
    dataset = Numbers()
    pipeline = Pipeline("t", dataset=dataset, loader_kwargs={"batch_size": 4})

    built = pipeline.build(SPAWN2, SPAWN)

    assert built.loader.dataset is dataset
    assert built.loader.num_workers == 2
    assert built.loader.multiprocessing_context is SPAWN
    assert not built.fresh
    assert not pipeline.rebuilds
    assert batches(pipeline.build(W0, None).loader) == [[0, 1, 2, 3], [4, 5]]


def test_a_run_in_this_process_can_leave_the_dataset_as_it_was() -> None:
    dataset = Numbers()
    built = Pipeline("t", dataset=dataset).build(W0, None, keep=False)

    assert built.fresh
    assert len(batches(built.loader)) == 6
    assert dataset.touched == 0


def test_what_cannot_be_copied_is_used_itself() -> None:
    dataset = Locked()
    built = Pipeline("t", dataset=dataset).build(W0, None, keep=False)

    assert built.loader.dataset is dataset
    assert not built.fresh


def test_a_dataset_is_made_for_each_run() -> None:
    pipeline = Pipeline("t", make_dataset=Numbers, loader_kwargs={"batch_size": 6})
    first, second = pipeline.build(W0, None), pipeline.build(W0, None)

    assert pipeline.rebuilds
    assert first.fresh
    assert first.loader.dataset is not second.loader.dataset


@pytest.mark.parametrize(
    "kwargs",
    [
        lambda num_workers: {"batch_size": 10 + num_workers},
        lambda workers: {"batch_size": 10 + workers},
        lambda *, num_workers=5: {"batch_size": 10 + num_workers},
    ],
    ids=["by name", "as the only argument", "by keyword"],
)
def test_the_arguments_may_depend_on_the_number_of_workers(kwargs: Any) -> None:
    pipeline = Pipeline("t", dataset=Numbers(), loader_kwargs=kwargs)

    assert pipeline.build(SPAWN2, SPAWN).loader.batch_size == 12


@pytest.mark.parametrize(
    "kwargs", [lambda: {"batch_size": 3}, lambda size=3: {"batch_size": size}, {"batch_size": 3}]
)
def test_the_arguments_need_not_depend_on_anything(kwargs: Any) -> None:
    pipeline = Pipeline("t", dataset=Numbers(), loader_kwargs=kwargs)

    assert pipeline.build(W0, None).loader.batch_size == 3


def test_a_loader_is_remade_without_its_constructor() -> None:
    source = OwnLoader()
    made = OwnLoader.made

    built = Pipeline("t", loader=source).build(LoaderConfig("spawn", 2, True, 5), SPAWN)

    assert OwnLoader.made == made
    assert type(built.loader) is OwnLoader
    assert built.loader.dataset is source.dataset
    assert (built.loader.num_workers, source.num_workers) == (2, 0)
    assert built.loader.persistent_workers is True
    assert built.loader.prefetch_factor == 5
    assert built.loader.multiprocessing_context is SPAWN
    assert source.multiprocessing_context is None
    assert built.notes == ()


def test_a_loader_with_workers_is_remade_without() -> None:
    source = DataLoader(
        Numbers(),
        num_workers=2,
        persistent_workers=True,
        prefetch_factor=3,
        timeout=7,
        multiprocessing_context="spawn",
    )

    built = Pipeline("t", loader=source).build(W0, None)

    assert built.loader.num_workers == 0
    assert built.loader.prefetch_factor is None
    assert built.loader.persistent_workers is False
    assert built.loader.timeout == 0
    assert built.loader.multiprocessing_context is None
    assert built.notes == (
        "persistent_workers is left out: there are no workers",
        "multiprocessing_context is left out: there are no workers",
        "timeout is left out: there are no workers",
    )
    assert batches(built.loader) == [[0], [1], [2], [3], [4], [5]]


def test_a_loader_keeps_its_own_arguments_where_the_matrix_says_nothing() -> None:
    source = DataLoader(Numbers(), num_workers=1, prefetch_factor=3, timeout=7)

    built = Pipeline("t", loader=source).build(SPAWN2, SPAWN)

    assert (built.loader.num_workers, built.loader.prefetch_factor) == (2, 3)
    assert built.loader.timeout == 7


def test_a_loader_run_in_this_process_leaves_its_dataset_as_it_was() -> None:
    source = DataLoader(Numbers())
    built = Pipeline("t", loader=source).build(W0, None, keep=False)

    assert len(batches(built.loader)) == 6
    assert built.fresh
    assert source.dataset.touched == 0


def test_a_loader_is_made_for_each_run() -> None:
    pipeline = Pipeline("t", make_loader=make_loader)
    built = pipeline.build(SPAWN2, SPAWN)

    assert pipeline.rebuilds
    assert built.fresh
    assert (built.loader.num_workers, built.loader.batch_size) == (2, 4)


@pytest.mark.parametrize("way", ["argument", "sampler", "batch sampler", "loader"])
def test_a_generator_starts_each_run_alike(way: str) -> None:
    generator = torch.Generator().manual_seed(3)
    dataset = Numbers(20)
    sampler = RandomSampler(dataset, generator=generator)
    kwargs: dict[str, Any] = {
        "argument": {"shuffle": True, "generator": generator},
        "sampler": {"sampler": sampler},
        "batch sampler": {"batch_sampler": torch.utils.data.BatchSampler(sampler, 4, False)},
        "loader": {"shuffle": True, "generator": generator},
    }[way]
    if way == "loader":
        pipeline = Pipeline("t", loader=DataLoader(dataset, **kwargs))
    else:
        pipeline = Pipeline("t", dataset=dataset, loader_kwargs=kwargs)

    loader = pipeline.build(W0, None).loader
    first, next_epoch = batches(loader), batches(loader)
    again = batches(pipeline.build(W0, None).loader)

    assert first == again
    assert first != next_epoch


def test_pipelines_are_the_same_by_their_key() -> None:
    assert Pipeline("t", dataset=1).key == "t"
    assert Pipeline("t", dataset=1, key=("a", 2)).key == ("a", 2)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"dataset": DataLoader(Numbers())},
            "t: expected a Dataset, got a DataLoader; give it as dl_source_loader",
        ),
        (
            {"make_dataset": make_nothing},
            "t: expected a Dataset (with __getitem__ or __iter__), got NoneType",
        ),
        (
            {"make_loader": Numbers},
            "t: expected a DataLoader or a callable that returns one, got Numbers",
        ),
        (
            {"dataset": Numbers(), "loader_kwargs": 4},
            "t: the loader's arguments must be a dict such as {'batch_size': 4}; got int",
        ),
        (
            {"dataset": Numbers(), "loader_kwargs": list},
            "t: the loader's arguments must be a dict such as {'batch_size': 4}; got list",
        ),
    ],
)
def test_what_is_no_pipeline_is_refused(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(PipelineError) as caught:
        Pipeline("t", **parts).build(W0, None)

    assert str(caught.value) == message


# What a target may be ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "fresh"),
    [
        (Numbers(), False),
        (Numbers, True),
        ([0, 1, 2, 3, 4, 5], False),
        (DataLoader(Numbers()), False),
        (OwnLoader, True),
        (make_loader, True),
        (make_numbers, True),
        (make_module, True),
        (lambda num_workers: DataLoader(Numbers(), batch_size=num_workers + 1), True),
        (DataModule, True),
        (DataModule(), True),
    ],
)
def test_values_that_are_pipelines(value: Any, fresh: bool) -> None:
    built = pipeline_of(value, "m:a").build(W0, None)

    assert [n for batch in batches(built.loader) for n in batch] == [0, 1, 2, 3, 4, 5]
    assert built.fresh is fresh
    assert built.loader.num_workers == 0


def test_an_iterable_dataset_is_a_pipeline() -> None:
    assert batches(pipeline_of(Stream(), "m:a").build(W0, None).loader) == [[0], [1], [2]]


def test_a_pipeline_is_named_after_its_text_or_value() -> None:
    assert pipeline_of(Numbers(), "m:a").id == "check:m:a"
    assert pipeline_of(Numbers()).id == "check:Numbers"
    assert pipeline_of(make_loader).id == "check:make_loader"


def test_the_arguments_of_a_target_are_used() -> None:
    for value in (Numbers(), Numbers, make_numbers):
        built = pipeline_of(value, "m:a", {"batch_size": 3}).build(W0, None)
        assert built.loader.batch_size == 3


def test_a_value_that_is_no_pipeline_is_refused() -> None:
    with pytest.raises(TargetError) as caught:
        pipeline_of(3, "m:a")

    assert str(caught.value) == (
        "m:a: expected a Dataset or DataLoader, a class of one, a callable that returns one, or a "
        "LightningDataModule; got int"
    )


# Targets -------------------------------------------------------------------------------------

names = st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True)
dotted = st.lists(names, min_size=1, max_size=3).map(".".join)


@given(dotted.filter(lambda m: not m.endswith(".py")), dotted)
def test_a_module_and_an_attribute(module: str, attribute: str) -> None:
    text = f"{module}:{attribute}"
    if not text.endswith(".py"):
        assert parse_target(text) == Target(text, module, None, attribute)


@given(st.lists(names, min_size=1, max_size=3).map("/".join), dotted)
def test_a_file_and_an_attribute(stem: str, attribute: str) -> None:
    text = f"{stem}.py:{attribute}"
    if not text.endswith(".py"):
        assert parse_target(text) == Target(text, None, Path(f"{stem}.py"), attribute)


@pytest.mark.parametrize("text", ["train.py", "a/b.py", "C:\\code\\train.py", "/tmp/a:b.py"])
def test_a_script(text: str) -> None:
    assert parse_target(text) == Target(text, None, Path(text), None)


def test_a_file_on_a_drive() -> None:
    text = "C:\\code\\data.py:train"

    assert parse_target(text) == Target(text, None, Path("C:\\code\\data.py"), "train")


@pytest.mark.parametrize("text", ["", "package", "package:", ":attr", ":"])
def test_what_is_no_target_is_refused(text: str) -> None:
    with pytest.raises(TargetError) as caught:
        parse_target(text)

    assert str(caught.value) == (
        f"{text!r} is no target; expected package.module:attr, path/to/file.py:attr "
        "or path/to/script.py"
    )


@pytest.fixture
def module_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Path]:
    """A module of its own name with a dataset, loader arguments and a holder of more."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "module_for_targets.py"
    file.write_text(
        "train = [1, 2, 3]\n"
        "class Holder:\n"
        "    valid = [4, 5]\n"
        "def make_loader_kwargs():\n"
        "    return {'batch_size': 2}\n",
        encoding="utf-8",
    )
    yield file
    sys.modules.pop("module_for_targets", None)


def test_a_file_is_imported_under_its_own_name(module_file: Path) -> None:
    pipeline = resolve(parse_target(f"{module_file}:train"))

    assert isinstance(pipeline, Pipeline)
    assert pipeline.id == f"check:{module_file}:train"
    assert pipeline.target == parse_target(f"{module_file}:train")
    assert batches(pipeline.build(W0, None).loader) == [[1, 2], [3]]
    assert sys.modules["module_for_targets"].__file__ == str(module_file)


def test_a_module_is_imported_from_the_working_directory(module_file: Path) -> None:
    pipeline = resolve(parse_target("module_for_targets:Holder.valid"))

    assert isinstance(pipeline, Pipeline)
    assert batches(pipeline.build(W0, None).loader) == [[4, 5]]


def test_a_script_is_not_imported(module_file: Path) -> None:
    script = resolve(parse_target(str(module_file)))

    assert script == Script(f"check:{module_file}", str(module_file))
    assert script.key == str(module_file)
    assert "module_for_targets" not in sys.modules


def error_of(text: str) -> str:
    with pytest.raises(TargetError) as caught:
        resolve(parse_target(text))
    return str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "none.py"

    assert error_of(f"{file}:train") == f"{file}:train: there is no file {file}"


def test_a_missing_attribute_is_named_with_those_there_are(module_file: Path) -> None:
    assert error_of("module_for_targets:test") == (
        "module_for_targets:test: module_for_targets has no attribute 'test'; "
        "it defines: train, Holder, make_loader_kwargs"
    )
    assert error_of("module_for_targets:Holder.test") == (
        "module_for_targets:Holder.test: module_for_targets.Holder has no attribute 'test'; "
        "it defines: valid"
    )
    assert error_of("module_for_targets:train.test") == (
        "module_for_targets:train.test: module_for_targets.train has no attribute 'test'; "
        "it defines: none"
    )


def test_a_module_that_is_not_there_is_said(module_file: Path) -> None:
    assert error_of("no_such_module:a") == (
        "no_such_module:a: importing 'no_such_module' raised ModuleNotFoundError: "
        "No module named 'no_such_module'"
    )


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("raise ValueError('broken')", "ValueError: broken"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import pytest; pytest.skip('no data', allow_module_level=True)", "Skipped: no data"),
    ],
)
def test_a_module_that_does_not_import_is_said(module_file: Path, line: str, error: str) -> None:
    module_file.write_text(line, encoding="utf-8")

    assert error_of("module_for_targets:a") == (
        f"module_for_targets:a: importing 'module_for_targets' raised {error}"
    )


def test_a_value_that_cannot_be_looked_at_is_said(module_file: Path) -> None:
    module_file.write_text(
        "class Lazy:\n"
        "    def __getattr__(self, name):\n"
        "        raise KeyError(name)\n"
        "lazy = Lazy()\n",
        encoding="utf-8",
    )

    assert error_of("module_for_targets:lazy") == (
        "module_for_targets:lazy: looking at it raised KeyError: 'train_dataloader'"
    )


def test_a_file_that_another_one_hides_is_refused(module_file: Path) -> None:
    hidden = module_file.parent / "hidden" / "module_for_targets.py"
    hidden.parent.mkdir()
    hidden.write_text("train = [4]\n", encoding="utf-8")
    sys.path[:0] = [str(module_file.parent), str(hidden.parent)]

    assert error_of(f"{hidden}:train") == (
        f"{hidden}:train: what sys.path gives first for 'module_for_targets' is {module_file}; "
        "rename one of the two"
    )


def test_a_file_whose_name_is_taken_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "json.py"
    file.write_text("a = [1]\n", encoding="utf-8")

    assert error_of(f"{file}:a") == (
        f"{file}:a: a module named 'json' is already imported from "
        f"{sys.modules['json'].__file__}; rename one of the two"
    )
    assert str(tmp_path.resolve()) not in sys.path


def test_a_file_in_a_package_is_known_by_its_dotted_name(tmp_path: Path) -> None:
    folder = tmp_path / "outer" / "inner"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent):
        (package / "__init__.py").touch()
    (folder / "data.py").touch()

    assert importable_name(folder / "data.py") == ("outer.inner.data", str(tmp_path.resolve()))
