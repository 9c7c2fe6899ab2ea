"""What a process holds: found by path, read without a call, compared, and ranked."""

from __future__ import annotations

import functools
import logging
import multiprocessing
import random
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pytest_dataloader.diagnose import world
from pytest_dataloader.diagnose.world import differences, fields, held, names_used
from pytest_dataloader.observe.facts import DifferenceFacts


class Plain:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def method(self) -> None:
        """Bound to the object."""


class Slotted:
    __slots__ = ("left", "right")

    def __init__(self, left: Any) -> None:
        self.left = left


class SlottedAndPlain(Slotted):
    pass


CALLED: list[str] = []


def refuse(name: str) -> Any:
    def refused(*_: Any) -> Any:
        CALLED.append(name)
        raise AssertionError(f"{name} was called")

    return refused


class Touchy:
    """An object that notes and refuses whatever is asked of it."""

    def __init__(self) -> None:
        self.__dict__["scale"] = 2.0


ASKED = ["getstate", "reduce", "reduce_ex", "repr", "str", "getattr", "len", "iter", "bool", "eq"]
ASKED += ["lt", "call", "hash", "getitem", "deepcopy", "copy", "dir", "setattr", "sizeof", "array"]
for _name in ASKED:
    setattr(Touchy, f"__{_name}__", refuse(f"__{_name}__"))


class Generator(Touchy):
    """Of the name of generators that are asked for their state."""

    get_state = refuse("get_state")


class Flag:
    level = 3
    names = ("a", "b")

    def method(self) -> None:
        """Not data."""

    @property
    def derived(self) -> int:
        raise AssertionError("a property of the user's was read")


def scaled(factor: float) -> Any:
    rate = [0.5, factor]

    def scale(x: float) -> float:
        return x * rate[0]

    return scale


ROWS = Path("rows") / "a.csv"


def held_at(value: Any) -> dict[str, list[str]]:
    """What is held below ``dataset``."""
    return {p: h for p, h in held({"dataset": value}, ()).items() if p.startswith("dataset")}


def paths(value: Any) -> list[str]:
    return [path for path, _ in fields("dataset", value)]


def changed(one: Any, other: Any) -> list[tuple[str, str, str]]:
    """How two states of one dataset differ."""
    found = differences(held_at(one), held_at(other), {})
    return [(d.path, d.parent, d.child) for d in found]


# Fields by path ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Plain(scale=2.0, inner=Plain(name="a")), ["dataset.scale", "dataset.inner.name"]),
        (Slotted(1), ["dataset.left"]),
        (SlottedAndPlain([1, 2]), ["dataset.left"]),
        (Plain(steps=[Plain(p=0.5), Plain(p=0.1)]), ["dataset.steps[0].p", "dataset.steps[1].p"]),
        (Plain(by={"a": Plain(p=1)}), ["dataset.by['a'].p"]),
        (Plain(pair=(Plain(p=1), 2)), ["dataset.pair[0].p", "dataset.pair[1]"]),
        (Plain(rows=[1, 2, 3], by={"a": 1}), ["dataset.rows", "dataset.by"]),
        (Plain(empty=[], none=None), ["dataset.empty", "dataset.none"]),
        (Plain(image=torch.zeros(2), array=np.zeros(2)), ["dataset.image", "dataset.array"]),
        (Plain(noise=random.Random(0)), ["dataset.noise"]),
        (
            Plain(clean=scaled(2.0)),
            ["dataset.clean.__closure__['rate']"],
        ),
        (Plain(clean=Plain(p=1).method), ["dataset.clean.__self__.p"]),
        (Plain(kind=Plain, function=scaled), ["dataset.kind", "dataset.function"]),
        (
            Plain(clean=functools.partial(print, 1)),
            ["dataset.clean.func", "dataset.clean.args", "dataset.clean.keywords"],
        ),
        (5, ["dataset"]),
        (Plain(), ["dataset"]),
    ],
)  # fmt: skip
def test_the_fields_of_a_value(value, expected) -> None:
    assert paths(value) == expected


