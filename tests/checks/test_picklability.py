"""Picklability: what is said of what cannot travel, cannot be rebuilt, or is too heavy."""

from __future__ import annotations

import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest
from by_hand import FORK, SPAWN, W0, batch, epoch, error, judged, other_in_worker, question, run

from pytest_dataloader.checks import picklability
from pytest_dataloader.checks.asked import Picklable
from pytest_dataloader.checks.finding import ERROR, INFO, WARNING, Finding
from pytest_dataloader.observe.facts import (
    DIED,
    HUNG,
    RAISED,
    RunRequest,
    UnpicklableFacts,
    WorkerFacts,
)

MIB = 1024 * 1024

TO_THE_TOP_LEVEL = (
    "Move the function to the top level of a module, or use functools.partial on one that is "
    "there. Open a file or a connection on first use inside the worker, and leave it out of the "
    "pickle in __getstate__."
)
GIVE_SETSTATE_EVERYTHING = (
    "Raise AttributeError from __getattr__ for names that start with an underscore, before any "
    "attribute is read. Keep code in modules that a new interpreter finds through sys.path, and "
    "give __setstate__ everything it needs in the state."
)
INTO_A_MODULE = (
    "Move the definition into a module of its own and import it, or at least above the guard of "
    "the script."
)
HOLD_ONE_TENSOR = (
    "Hold the records in one tensor (numbers, or text as bytes with offsets), or hold only a path "
    "and open the data on first use in the worker. persistent_workers=True pays the price once "
    "instead of in every epoch."
)

COPY_THE_DICT = (
    "Start __getstate__ from a copy of __dict__ and take out only what cannot travel. Compare the "
    "state before and after a round trip in a test."
)
HOLD_TENSORS = "Hold the data in tensors, or hold a path and open a memory map in the worker."

LAMBDA = UnpicklableFacts(
    path="dataset.clean",
    kind="a lambda",
    error="Can't pickle <function <lambda>>",
    defined="/project/words.py:4",
    remedy="write a module-level function (or functools.partial of one)",
)
LOCK = UnpicklableFacts(
    path="dataset.lock",
    kind="a multiprocessing object (multiprocessing.synchronize.Lock)",
    error="A SemLock created in a fork context is being shared with a process in a spawn context",
    context=True,
)
REFUSED = error(
    "start",
    "PicklingError",
    "Can't pickle it",
    traceback='File "multiprocessing/reduction.py", line 60, in dump\n    ForkingPickler',
)


def refused(*parts, told=REFUSED):
    return run(SPAWN, outcome=RAISED, error=told, unpicklable=parts)


def not_rebuilt(type_, message, *where, stage="unpickle", **more):
    return run(SPAWN, outcome=DIED, error=error(stage, type_, message, *where, **more))


def said(*facts, max_bytes=None, about=None):
    return judged(Picklable(max_bytes), about or question(), facts)


@pytest.mark.parametrize(
    ("config", "configs"), [(SPAWN, [SPAWN, FORK]), (FORK, [FORK]), (W0, [W0])]
)
def test_the_base_run_and_its_reference_are_needed(config, configs) -> None:
    needed = [RunRequest(one, seed=5) for one in configs]
    assert picklability.needs(Picklable(), question(config, seeds=(5,))) == needed


def test_what_travels_says_nothing() -> None:
    assert said(run(SPAWN, travel_bytes=500), run(SPAWN, 0, 1), run(SPAWN, 1)) == []


# unpicklable, context-bound ----------------------------------------------------------------------


def test_unpicklable_names_the_part_and_its_own_remedy() -> None:
    assert said(refused(LAMBDA)) == [
        Finding(
            "unpicklable",
            ERROR,
            (SPAWN,),
            "dataset.clean",
            "expected everything to travel to a spawn worker, but dataset.clean is a lambda "
            "(defined at /project/words.py:4): Can't pickle <function <lambda>>",
            "Write a module-level function (or functools.partial of one).",
        )
    ]


def test_a_place_in_the_working_directory_is_told_relative_to_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    part = UnpicklableFacts("dataset.f", "a lambda", "no", f"{tmp_path / 'src' / 'words.py'}:4")
    [finding] = said(refused(part))
    assert finding.message == (
        "expected everything to travel to a spawn worker, but dataset.f is a lambda (defined at "
        "src/words.py:4): no"
    )


def test_every_part_that_refuses_is_told() -> None:
    other = UnpicklableFacts("loader.collate_fn", "a lambda", "no")
    assert said(refused(LAMBDA, other))[1] == Finding(
        "unpicklable",
        ERROR,
        (SPAWN,),
        "loader.collate_fn",
        "expected everything to travel to a spawn worker, but loader.collate_fn is a lambda: no",
        TO_THE_TOP_LEVEL,
    )


