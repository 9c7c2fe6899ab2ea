"""The look at what travels: every refusing part by its path, and nothing touched by looking."""

from __future__ import annotations

import collections
import dataclasses
import functools
import io
import multiprocessing
import pickle
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch.utils.data import ConcatDataset, Subset

from pytest_dataloader.diagnose.pickling import defined_at, find_unpicklable, weigh
from pytest_dataloader.observe.facts import UnpicklableFacts

SPAWN = multiprocessing.get_context("spawn")
needs_fork = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="fork is not available here"
)


class Holder:
    def __init__(self, **parts: Any) -> None:
        self.__dict__.update(parts)

    def collate(self, batch: Any) -> Any:
        return batch

    def __len__(self) -> int:
        return 1


class Slots:
    __slots__ = ("empty", "first", "second")

    def __init__(self, first: Any, second: Any) -> None:
        self.first = first
        self.second = second


class Reduced:
    def __init__(self, held: Any) -> None:
        self.held = held

    def __reduce__(self) -> Any:
        return Reduced, (self.held,)


class ReducedToOther:
    def __init__(self, held: Any) -> None:
        self.inside = [held]

    def __reduce__(self) -> Any:
        return ReducedToOther, (1, self.inside[0])


class OwnState:
    def __init__(self, held: Any) -> None:
        self.dropped = threading.Lock()
        self.held = held

    def __getstate__(self) -> Any:
        return {"held": self.held}


class ListState:
    def __init__(self, held: Any) -> None:
        self.held = held

    def __getstate__(self) -> Any:
        return [1, self.held]

    def __setstate__(self, state: Any) -> None:
        self.held = state[1]


class StateRaises:
    def __getstate__(self) -> Any:
        raise ValueError("closed already")


class NewArguments:
    def __init__(self, held: Any) -> None:
        self.held = held

    def __getnewargs__(self) -> Any:
        return (self.held,)


class OwnList(list):  # type: ignore[type-arg]
    pass


class OwnDict(dict):  # type: ignore[type-arg]
    pass