def test_a_function_that_calls_itself_has_a_cell_of_itself() -> None:
    def outer() -> Any:
        def inner(n: int) -> int:
            return inner(n - 1) if n else 0

        return inner

    assert paths(Plain(f=outer())) == ["dataset.f.__closure__['inner']"]


def test_a_cell_that_is_not_filled_is_left_out() -> None:
    def outer() -> Any:
        def inner() -> Any:
            return late, ready

        ready = 1
        if ready is None:
            late = 2
        return inner

    assert paths(Plain(f=outer())) == ["dataset.f.__closure__['ready']"]


def test_an_object_that_holds_itself_is_met_once() -> None:
    ring = Plain(scale=1)
    ring.me = ring
    assert paths(ring) == ["dataset.scale", "dataset.me"]


def test_the_same_object_on_two_paths_is_opened_on_both() -> None:
    shared = Plain(p=1)
    assert paths(Plain(a=shared, b=shared)) == ["dataset.a.p", "dataset.b.p"]


def test_depth_has_an_end() -> None:
    value: Any = 1
    for _ in range(9):
        value = Plain(a=value)
    assert paths(value) == ["dataset" + ".a" * 6]


@pytest.mark.parametrize(("count", "opened"), [(32, True), (33, False)])
def test_only_small_containers_are_opened(count, opened) -> None:
    found = paths(Plain(rows=[Plain(p=i) for i in range(count)]))
    expected = [f"dataset.rows[{i}].p" for i in range(count)] if opened else ["dataset.rows"]
    assert found == expected


def test_a_large_container_of_objects_is_still_compared() -> None:
    before, after = ([Plain(p=i) for i in range(40)] for _ in range(2))
    after[7].p = 0
    assert changed(Plain(rows=before), Plain(rows=before)) == []
    assert [path for path, _, _ in changed(Plain(rows=before), Plain(rows=after))] == [
        "dataset.rows"
    ]


# Nothing of the user's is called -----------------------------------------------------------------


@pytest.fixture
def called() -> Iterator[list[str]]:
    CALLED.clear()
    yield CALLED
    CALLED.clear()


def test_an_object_that_refuses_every_method_is_read(called) -> None:
    value = Plain(
        touchy=Touchy(),
        generator=Generator(),
        rows=[Touchy() for _ in range(40)],
        by=dict.fromkeys(range(40), Touchy()),
        deep=[[[Touchy()]] * 40],
    )
    found = held_at(value)
    assert called == []
    assert {path: told[1:] for path, told in found.items()} == {
        "dataset.touchy.scale": ["float 2.0", "data"],
        "dataset.generator.scale": ["float 2.0", "data"],
        "dataset.rows": ["list", "data"],
        "dataset.by": ["dict", "data"],
        "dataset.deep": ["list", "data"],
    }


def test_an_object_that_refuses_every_method_is_compared(called) -> None:
    one, other = ([Touchy() for _ in range(40)] for _ in range(2))
    assert changed(Plain(rows=one), Plain(rows=other)) == []
    other[7].__dict__["scale"] = 3.0
    assert changed(Plain(rows=one), Plain(rows=other)) == [("dataset.rows", "list", "list")]
    assert called == []


def test_a_list_that_holds_itself_is_read() -> None:
    ring: list[Any] = [1]
    ring.append(ring)
    assert held_at(Plain(rows=ring))["dataset.rows"][2] == "data"


def test_properties_are_not_read() -> None:
    value = Flag()
    value.own = 1
    assert paths(value) == ["dataset.own"]


# One value ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "shown", "kind"),
    [
        (2.0, "float 2.0", "data"),
        ("cat", "str 'cat'", "data"),
        ([1, 2], "list [1, 2]", "data"),
        (list(range(100)), "list [0, 1, 2, 3, 4, 5, ...]", "data"),
        ({"a": 1}, "dict {'a': 1}", "data"),
        (dict.fromkeys(range(2_000)), "dict", "data"),
        (ROWS, f"{type(ROWS).__name__} {ROWS!r}", "data"),
        ([], "[]", "empty"),
        ({}, "{}", "empty"),
        ("", "''", "empty"),
        (None, "None", "empty"),
        (0, "int 0", "data"),
        (torch.tensor([1.0, 2.0]), "float32 tensor of shape [2] [1, 2]", "data"),
        (np.array([1, 2]), "int64 array of shape [2] [1, 2]", "data"),
        (print, "builtin_function_or_method <built-in function print>", "data"),
        (scaled, f"{__name__}.scaled", "data"),
        (Plain, f"{__name__}.Plain", "data"),
        ("x" * 200, "str 'xxxxxxxxxxxx...xxxxxxxxxxxxx'", "data"),
    ],
)
def test_how_a_value_is_held_and_shown(value, shown, kind) -> None:
    digest, *told = held_at(Plain(v=value))["dataset.v"]
    assert told == [shown, kind]
    assert digest