def test_unpicklable_where_no_part_was_found_is_the_dataset() -> None:
    assert said(refused()) == [
        Finding(
            "unpicklable",
            ERROR,
            (SPAWN,),
            "dataset",
            "expected the dataset to travel to the worker, got PicklingError: Can't pickle it",
            TO_THE_TOP_LEVEL,
        )
    ]


@pytest.mark.parametrize(
    "traceback",
    [
        'File "popen_fork.py", line 66, in _launch\n    os.fork()',
        'File "/project/words.py", line 3, in dump\n    open(path)',
        'File "multiprocessing/reduction.py", line 1, in steal_handle\n    close()',
    ],
)
def test_a_start_that_fails_for_another_reason_is_not_unpicklable(traceback) -> None:
    told = error("start", "OSError", "too many of them", traceback=traceback)
    assert said(refused(told=told)) == []


def test_an_exception_of_the_dataset_is_not_unpicklable() -> None:
    assert said(refused(LAMBDA, told=error("iterate", "ValueError", "bad record"))) == []


def test_context_bound() -> None:
    assert said(refused(LOCK)) == [
        Finding(
            "context-bound",
            ERROR,
            (SPAWN,),
            "dataset.lock",
            "expected primitives of the spawn context, but dataset.lock is a multiprocessing "
            "object (multiprocessing.synchronize.Lock) made in a fork context: A SemLock created "
            "in a fork context is being shared with a process in a spawn context",
            "Make it with multiprocessing.get_context('spawn'), the context of the loader's own "
            "start method.",
        )
    ]


# unpickle-fails, main-only-class -----------------------------------------------------------------


def test_unpickle_fails_in_the_user_s_own_code() -> None:
    facts = not_rebuilt(
        "RecursionError",
        "maximum recursion depth exceeded",
        "/project/words.py:6",
        function="__getattr__",
        source="return getattr(self._inner, name)",
    )
    assert said(facts) == [
        Finding(
            "unpickle-fails",
            ERROR,
            (SPAWN,),
            "/project/words.py:6",
            "expected the dataset to be rebuilt in a spawn worker, but unpickling it there raised "
            "RecursionError: maximum recursion depth exceeded in __getattr__ at "
            "/project/words.py:6, `return getattr(self._inner, name)`",
            GIVE_SETSTATE_EVERYTHING,
        )
    ]


@pytest.mark.parametrize("stage", ["unpickle", "import"])
def test_unpickle_fails_for_a_module_that_no_folder_leads_to(stage) -> None:
    facts = not_rebuilt("ModuleNotFoundError", "No module named 'test_words'", stage=stage)
    [finding] = said(facts)
    assert (finding.code, finding.culprit) == ("unpickle-fails", "test_words")
    assert finding.message == (
        "expected the dataset to be rebuilt in a spawn worker, but unpickling it there raised "
        "ModuleNotFoundError: No module named 'test_words'; the parent has this module in "
        "sys.modules, but no folder on sys.path leads to it (loaded from a path, or pytest "
        "--import-mode=importlib)"
    )


def test_unpickle_fails_inside_a_library_names_what_the_error_quotes() -> None:
    pickle_py = f"{sysconfig.get_path('stdlib')}/pickle.py:1"
    facts = not_rebuilt("AttributeError", "Can't get attribute 'Old' on <module 'w'>", pickle_py)
    [finding] = said(facts)
    assert (finding.code, finding.culprit) == ("unpickle-fails", "Old")


def test_unpickle_fails_without_a_name_or_a_place_has_no_culprit() -> None:
    [finding] = said(not_rebuilt("EOFError", "Ran out of input"))
    assert (finding.code, finding.culprit) == ("unpickle-fails", None)


@pytest.mark.parametrize("module", ["__main__", "__mp_main__"])
def test_main_only_class(module) -> None:
    text = f"Can't get attribute 'Squares' on <module '{module}' from 'train.py'>"
    assert said(not_rebuilt("AttributeError", text)) == [
        Finding(
            "main-only-class",
            ERROR,
            (SPAWN,),
            "Squares",
            "expected the dataset to be rebuilt in a spawn worker, but unpickling it there raised "
            f"AttributeError: {text}",
            INTO_A_MODULE,
        )
    ]


def test_a_worker_that_dies_later_could_be_rebuilt() -> None:
    assert said(not_rebuilt("OSError", "disk", stage="worker"), run(FORK)) == []


# arrives-changed ---------------------------------------------------------------------------------

SCALE = other_in_worker("dataset.scale", "2.0", "1.0")


def of(config, *values, **facts):
    return run(config, epochs=(epoch(*map(batch, values)),), **facts)