class Named(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass
class Record:
    held: Any


class OwnThread(threading.Thread):
    pass


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


def twin() -> None:
    pass


undecorated = twin
twin = wrapped(twin)


def module_level() -> None:
    pass


def local_function() -> Any:
    def inner() -> None:
        pass

    return inner


def local_class() -> type:
    class Inner:
        def __init__(self) -> None:
            self.lock = threading.Lock()

    return Inner


refuses = lambda: 0  # noqa: E731


def line_of(text: str) -> str:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    (number,) = [n for n, line in enumerate(lines, 1) if line.strip() == text]
    return f"{__file__}:{number}"


def found(value: Any, context: Any = SPAWN) -> list[tuple[str, str]]:
    return [(fact.path, fact.kind) for fact in find_unpicklable({"dataset": value}, context)]


# One part ------------------------------------------------------------------------------------


def test_what_travels_is_not_found() -> None:
    value = Holder(
        a=[1, "b", {"c": (2.0, None)}],
        f=module_level,
        t=torch.ones(2),
        n=np.ones(2),
        o=np.array([1, "a"], object),
        p=functools.partial(module_level),
        g=torch.Generator(),
    )

    assert find_unpicklable({"dataset": value}, SPAWN) == ()


def test_a_lambda_is_found_with_all_that_is_to_say() -> None:
    (fact,) = find_unpicklable({"dataset": Holder(transform=refuses)}, SPAWN)

    assert fact == UnpicklableFacts(
        path="dataset.transform",
        kind="a lambda",
        error=fact.error,
        defined=line_of("refuses = lambda: 0  # noqa: E731"),
        remedy="write a module-level function (or functools.partial of one)",
        context=False,
    )
    assert "pickle" in fact.error
    assert "<lambda>" in fact.error


@pytest.mark.parametrize(
    ("make", "kind", "defined"),
    [
        (
            local_function,
            "the function local_function.<locals>.inner, defined inside another function",
            "def inner() -> None:",
        ),
        (
            local_class,
            "the class local_class.<locals>.Inner, defined inside a function",
            "class Inner:",
        ),
        (
            local_class(),
            (
                f"an instance of {__name__}.local_class.<locals>.Inner, a class defined inside a "
                "function"
            ),
            "class Inner:",
        ),
        (
            lambda: undecorated,
            "the function twin, which its own name does not lead to",
            "def twin() -> None:",
        ),
        (lambda: (n for n in ()), "a generator", None),
        (lambda: threading, "a module", None),
        ({}.keys, "a view of a dict (dict_keys)", None),
        (threading.Lock, "a lock or queue of threads (thread.lock)", None),
        (threading.Event, "a lock or queue of threads (threading.Event)", None),
        (threading.Thread, "a thread (threading.Thread)", None),
        (lambda: sqlite3.connect(":memory:"), "an SQLite object (sqlite3.Connection)", None),
    ],
)
def test_a_refusing_part(
    make: Callable[[], Any], kind: str, defined: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # multiprocessing.managers, once imported, lets the views of dicts travel as lists
    monkeypatch.delitem(ForkingPickler._extra_reducers, type({}.keys()), raising=False)

    (fact,) = find_unpicklable({"dataset": Holder(part=make())}, SPAWN)

    assert (fact.path, fact.kind) == ("dataset.part", kind)
    assert fact.defined == (None if defined is None else line_of(defined))


def test_an_open_file(tmp_path: Path) -> None:
    with open(tmp_path / "file", "w") as file:
        assert found(Holder(file=file)) == [("dataset.file", "an open file (io.TextIOWrapper)")]


def test_an_open_hdf5_file(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "file.h5", "w") as file:
        group = file.create_group("group")

        assert found(Holder(file=file, group=group)) == [
            ("dataset.file", "an open HDF5 object (h5py._hl.files.File)"),
            ("dataset.group", "an open HDF5 object (h5py._hl.group.Group)"),
        ]


def test_an_open_lmdb_environment(tmp_path: Path) -> None:
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(tmp_path / "lmdb")) as environment:
        ((path, kind),) = found(Holder(environment=environment))

    assert path == "dataset.environment"
    assert kind.startswith("an open LMDB object (")


def test_a_class_that_is_not_found_by_name_is_not_opened() -> None:
    assert [path for path, _ in found(Holder(part=local_class()()))] == ["dataset.part"]


def test_a_part_whose_own_method_refuses_is_told_itself() -> None:
    (fact,) = find_unpicklable({"dataset": Holder(part=StateRaises())}, SPAWN)

    assert fact.path == "dataset.part"
    assert fact.kind == f"a {__name__}.StateRaises object"
    assert fact.error == "ValueError: closed already"
    assert fact.defined == line_of("class StateRaises:")


def test_a_thread_of_the_users_own_class_is_named_by_what_refuses_in_it() -> None:
    paths = [path for path, _ in found(Holder(thread=OwnThread()))]

    assert paths
    assert all(path.startswith("dataset.thread.") for path in paths)


def test_a_tensor_that_needs_its_history_does_not_travel() -> None:
    (fact,) = find_unpicklable({"dataset": Holder(x=torch.ones(1, requires_grad=True) * 2)}, SPAWN)

    assert fact.path == "dataset.x"
    assert fact.error == (
        "RuntimeError: a non-leaf tensor that requires grad does not travel; detach() it"
    )


# Where it is ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (refuses, ""),
        (Holder(a=Holder(b=refuses)), ".a.b"),
        ({"a": refuses}, "['a']"),
        ({1: {(2, 3): refuses}}, "[1][(2, 3)]"),
        ({"k" * 50: refuses}, "['" + "k" * 36 + "...]"),
        ([0, [refuses]], "[1][0]"),
        ((0, (refuses,)), "[1][0]"),
        (Slots(1, refuses), ".second"),
        (Reduced(refuses), ".held"),
        (ReducedToOther(refuses), ".__reduce__()[1][1]"),
        (OwnState(refuses), ".held"),
        (ListState(refuses), ".__getstate__()[1]"),
        (NewArguments(refuses), ".held"),
        (Record(refuses), ".held"),
        (OwnList([0, refuses]), "[1]"),
        (OwnDict(a=refuses), "['a']"),
        (collections.deque([0, refuses]), "[1]"),
        (collections.OrderedDict(a=refuses), "['a']"),
        (collections.defaultdict(refuses), ".default_factory"),
        (collections.ChainMap({"a": refuses}), ".maps[0]['a']"),
        (functools.partial(module_level, 1, refuses), ".args[1]"),
        (functools.partial(module_level, k=refuses), ".keywords['k']"),
        (functools.partial(refuses, 1), ".func"),
        (Holder(a=refuses).collate, ".__self__.a"),
        (functools.partial(Holder(a=refuses).collate), ".func.__self__.a"),
        (Subset(Holder(a=refuses), [0]), ".dataset.a"),
        (ConcatDataset([[1], Holder(a=refuses)]), ".datasets[1].a"),
        (np.array([1, refuses], object), ".__getstate__()[4][1]"),
    ],
)
def test_the_path_leads_to_the_part_that_refuses(value: Any, path: str) -> None:
    assert found(value) == [(f"dataset{path}", "a lambda")]