def test_equal_values_have_equal_digests() -> None:
    one, other = ({"a": [1, (2.0, "x")], "b": {3, 4}} for _ in range(2))
    assert held_at(Plain(v=one)) == held_at(Plain(v=other))


@pytest.mark.parametrize(
    "make",
    [
        lambda: random.Random(0),
        lambda: np.random.default_rng(0),
        lambda: np.random.RandomState(0),
        lambda: torch.Generator().manual_seed(0),
    ],
    ids=["Random", "numpy Generator", "RandomState", "torch Generator"],
)
def test_a_generator_is_compared_by_its_state(make) -> None:
    assert changed(Plain(noise=make()), Plain(noise=make())) == []
    used = make()
    if isinstance(used, torch.Generator):
        torch.rand(1, generator=used)
    else:
        used.random()
    assert [path for path, _, _ in changed(Plain(noise=make()), Plain(noise=used))] == [
        "dataset.noise"
    ]


def test_a_look_has_a_budget() -> None:
    before = [[i] for i in range(6_000)]
    late = [*before[:-1], [-1]]
    early = [[-1], *before[1:]]
    assert changed(Plain(rows=before), Plain(rows=late)) == []
    assert len(changed(Plain(rows=before), Plain(rows=early))) == 1


@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_of_a_large_array_the_edges_are_compared(monkeypatch, kind) -> None:
    monkeypatch.setattr(world, "_WHOLE_BYTES", 100_000)

    def rows(**values: int) -> Any:
        made = np.zeros((100, 1000), dtype="uint8")
        for place, value in values.items():
            made[int(place[1:])] = value
        big = np.concatenate([made, made[:1]])
        return Plain(rows=torch.from_numpy(big) if kind == "tensor" else big)

    assert changed(rows(), rows(_50=1)) == []
    assert len(changed(rows(), rows(_1=1))) == 1
    assert len(changed(rows(), rows(_99=1))) == 1
    assert len(changed(rows(), Plain(rows=rows().rows[:-1]))) == 1


def test_a_small_array_is_compared_whole() -> None:
    one, other = np.zeros(50_000), np.zeros(50_000)
    other[25_000] = 1
    assert len(changed(Plain(rows=one), Plain(rows=other))) == 1


# Handles -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [threading.Lock, lambda: open(__file__, encoding="utf-8"), lambda: iter([1, 2]), object],
    ids=["lock", "file", "iterator", "object"],
)
def test_handles_are_not_compared(make) -> None:
    one, other = make(), make()
    assert {h[2] for p, h in held_at(Plain(handle=one)).items() if p.endswith("handle")} <= {
        "opaque"
    }
    assert changed(Plain(handle=one), Plain(handle=other)) == []
    assert changed(Plain(handle=one), Plain(handle=5)) == []


def test_an_object_that_holds_a_handle_deep_inside_is_not_compared() -> None:
    lock = threading.Lock()
    many = [Plain(p=1, lock=lock) for _ in range(40)]
    assert held_at(Plain(rows=many))["dataset.rows"][2] == "opaque"


# Globals and defaults ----------------------------------------------------------------------------


@pytest.fixture
def module() -> Iterator[types.ModuleType]:
    made = types.ModuleType("words_for_world")
    sys.modules[made.__name__] = made
    yield made
    del sys.modules[made.__name__]


def globals_of(module: types.ModuleType) -> dict[str, list[str]]:
    found = held({}, [module.__name__, "never_imported"])
    return {p: h for p, h in found.items() if p.startswith(f"{module.__name__}.")}