def test_arrives_changed_is_an_error_where_the_batches_differ_too() -> None:
    assert said(of(SPAWN, 1, world=(SCALE,)), of(FORK, 2)) == [
        Finding(
            "arrives-changed",
            ERROR,
            (SPAWN,),
            "dataset.scale",
            "expected dataset.scale to arrive as it was sent, but it is 2.0 in the test process "
            "and 1.0 in a spawn worker",
            COPY_THE_DICT,
        )
    ]


@pytest.mark.parametrize(
    ("base", "reference", "severity"),
    [
        (of(SPAWN, 1, world=(SCALE,)), of(FORK, 1), INFO),
        (of(SPAWN, 1, world=(SCALE,)), None, INFO),
        (of(SPAWN, 1, world=(SCALE,)), of(FORK, 2, outcome=RAISED), INFO),
        (run(SPAWN, outcome=HUNG, world=(SCALE,)), of(FORK, 1), INFO),
        (run(SPAWN, outcome=RAISED, world=(SCALE,)), of(FORK, 1), ERROR),
    ],
)
def test_arrives_changed_matters_as_much_as_the_batches_say(base, reference, severity) -> None:
    [finding] = said(base, *([reference] if reference else []))
    assert (finding.code, finding.severity) == ("arrives-changed", severity)


def test_a_field_that_is_dropped_on_purpose_or_of_no_use_is_not_told() -> None:
    dropped = other_in_worker("dataset.file", "an open file", "nothing", lost=True)
    unused = other_in_worker("dataset.count", "3", "4", rank=2)
    world = (dropped, unused, other_in_worker("words.SCALE", "2.0", "1.0"))
    assert said(of(SPAWN, 1, world=world), of(FORK, 1)) == []


def test_a_field_of_the_loader_that_is_lost_is_told_where_the_batches_differ() -> None:
    lost = other_in_worker("loader.collate_fn.pad", "0", "nothing", rank=1, lost=True)
    [finding] = said(of(SPAWN, 1, world=(lost,)), of(FORK, 2))
    assert (finding.culprit, finding.severity) == ("loader.collate_fn.pad", ERROR)


# heavy-pickle, copied-per-worker -----------------------------------------------------------------

HEAVY = run(
    SPAWN,
    travel_bytes=9 * MIB,
    heaviest=(
        ("dataset.records", 8_000_000),
        ("dataset.names", 1_400_000),
        ("dataset.index", 37_000),
        ("dataset.root", 90),
    ),
)


def test_heavy_pickle_against_what_is_sensible_is_a_warning_and_so_are_its_copies() -> None:
    assert said(HEAVY) == [
        Finding(
            "heavy-pickle",
            WARNING,
            (SPAWN,),
            "dataset.records",
            "at most 8,388,608 bytes should travel to each worker, but 9,437,184 bytes do "
            "(dataset.records: 8,000,000 bytes, dataset.names: 1,400,000 bytes, dataset.index: "
            "37,000 bytes)",
            HOLD_ONE_TENSOR,
        ),
        Finding(
            "copied-per-worker",
            WARNING,
            (SPAWN,),
            "dataset.records",
            "expected workers to share what is as large as dataset.records, but each of the 2 "
            "spawn workers holds a copy of its own, unpickled from 9,437,184 bytes",
            HOLD_TENSORS,
        ),
    ]


def test_copies_are_told_with_the_memory_of_a_worker() -> None:
    workers = tuple(WorkerFacts(n, 100 + n, 0, unique_bytes=n * 1500 * MIB) for n in range(3))
    [_, finding] = said(replace(HEAVY, workers=workers))
    assert finding.message == (
        "expected workers to share what is as large as dataset.records, but each of the 3 spawn "
        "workers holds a copy of its own, unpickled from 9,437,184 bytes (unique memory of a "
        "worker: 3,000 MiB)"
    )


def test_heavy_pickle_against_a_budget_is_an_error() -> None:
    assert said(run(SPAWN, travel_bytes=1001), max_bytes=1000) == [
        Finding(
            "heavy-pickle",
            ERROR,
            (SPAWN,),
            "dataset",
            "at most 1,000 bytes should travel to each worker, but 1,001 bytes do",
            HOLD_ONE_TENSOR,
        )
    ]


def test_a_budget_of_0_bytes_is_a_budget() -> None:
    [finding] = said(run(SPAWN, travel_bytes=1), max_bytes=0)
    assert finding.severity == ERROR


@pytest.mark.parametrize(
    ("facts", "max_bytes"),
    [
        (run(SPAWN, travel_bytes=8 * MIB), None),
        (run(SPAWN, travel_bytes=1000), 1000),
        (HEAVY, 10 * MIB),
        (run(SPAWN, travel_bytes=None), 0),
    ],
)
def test_within_the_limit_or_unknown_nothing_is_heavy(facts, max_bytes) -> None:
    assert said(facts, max_bytes=max_bytes) == []