def test_a_key_and_an_element_are_named_by_themselves() -> None:
    assert found({refuses: 1}) == [(f"dataset key {refuses!r}", "a lambda")]
    assert found({refuses}) == [(f"dataset element {refuses!r}", "a lambda")]


def test_what_the_loader_carries_is_named_by_its_argument() -> None:
    roots = {
        "dataset": Holder(),
        "loader": {"collate_fn": Holder(lock=threading.Lock()).collate, "worker_init_fn": refuses},
    }

    assert [fact.path for fact in find_unpicklable(roots, SPAWN)] == [
        "loader.collate_fn.__self__.lock",
        "loader.worker_init_fn",
    ]


def test_several_parts_are_found_at_once() -> None:
    value = Holder(
        steps=[module_level, refuses, Holder(lock=threading.Lock())],
        good={"a": 1},
        deep={"x": {"y": [local_function()]}},
    )

    assert [path for path, _ in found(value)] == [
        "dataset.steps[1]",
        "dataset.steps[2].lock",
        "dataset.deep['x']['y'][0]",
    ]


@given(st.sets(st.integers(0, 199), max_size=8))
def test_every_refusing_item_of_a_long_list_is_found(places: set[int]) -> None:
    items = [threading.Lock() if n in places else n for n in range(200)]

    assert [path for path, _ in found(items)] == [f"dataset[{n}]" for n in sorted(places)]


def test_the_same_object_is_told_once() -> None:
    assert found(Holder(a=refuses, b=[refuses])) == [("dataset.a", "a lambda")]


def test_fifty_are_enough() -> None:
    assert len(found([threading.Lock() for _ in range(60)])) == 50


def test_a_cycle_comes_to_an_end() -> None:
    value = Holder(lock=threading.Lock())
    value.me = [value]

    assert [path for path, _ in found(value)] == ["dataset.lock"]


def test_what_lies_very_deep_is_not_passed_over() -> None:
    value: Any = refuses
    for _ in range(80):
        value = [value]

    assert found(value) == [("dataset" + "[0]" * 60, "a list object")]


# multiprocessing's own -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Lock", "Event", "Queue", "Value", "Array", "Barrier"])
def test_objects_of_the_start_methods_own_context_travel(name: str) -> None:
    arguments = {"Value": ("i", 0), "Array": ("i", 3), "Barrier": (2,)}.get(name, ())
    value = getattr(SPAWN, name)(*arguments)
    with pytest.raises(RuntimeError):
        pickle.dumps(value)

    assert find_unpicklable({"dataset": Holder(shared=value)}, SPAWN) == ()
    assert weigh({"dataset": Holder(shared=value)}, SPAWN) is not None


@needs_fork
@pytest.mark.parametrize("name", ["Value", "Lock", "Queue"])
def test_objects_of_the_fork_context_are_bound_to_it(name: str) -> None:
    fork = multiprocessing.get_context("fork")
    value = getattr(fork, name)(*(("i", 0) if name == "Value" else ()))

    (fact,) = find_unpicklable({"dataset": Holder(shared=value)}, SPAWN)

    assert fact.path == "dataset.shared"
    assert fact.context
    assert fact.kind == (
        f"a multiprocessing object ({type(value).__module__}.{type(value).__qualname__})"
    )
    assert fact.remedy == (
        "make it with multiprocessing.get_context(method) of the loader's own start method"
    )


def test_a_socket_travels_to_a_started_process() -> None:
    with socket.socket() as value:
        assert find_unpicklable({"dataset": Holder(socket=value)}, SPAWN) == ()
        assert value.fileno() >= 0


# Looking changes nothing ---------------------------------------------------------------------


def test_tensors_stay_where_they_are() -> None:
    plain = torch.ones(1000)
    parameter = torch.nn.Parameter(torch.ones(3))
    value = Holder(plain=plain, parameter=parameter, storage=plain.untyped_storage(), bad=refuses)

    assert [path for path, _ in found(value)] == ["dataset.bad"]
    del value.bad
    assert weigh({"dataset": value}, SPAWN) is not None
    assert not plain.is_shared()
    assert not parameter.is_shared()