def test_globals_by_their_dotted_names(module) -> None:
    module.SCALE, module.REGISTRY, module.torch = 2.0, {"a": 1}, torch
    module.__secret__ = 1
    assert globals_of(module) == {
        "words_for_world.SCALE": [held_at(Plain(v=2.0))["dataset.v"][0], "float 2.0", "data"],
        "words_for_world.REGISTRY": [
            held_at(Plain(v={"a": 1}))["dataset.v"][0],
            "dict {'a': 1}",
            "data",
        ],
    }


def test_the_data_of_classes_of_the_module(module) -> None:
    module.Mine = type("Mine", (Flag,), {"__module__": module.__name__, "level": 4, "f": print})
    module.Theirs = Flag
    assert list(globals_of(module)) == [
        "words_for_world.Mine",
        "words_for_world.Mine.level",
        "words_for_world.Theirs",
    ]


def before_and_after(module, change) -> list[tuple[str, str, str, bool]]:
    """How a child that has not seen a change differs from a parent that has."""
    child = globals_of(module)
    change()
    found = differences(globals_of(module), child, {})
    return [(d.path, d.parent, d.child, d.lost) for d in found]


def test_a_class_attribute_that_was_set_at_run_time(module) -> None:
    module.Mine = type("Mine", (), {"__module__": module.__name__, "level": 3})
    assert before_and_after(module, lambda: setattr(module.Mine, "level", 9)) == [
        ("words_for_world.Mine.level", "int 9", "int 3", False)
    ]


def test_a_function_that_was_patched(module) -> None:
    def load() -> None:
        """As it was."""

    def fake() -> None:
        """As it is in a test."""

    for function in (load, fake):
        function.__module__ = module.__name__
        function.__qualname__ = function.__name__
    module.load = load
    assert before_and_after(module, lambda: setattr(module, "load", fake)) == [
        ("words_for_world.load", "words_for_world.fake", "words_for_world.load", False)
    ]


def test_a_function_of_the_same_name_that_stands_elsewhere(module) -> None:
    made = [scaled(1.0), types.FunctionType(held_at.__code__, {}, "scale")]
    for function in made:
        function.__module__, function.__qualname__ = module.__name__, "scale"
    module.scale = made[0]
    [(path, *_)] = before_and_after(module, lambda: setattr(module, "scale", made[1]))
    assert path == "words_for_world.scale"


def test_a_registry_that_was_filled_at_run_time_is_lost(module) -> None:
    module.REGISTRY = {}
    assert before_and_after(module, lambda: module.REGISTRY.update(a=1)) == [
        ("words_for_world.REGISTRY", "dict {'a': 1}", "{}", True)
    ]


def test_a_global_that_was_added_at_run_time_is_missing(module) -> None:
    module.SCALE = 1
    assert before_and_after(module, lambda: setattr(module, "LATE", 5)) == [
        ("words_for_world.LATE", "int 5", "missing", True)
    ]


def test_modules_of_the_user_only(module) -> None:
    module.__file__ = __file__
    found = world.user_modules()
    assert {"words_for_world", __name__} <= set(found)
    assert not {"torch", "json", "pytest", "pytest_dataloader.diagnose.world"} & set(found)
    assert "__main__" not in found


