"""Markers: what each takes, what it refuses and in which words."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from pytest_dataloader.checks.asked import (
    Asked,
    Deterministic,
    NoRecursiveSpawn,
    Picklable,
    Portable,
    Throughput,
)
from pytest_dataloader.checks.catalogue import BY_NAME, select
from pytest_dataloader.checks.families import CONFORMANCE
from pytest_dataloader.markers import MARKERS, MarkerError, lines, parse, unused
from pytest_dataloader.marks import Allow, Axes, Conforms, Marked, marked


def mark(name: str, *args: Any, **kwargs: Any) -> pytest.Mark:
    return getattr(pytest.mark, name)(*args, **kwargs).mark


def error_of(name: str, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(MarkerError) as caught:
        parse(name, args, kwargs)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "kwargs", "value"),
    [
        ("dl_picklable", {}, Picklable()),
        ("dl_picklable", {"max_bytes": 10}, Picklable(10)),
        ("dl_deterministic", {}, Deterministic(None, ("runs", "start_methods"))),
        ("dl_deterministic", {"seeds": 3}, Deterministic((3,))),
        ("dl_deterministic", {"seeds": range(2)}, Deterministic((0, 1))),
        ("dl_deterministic", {"across": "num_workers"}, Deterministic(None, ("num_workers",))),
        ("dl_no_recursive_spawn", {}, NoRecursiveSpawn()),
        (
            "dl_no_recursive_spawn",
            {"script": "train.py", "args": ["--quick"]},
            NoRecursiveSpawn("train.py", ("--quick",)),
        ),
        ("dl_throughput", {"min_speedup": 1.5}, Throughput(min_speedup=1.5)),
        ("dl_throughput", {"min_batches_per_s": 1}, Throughput(1)),
        ("dl_portable", {}, Portable()),
        ("dl_conforms", {}, Conforms()),
        ("dl_conforms", {"skip": "hang"}, Conforms(("hang",))),
        ("dl_conforms", {"skip": ["hang", "throughput"]}, Conforms(("hang", "throughput"))),
        ("dl_matrix", {}, Axes()),
        (
            "dl_matrix",
            {"start_methods": "spawn", "num_workers": [0, 4], "prefetch_factor": 2},
            Axes(("spawn",), (0, 4), (None,), (2,), (None,)),
        ),
        (
            "dl_matrix",
            {"persistent_workers": [True, False], "pin_memory": False},
            Axes(None, None, (True, False), (None,), (False,)),
        ),
        ("dl_allow", {"code": "hang", "reason": "known"}, Allow("hang", "known")),
        (
            "dl_allow",
            {"code": "hang", "reason": "known", "start_methods": "fork", "num_workers": 2},
            Allow("hang", "known", ("fork",), (2,)),
        ),
    ],
)
def test_what_a_marker_says(name: str, kwargs: dict[str, Any], value: Any) -> None:
    assert parse(name, (), kwargs) == value


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        (
            "dl_picklable",
            {"max_bytes": 0},
            "max_bytes must be a whole number above 0 (bytes); got 0",
        ),
        (
            "dl_picklable",
            {"max_bytes": True},
            "max_bytes must be a whole number above 0 (bytes); got True",
        ),
        (
            "dl_deterministic",
            {"seeds": []},
            "seeds must be whole numbers from 0, such as [0, 1]; got []",
        ),
        (
            "dl_deterministic",
            {"seeds": [-1]},
            "seeds must be whole numbers from 0, such as [0, 1]; got [-1]",
        ),
        (
            "dl_deterministic",
            {"across": "ranks"},
            "across must be some of 'runs', 'start_methods', 'num_workers'; got 'ranks'",
        ),
        (
            "dl_deterministic",
            {"across": None},
            "across must be some of 'runs', 'start_methods', 'num_workers'; got None",
        ),
        (
            "dl_no_recursive_spawn",
            {"script": 3},
            "script must be the path of a Python file; got 3",
        ),
        ("dl_no_recursive_spawn", {"args": [1]}, "args must be a list of strings; got [1]"),
        (
            "dl_throughput",
            {"min_batches_per_s": 0},
            "min_batches_per_s must be a number above 0 (batches per second); got 0",
        ),
        (
            "dl_throughput",
            {"min_samples_per_s": "9"},
            "min_samples_per_s must be a number above 0 (samples per second); got '9'",
        ),
        (
            "dl_throughput",
            {"min_speedup": True},
            "min_speedup must be a number above 0 (times the rate of 0 workers); got True",
        ),
        (
            "dl_throughput",
            {"max_startup_s": float("nan")},
            "max_startup_s must be a number above 0 (seconds); got nan",
        ),
        (
            "dl_throughput",
            {},
            (
                "at least one budget must be given: min_batches_per_s, min_samples_per_s, "
                "min_speedup, max_startup_s, or step_ms with max_stall"
            ),
        ),
        (
            "dl_throughput",
            {"step_ms": 20},
            (
                "step_ms and max_stall must be given together: the milliseconds that a step takes, "
                "and the largest share of its time that the loop may wait"
            ),
        ),
        (
            "dl_throughput",
            {"step_ms": 20, "max_stall": 10},
            "max_stall must be a share of time from 0 to below 1, such as 0.1; got 10",
        ),
        ("dl_conforms", {"skip": 5}, "skip must be codes or families; got 5"),
        ("dl_conforms", {"skip": [5]}, "skip must be codes or families; got [5]"),
        (
            "dl_matrix",
            {"start_methods": "thread"},
            "start_methods must be some of fork, spawn, forkserver, all, default; got 'thread'",
        ),
        (
            "dl_matrix",
            {"num_workers": 1.5},
            "num_workers must be whole numbers from 0, such as [0, 2]; got 1.5",
        ),
        (
            "dl_matrix",
            {"persistent_workers": 1},
            "persistent_workers must be True, False or both in a list; got 1",
        ),
        (
            "dl_matrix",
            {"prefetch_factor": 0},
            "prefetch_factor must be whole numbers from 1, such as [2, 4]; got 0",
        ),
        (
            "dl_matrix",
            {"pin_memory": "yes"},
            "pin_memory must be True, False or both in a list; got 'yes'",
        ),
        (
            "dl_allow",
            {"code": "hang", "reason": " "},
            "reason must be a sentence; got ' '",
        ),
        (
            "dl_allow",
            {"code": "hang", "reason": "known", "start_methods": "all"},
            "start_methods must be some of fork, spawn, forkserver; got 'all'",
        ),
    ],
)
def test_what_a_marker_refuses(name: str, kwargs: dict[str, Any], message: str) -> None:
    assert error_of(name, **kwargs) == f"{name}: {message}"


@pytest.mark.parametrize("code", ["hnag", ["hang"], None])
def test_an_unknown_code_is_refused(code: Any) -> None:
    assert error_of("dl_allow", code=code, reason="known") == (
        f"dl_allow: code must be one of {', '.join(BY_NAME)}; got {code!r}"
    )


def test_an_unknown_code_to_skip_is_refused_with_the_closest_one() -> None:
    assert error_of("dl_conforms", skip="hnag").startswith(
        "dl_conforms: skip: 'hnag' is neither a code nor a family; did you mean 'hang'? "
    )


def test_a_missing_argument_is_named() -> None:
    assert error_of("dl_allow", code="hang") == (
        "dl_allow: missing a required argument: 'reason'; "
        "its arguments are: code, reason, start_methods, num_workers"
    )


def test_an_unknown_argument_is_named() -> None:
    assert error_of("dl_picklable", bytes=3) == (
        "dl_picklable: got an unexpected keyword argument 'bytes'; its arguments are: max_bytes"
    )


def test_a_marker_without_arguments_says_so() -> None:
    assert error_of("dl_fork_safe", 5) == (
        "dl_fork_safe: too many positional arguments; it takes none"
    )


def test_a_marker_that_nothing_reads_is_said() -> None:
    assert unused(["skip", "dl_complete", "dl_matrix", "dl_complete"]) == (
        "dl_complete, dl_matrix: nothing would be checked, as this test takes no parameters; put "
        "the marker on a function or on a method of a plain class, not of a unittest.TestCase, in "
        "the source and not during collection"
    )
    assert unused(["skip"]) is None


def test_positions_count_as_names() -> None:
    assert parse("dl_allow", ("hang", "known", ["fork"]), {}) == Allow("hang", "known", ("fork",))


def test_each_marker_has_its_line() -> None:
    shown = list(lines())

    assert shown[0] == (
        "dl_picklable(max_bytes=None): everything that travels to a worker travels and is at most "
        "max_bytes of pickle a worker."
    )
    assert (
        "dl_allow(code, reason, start_methods=None, num_workers=None): this finding is "
        in (shown[-1])
    )
    assert len(shown) == len(MARKERS)
    for line, (name, function) in zip(shown, MARKERS.items(), strict=True):
        assert line.startswith(f"{name}(")
        assert line.endswith(inspect.getdoc(function) or "none")


def test_the_closest_mark_of_a_kind_wins() -> None:
    told = marked([mark("dl_picklable", 1), mark("dl_picklable", 2), mark("dl_matrix", "fork")])

    assert told == Marked((Picklable(1),), Axes(("fork",)))


def test_other_marks_are_none_of_ours() -> None:
    assert marked([mark("skip"), mark("usefixtures", "x")]) == Marked()


def test_every_allowance_counts() -> None:
    allowed = [mark("dl_allow", "hang", "a"), mark("dl_allow", "slow", "b")]

    assert marked(allowed).allowed == (Allow("hang", "a"), Allow("slow", "b"))


def test_scripts_are_questions_of_their_own() -> None:
    told = marked(
        [
            mark("dl_no_recursive_spawn", "a.py"),
            mark("dl_no_recursive_spawn", "b.py"),
            mark("dl_no_recursive_spawn", "a.py", ["again"]),
        ]
    )

    assert told.asked == (NoRecursiveSpawn("a.py"), NoRecursiveSpawn("b.py"))
    assert told.only_scripts


@pytest.mark.parametrize(
    "asked", [(), (NoRecursiveSpawn(),), (NoRecursiveSpawn("a.py"), Picklable())]
)
def test_other_questions_need_a_pipeline(asked: tuple[Asked, ...]) -> None:
    assert not Marked(asked).only_scripts


def test_conformance_asks_all_that_needs_no_budget() -> None:
    assert marked([mark("dl_conforms")]).asked == CONFORMANCE


def test_conformance_keeps_what_another_mark_says() -> None:
    told = marked([mark("dl_conforms"), mark("dl_picklable", 7)])

    assert Picklable(7) in told.asked
    assert Picklable() not in told.asked
    assert len(told.asked) == len(CONFORMANCE)


def test_conformance_without_a_family_does_not_ask_its_questions() -> None:
    told = marked([mark("dl_conforms", skip=["determinism", "hang"])])

    assert not any(isinstance(one, Deterministic) for one in told.asked)
    assert any(isinstance(one, Picklable) for one in told.asked)
    assert told.skipped_codes == select(["determinism"]) | {"hang"}


@pytest.mark.parametrize(
    ("methods", "counts", "start_method", "num_workers", "covered"),
    [
        (None, None, "fork", 2, True),
        (None, None, None, 0, True),
        (("fork",), None, "fork", 2, True),
        (("fork",), None, "spawn", 2, False),
        (("fork",), None, None, 0, False),
        (None, (2,), "spawn", 2, True),
        (None, (2,), "spawn", 4, False),
        (("fork",), (2,), "fork", 4, False),
    ],
)
def test_an_allowance_covers_its_configurations(
    methods: tuple[str, ...] | None,
    counts: tuple[int, ...] | None,
    start_method: str | None,
    num_workers: int,
    covered: bool,
) -> None:
    assert Allow("hang", "known", methods, counts).covers(start_method, num_workers) is covered