def test_files_stay_at_their_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    memory = io.BytesIO(b"0123456789")
    with open(tmp_path / "file", "rb") as file:
        for stream in (file, memory):
            stream.read(3)
        generator = iter(n for n in range(3))
        next(generator)

        assert len(found(Holder(file=file, memory=memory, generator=generator))) == 2
        assert (file.tell(), memory.tell()) == (3, 3)
        assert list(generator) == [1, 2]


@pytest.mark.parametrize("part", [1, refuses])
def test_the_state_of_multiprocessing_is_given_back(part: Any) -> None:
    find_unpicklable({"dataset": Holder(part=part)}, SPAWN)
    weigh({"dataset": Holder(part=part)}, SPAWN)

    assert get_spawning_popen() is None


# Weight --------------------------------------------------------------------------------------


def test_what_does_not_travel_has_no_weight() -> None:
    assert weigh({"dataset": Holder(part=refuses)}, SPAWN) is None
    assert weigh({"dataset": 1, "loader": {"collate_fn": refuses}}, SPAWN) is None


def test_bytes_weigh_what_their_pickle_weighs() -> None:
    value = Holder(data=b"x" * 1000)
    travel = weigh({"dataset": value}, SPAWN)

    assert travel is not None
    assert 1000 < travel.bytes < 1200
    assert travel.heaviest == ()


def test_tensors_weigh_a_handle_and_arrays_all_their_bytes() -> None:
    tensors = weigh({"dataset": Holder(x=torch.ones(1_000_000))}, SPAWN)
    arrays = weigh({"dataset": Holder(x=np.ones(1000))}, SPAWN)

    assert tensors is not None
    assert tensors.bytes < 1000
    assert arrays is not None
    assert 8000 < arrays.bytes < 8500


def test_the_heaviest_parts_are_named_heaviest_first() -> None:
    value = Holder(small=b"", middle=b"x" * 1000, large=np.zeros(40_000), tensor=torch.ones(9))
    value.other = [1, 2]
    value.another = "y" * 500
    roots = {"dataset": value, "loader": {"collate_fn": module_level}}

    travel = weigh(roots, SPAWN)

    assert travel is not None
    assert [path for path, _ in travel.heaviest][:3] == [
        "dataset.large",
        "dataset.middle",
        "dataset.another",
    ]
    assert len(travel.heaviest) == 5
    assert 320_000 < travel.heaviest[0][1] < 320_200
    assert travel.bytes > sum(size for _, size in travel.heaviest[:2])


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (Subset(Holder(x=np.zeros(40_000)), [0]), "dataset.dataset.x"),
        (Holder(parts={"a": [np.zeros(40_000)], "b": b"x"}), "dataset.parts['a'][0]"),
        (Holder(halves={"a": np.zeros(40_000), "b": np.zeros(40_000)}), "dataset.halves"),
        (Holder(of_a_library=io.BytesIO(b"x" * 300_000)), "dataset.of_a_library"),
        (Holder(text="x" * 300_000), "dataset.text"),
        (Holder(state=ListState(b"x" * 300_000)), "dataset.state"),
        (Holder(many=list(range(100_000, 200_000))), "dataset.many"),
    ],
)
def test_the_heaviest_part_is_looked_for_inside(value: Any, path: str) -> None:
    travel = weigh({"dataset": value}, SPAWN)

    assert travel is not None
    assert travel.heaviest[0][0] == path


def test_the_modules_of_what_travels_by_name_are_kept() -> None:
    travel = weigh({"dataset": Holder(f=module_level)}, SPAWN)

    assert travel is not None
    assert __name__ in travel.modules


# Where it is defined -------------------------------------------------------------------------


def iterate() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (module_level, "def module_level() -> None:"),
        (Slots, "class Slots:"),
        (Slots(1, 2), "class Slots:"),
        (wrapped(module_level), "@functools.wraps(function)"),
    ],
)
def test_where_the_users_things_are_defined(value: Any, line: str) -> None:
    assert defined_at(value) == line_of(line)


@pytest.mark.parametrize("value", [threading.Lock(), collections.OrderedDict, iterate()])
def test_where_other_things_are_defined_is_not_said(value: Any) -> None:
    assert defined_at(value) is None