@pytest.fixture
def crowd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A hundred and twenty modules, as a session with many tests has imported."""
    names = [f"crowd_{number}" for number in range(120)]
    for name in names:
        crowded = types.ModuleType(name)
        crowded.__file__ = str(tmp_path / f"{name}.py")
        monkeypatch.setitem(sys.modules, name, crowded)
    return names


def test_of_very_many_modules_those_that_the_pipeline_uses_come_first(crowd) -> None:
    last = sys.modules[crowd[-1]]
    kind = type("Words", (), {"__module__": crowd[-1]})
    last.Words, last.tools = kind, sys.modules[crowd[-2]]
    near = world.modules_near([{"words": kind()}])
    assert near[:2] == [crowd[-1], crowd[-2]]
    assert len(near) == len(set(near)) == 100
    assert set(crowd) <= set(world.user_modules())


def test_environment_variables_by_name_without_their_values(monkeypatch) -> None:
    monkeypatch.setenv("WORDS_TOKEN", "hunter2")
    mine = held({}, ())
    assert mine["os.environ['WORDS_TOKEN']"][1:] == ["set", "data"]
    assert "hunter2" not in repr(mine)
    assert not [path for path in mine if "PYTEST_" in path]
    monkeypatch.setenv("WORDS_TOKEN", "hunter3")
    other = held({}, ())
    assert differences(mine, other, {}) == (
        DifferenceFacts("os.environ['WORDS_TOKEN']", "set", "set", 3, False),
    )
    monkeypatch.delenv("WORDS_TOKEN")
    assert differences(mine, held({}, ()), {"WORDS_TOKEN": 0}) == (
        DifferenceFacts("os.environ['WORDS_TOKEN']", "set", "missing", 0, True),
    )


def test_defaults_are_compared() -> None:
    child = held({}, ())
    level, limit = logging.getLogger().level, sys.getrecursionlimit()
    errors = np.geterr()
    try:
        logging.getLogger().setLevel(7)
        sys.setrecursionlimit(limit + 1)
        torch.set_default_dtype(torch.float64)
        np.seterr(all="raise")
        parent = held({}, ())
    finally:
        logging.getLogger().setLevel(level)
        sys.setrecursionlimit(limit)
        torch.set_default_dtype(torch.float32)
        np.seterr(**errors)
    told = {d.path: (d.parent, d.child, d.rank) for d in differences(parent, child, {})}
    assert told == {
        "torch.get_default_dtype()": ("str 'torch.float64'", "str 'torch.float32'", 2),
        "numpy.geterr()": (told["numpy.geterr()"][0], told["numpy.geterr()"][1], 2),
        "logging.getLogger().level": ("int 7", f"int {level}", 2),
        "sys.getrecursionlimit()": (f"int {limit + 1}", f"int {limit}", 2),
    }


def test_a_librarys_settings_are_the_usual_ones_where_nobody_imported_it(monkeypatch) -> None:
    for module in ("csv", "decimal", "PIL.Image", "PIL.ImageFile"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    child = held({}, ())
    context = types.SimpleNamespace(prec=50, rounding="ROUND_HALF_EVEN")
    libraries = {
        "csv": types.SimpleNamespace(field_size_limit=lambda: 10**9),
        "decimal": types.SimpleNamespace(getcontext=lambda: context),
        "PIL.Image": types.SimpleNamespace(MAX_IMAGE_PIXELS=None, Image=frozenset),
        "PIL.ImageFile": types.SimpleNamespace(LOAD_TRUNCATED_IMAGES=True),
    }
    for name, library in libraries.items():
        monkeypatch.setitem(sys.modules, name, library)
    told = {d.path: (d.parent, d.child) for d in differences(held({}, ()), child, {})}
    assert told == {
        "csv.field_size_limit()": ("str '1000000000'", "str '131072'"),
        "decimal.getcontext()": (
            "str \"(50, 'ROUND_HALF_EVEN')\"",
            "str \"(28, 'ROUND_HALF_EVEN')\"",
        ),
        "PIL.Image.MAX_IMAGE_PIXELS": ("str 'None'", "str '89478485'"),
        "PIL.ImageFile.LOAD_TRUNCATED_IMAGES": ("str 'True'", "str 'False'"),
    }


def test_a_library_as_it_is_imported_has_the_usual_settings() -> None:
    code = (
        "import csv, decimal, sys, PIL.ImageFile; from pytest_dataloader.diagnose import world;"
        "names = [n for n in world.held({}, ()) if n.startswith(('csv', 'decimal', 'PIL'))];"
        "print(len(names)); before = world.held({}, ());"
        "[sys.modules.pop(m) for m in ('csv', 'decimal', 'PIL.Image', 'PIL.ImageFile')];"
        "print([d.path for d in world.differences(before, world.held({}, ()), {})])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["4", "[]"]


# Differences -------------------------------------------------------------------------------------

DATA, EMPTY, OPAQUE = ["1", "int 1", "data"], ["0", "[]", "empty"], ["2", "lock", "opaque"]


def test_likelier_causes_stand_first() -> None:
    parent = {
        "words.FAR": DATA,
        "words.NEAR": DATA,
        "words.SIDE": DATA,
        "torch.get_default_dtype()": DATA,
        "dataset.near": DATA,
        "dataset.far[0].x": DATA,
    }
    child = {path: ["9", "int 9", "data"] for path in parent}
    used = {"NEAR": 0, "near": 0, "SIDE": 1}
    assert [(d.path, d.rank) for d in differences(parent, child, used)] == [
        ("dataset.near", 0),
        ("words.NEAR", 0),
        ("words.SIDE", 1),
        ("torch.get_default_dtype()", 2),
        ("dataset.far[0].x", 3),
        ("words.FAR", 3),
    ]


@pytest.mark.parametrize(
    ("path", "ours", "theirs", "told"),
    [
        ("dataset.rows", DATA, EMPTY, [("int 1", "[]", True)]),
        ("dataset.rows", DATA, None, [("int 1", "missing", True)]),
        ("dataset.rows", EMPTY, DATA, [("[]", "int 1", False)]),
        ("dataset.rows", DATA, OPAQUE, []),
        ("dataset.rows", OPAQUE, DATA, []),
        ("dataset.rows", DATA, DATA, []),
        ("words.SCALE", DATA, None, [("int 1", "missing", True)]),
    ],
)
def test_what_is_lost_and_what_is_not_compared(path, ours, theirs, told) -> None:
    child = {"dataset.other": DATA, "words.OTHER": DATA} | ({path: theirs} if theirs else {})
    found = differences({path: ours}, child, {})
    assert [(d.parent, d.child, d.lost) for d in found] == told


def test_a_module_that_the_child_never_imported_is_left_out() -> None:
    assert differences({"words.SCALE": DATA}, {"other.SCALE": DATA}, {}) == ()


def test_what_stands_below_something_else_is_told_once() -> None:
    parent = {"dataset.clean.p": DATA, "dataset.clean.q": DATA}
    assert differences(parent, {"dataset.clean": EMPTY}, {}) == ()


def test_what_only_the_child_holds_is_no_difference() -> None:
    assert differences({}, {"dataset.cache": DATA}, {}) == ()


# The names that code uses ------------------------------------------------------------------------


class Reader:
    def __getitem__(self, index: int) -> Any:
        return [SCALE * self.rate for _ in range(index)], environ["WORDS_HOME"]

    def reset(self) -> None:
        self.cache = other_helper()


SCALE, environ = 2.0, {"WORDS_HOME": "x"}


def other_helper() -> Any:
    return multiprocessing.current_process()


def test_names_in_what_makes_a_sample_come_first() -> None:
    found = names_used([Reader()])
    near = {name for name, rank in found.items() if rank == 0}
    assert {"SCALE", "rate", "WORDS_HOME"} <= near
    assert not {"cache", "other_helper"} & near
    assert found["cache"] == found["other_helper"] == 1
    assert found["current_process"] == 1


def test_names_of_a_function_that_rides_along() -> None:
    found = names_used([other_helper])
    assert found["multiprocessing"] == 0


class Fuse:
    limit = 3

    def __call__(self, value: Any) -> Any:
        return min(value, self.limit, FUSE_LIMIT)

    def blow(self) -> Any:
        return self.blown


class Idle:
    def rest(self) -> Any:
        return self.resting


FUSE_LIMIT = 4


@pytest.mark.parametrize(
    "root",
    [
        Plain(transform=Fuse()),
        Plain(steps=[Plain(), Fuse()]),
        Plain(transform=functools.partial(Fuse(), 1)),
        Plain(transform=Fuse().__call__),
        functools.partial(Fuse()),
    ],
)
def test_names_in_what_is_held_count_as_those_of_the_root(root) -> None:
    found = names_used([root])

    assert (found["limit"], found["FUSE_LIMIT"], found["blown"]) == (0, 0, 1)
    assert found["resting"] == 1  # another class of the same module


def test_names_of_libraries_do_not_count() -> None:
    assert names_used([random.Random(0)]) == {}
