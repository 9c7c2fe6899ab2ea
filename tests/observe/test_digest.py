"""Digests: the same for the same content, different for what differs, honest about the rest."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import functools
import pathlib
import struct
import subprocess
import sys
import threading
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import assume, given, strategies as st
from PIL import Image

from pytest_dataloader.observe.digest import RunningDigest, digest, kind_of, leaves, preview

atoms = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary()
)
values = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner), st.tuples(inner, inner), st.dictionaries(st.text(), inner)
    ),
    max_leaves=12,
)
DTYPES = [torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8, torch.bool]


class Pair(NamedTuple):
    left: Any
    right: Any


class OtherPair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass
class Sample:
    image: Any
    label: int = 0


@dataclasses.dataclass
class OtherSample:
    image: Any
    label: int = 0


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Access(enum.IntFlag):
    READ = 1
    WRITE = 2


class Thing:
    def __init__(self, content: Any) -> None:
        self.content = content


class Slotted:
    __slots__ = ("content",)

    def __init__(self, content: Any) -> None:
        self.content = content


class OwnInt(int):
    pass


class Awkward(dict):  # type: ignore[type-arg]
    def items(self) -> Any:
        raise RuntimeError("not now")


def of(value: Any) -> str:
    found = digest(value)
    assert found.not_compared == ()
    return found.hex


def record(dtype: Any) -> Any:
    return np.array([(1, 2), (3, 4)], dtype=[("a", "i4"), ("b", "i2")]).astype(dtype)


def palette_image(first: int) -> Any:
    image = Image.new("P", (2, 2))
    image.putpalette([first, 0, 0, 9, 9, 9])
    return image


@given(values)
def test_a_digest_is_of_the_content_not_the_object(value: Any) -> None:
    rebuilt = eval(repr(value), {"inf": float("inf")})

    assert of(value) == of(rebuilt)
    assert len(of(value)) == 32


def strict(value: Any) -> Any:
    """A form that compares as content does: by type, bits and order."""
    if isinstance(value, dict):
        return "dict", [(strict(k), strict(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [strict(item) for item in value]
    if isinstance(value, float):
        return "float", struct.pack("<d", value)
    return type(value).__name__, value


@given(values, values)
def test_different_content_has_different_digests(one: Any, other: Any) -> None:
    assert (of(one) == of(other)) == (strict(one) == strict(other))


@given(st.lists(st.integers(), min_size=2, unique=True), st.randoms())
def test_the_order_counts_in_lists_and_dicts_but_not_in_sets(items: list[int], random: Any) -> None:
    shuffled = items[:]
    random.shuffle(shuffled)
    assume(shuffled != items)

    assert of(items) != of(shuffled)
    assert of(dict.fromkeys(items)) != of(dict.fromkeys(shuffled))
    assert of(set(items)) == of(set(shuffled))
    assert of(frozenset(items)) == of(frozenset(shuffled))


@given(
    st.lists(st.integers(0, 1), min_size=6, max_size=6),
    st.sampled_from(DTYPES),
    st.sampled_from(DTYPES),
    st.sampled_from([(6,), (2, 3), (3, 2), (1, 6)]),
    st.sampled_from([(6,), (2, 3), (3, 2), (1, 6)]),
)
def test_tensors_differ_by_type_shape_and_bits(
    bits: list[int], one_type: Any, other_type: Any, one_shape: Any, other_shape: Any
) -> None:
    one = torch.tensor(bits).to(one_type).reshape(one_shape)
    other = torch.tensor(bits).to(other_type).reshape(other_shape)

    assert (of(one) == of(other)) == ((one_type, one_shape) == (other_type, other_shape))
    flipped = one.clone()
    flipped.view(-1)[0] = 1 - bits[0]
    assert of(flipped) != of(one)


@pytest.mark.parametrize(
    ("one", "same"),
    [
        (torch.arange(6).reshape(2, 3).t(), torch.arange(6).reshape(2, 3).t().contiguous()),
        (torch.arange(8)[::2], torch.tensor([0, 2, 4, 6])),
        (torch.tensor([1 + 2j]).conj(), torch.tensor([1 - 2j])),
        (torch.ones(2, requires_grad=True), torch.ones(2)),
        (torch.eye(3).to_sparse(), torch.eye(3).to_sparse()),
        (torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16)),
        (np.arange(6).reshape(2, 3).T, np.arange(6).reshape(2, 3).T.copy()),
        (np.arange(3, dtype=">i4"), np.arange(3, dtype="<i4")),
        (record([("a", "<i4"), ("b", "<i2")]), record([("a", ">i4"), ("b", ">i2")])),
        (
            record([("a", "i4"), ("b", "i2")]),
            record(np.dtype([("a", "i4"), ("b", "i2")], align=True)),
        ),
        (np.array([1, "a"], object), np.array([1, "a"], object)),
        (np.array(["a", "bc"]), np.array(["a", "bc"])),
        (float("nan"), float("nan")),
        (pathlib.PureWindowsPath("a\\b"), pathlib.PurePosixPath("a/b")),
        (collections.deque([1, 2]), collections.deque([1, 2])),
        (collections.Counter("ab"), collections.Counter("ab")),
        (decimal.Decimal("1.0"), decimal.Decimal("1.0")),
        (dt.date(2020, 1, 1), dt.date(2020, 1, 1)),
        (range(3), range(3)),
        (Thing([1]), Thing([1])),
        (Slotted([1]), Slotted([1])),
        (functools.partial(int, "1"), functools.partial(int, "1")),
        (palette_image(1), palette_image(1)),
        (Access.READ | Access.WRITE, Access.WRITE | Access.READ),
    ],
)
def test_the_same_content(one: Any, same: Any) -> None:
    assert of(one) == of(same)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0.0, -0.0),
        (1, True),
        (1, 1.0),
        ("1", b"1"),
        (b"1", bytearray(b"1")),
        (1, OwnInt(1)),
        (OwnInt(1), OwnInt(2)),
        ([1], (1,)),
        ({1}, frozenset({1})),
        ([[], [1]], [[1], []]),
        ([[1], [2]], [[1, [2]]]),
        (["ab", "c"], ["a", "bc"]),
        (Pair(1, 2), (1, 2)),
        (Pair(1, 2), OtherPair(1, 2)),
        (Sample(1), Sample(2)),
        (Sample(1), OtherSample(1)),
        (Color.RED, Color.BLUE),
        (Access.READ | Access.WRITE, Access.READ),
        (Access(8), Access(16)),
        (Thing(1), Thing(2)),
        (Thing(1), Slotted(1)),
        (Slotted(1), Slotted(2)),
        (collections.OrderedDict(a=1), {"a": 1}),
        (pathlib.PurePath("a"), "a"),
        (len, repr),
        (Thing, Slotted),
        (range(3), range(4)),
        (functools.partial(int, "1"), functools.partial(float, "1")),
        (torch.ones(2), np.ones(2, np.float32)),
        (torch.ones(2), torch.nn.Parameter(torch.ones(2))),
        (torch.tensor(1.0), torch.tensor([1.0])),
        (torch.ones(0, 3), torch.ones(3, 0)),
        (torch.eye(3).to_sparse(), torch.eye(3)),
        (torch.eye(3).to_sparse(), 2 * torch.eye(3).to_sparse()),
        (np.array([1, "a"], object), np.array([1, "b"], object)),
        (record([("a", "i4"), ("b", "i2")]), record([("a", "i4"), ("b", "u2")])),
        (np.zeros(2, [("a", "i4")]), np.zeros(2, [("a", "f4")])),
        (np.zeros(2, "M8[D]"), np.zeros(2, "M8[s]")),
        (Image.new("L", (2, 3)), Image.new("L", (3, 2))),
        (Image.new("L", (2, 2)), Image.new("L", (2, 2), 1)),
        (Image.new("RGB", (2, 2)), Image.new("YCbCr", (2, 2))),
        (palette_image(1), palette_image(2)),
    ],
)
def test_different_content(one: Any, other: Any) -> None:
    assert of(one) != of(other)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_digested_by_their_parts(layout: Any) -> None:
    def nested(*parts: Any) -> Any:
        return torch.nested.nested_tensor(list(parts), layout=layout)

    one = nested(torch.ones(2), torch.ones(3))

    assert of(one) == of(nested(torch.ones(2), torch.ones(3)))
    assert of(one) != of(nested(torch.ones(2), torch.zeros(3)))
    assert of(one) != of(nested(torch.ones(3), torch.ones(2)))
    assert kind_of(one) == "float32 nested tensor of 2"
    told = "torch.jagged" if layout == torch.jagged else "<RuntimeError on reading it>"
    assert preview(one) == told


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="needs NumPy 2")
def test_arrays_of_strings_of_any_length_are_digested() -> None:
    dtype = np.dtypes.StringDType()

    assert of(np.array(["a" * 99], dtype)) == of(np.array(["a" * 99], dtype))
    assert of(np.array(["a" * 99], dtype)) != of(np.array(["b" * 99], dtype))


def test_a_digest_does_not_depend_on_the_process() -> None:
    code = (
        "import numpy, torch\n"
        "from pytest_dataloader.observe.digest import digest\n"
        "value = {'a': {'x', 'y', 'z'}, 'b': [torch.arange(3), numpy.ones(2), 1.5, None]}\n"
        "print(digest(value).hex)\n"
    )
    value = {"a": {"x", "y", "z"}, "b": [torch.arange(3), np.ones(2), 1.5, None]}

    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert other.stdout.strip() == of(value)


def test_a_digest_is_the_same_in_every_release() -> None:
    value = {"image": torch.tensor([[1.0, 2.0]]), "label": np.int64(3), "name": "é", "set": {2, 1}}

    assert of(value) == "7bb45d0f4137a98ff27a705e8a60087d"


def test_a_digest_of_plain_values_is_the_same_in_every_release() -> None:
    value = [{"text": "é", "start": 2**70, "score": 0.1}, (None, True, 1 + 2j), [b"\0", -1]]

    assert of(value) == "85a9bc13ef587b65eb89a95d47edf872"


def test_strings_and_numbers_are_the_same_however_often_they_are_held() -> None:
    word = "".join(iter("ab"))
    number = int("1" * 30)

    assert of([word, word, number, number]) == of(["ab", "".join("ab"), number, int("1" * 30)])
    assert of([sys.intern("ab")]) == of(["".join("ab")])


@pytest.mark.parametrize("value", [[1, 1.0, True, "1", b"1"], (0.0, -0.0), [None, False, 0, ""]])
def test_equal_values_of_other_types_are_other_content(value: Any) -> None:
    assert len({of([v]) for v in value}) == len({of({0: v}) for v in value}) == len(value)


class Slotted:
    __slots__ = ("start", "word")

    def __init__(self, word: Any, start: Any) -> None:
        self.word, self.start = word, start


class AlsoSlotted(Slotted):
    __slots__ = ()


class Open:
    def __init__(self, word: Any, start: Any) -> None:
        self.word, self.start = word, start


class Counted(Open):
    def __getstate__(self) -> Any:
        return {"word": self.word}


@dataclasses.dataclass
class Record:
    word: Any
    start: Any


@pytest.mark.parametrize("kind", [Slotted, Open, Record])
def test_many_objects_of_a_class_are_told_apart_by_what_they_hold(kind: Any) -> None:
    def made(*pairs: Any) -> str:
        return of([kind(*pair) for pair in pairs])

    usual = made(("a", 1), ("b", 2))
    others = [
        made(("a", 1), ("b", 3)),
        made(("b", 2), ("a", 1)),
        made(("a", 1)),
        made(("a", 1), ("b", 2.0)),
        made(("a", 1), ("b", True)),
        made(("a", 1), ("b", [2])),
        of((kind("a", 1), kind("b", 2))),
        of([AlsoSlotted("a", 1), AlsoSlotted("b", 2)]),
        of([kind("a", 1), Slotted("b", 2) if kind is not Slotted else Open("b", 2)]),
    ]
    assert usual == made(("".join("a"), 1), ("b", 2))
    assert len({usual, *others}) == 1 + len(others)
    assert made(("a", torch.ones(2))) != made(("a", torch.zeros(2)))


def test_objects_with_a_slot_that_is_not_filled() -> None:
    bare = Slotted.__new__(Slotted)
    assert of([bare]) == of([Slotted.__new__(Slotted)]) != of([Slotted(None, None)])


def test_objects_whose_class_pickles_them_in_its_own_way_go_by_what_it_says() -> None:
    assert of([Counted("a", 1)]) == of([Counted("a", 2)]) != of([Counted("b", 1)])


def test_objects_with_a_part_in_c_are_not_taken_by_their_fields_alone() -> None:
    class Words(collections.deque[str]):
        __slots__ = ("language",)

    one, other = Words(["a"]), Words(["b"])
    one.language = other.language = "en"
    assert of([one]) != of([other])


def test_numbers_too_long_to_print_are_digested() -> None:
    assert of(10**5000) == of(10**5000)
    assert of(10**5000) != of(10**5000 + 1)


def test_a_cycle_comes_to_an_end() -> None:
    one: list[Any] = [1]
    one.append(one)
    other: list[Any] = [2]
    other.append(other)

    assert of(one) != of(other)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (threading.Lock(), "_thread.lock"),
        (lambda: 0, "builtins.function"),
        ((n for n in ()), "builtins.generator"),
        (torch.ones(2, device="meta"), "torch.Tensor on the meta device"),
        (Awkward(a=1), f"{__name__}.Awkward"),
    ],
)
def test_what_has_no_content_is_not_compared(value: Any, name: str) -> None:
    for around in (value, [value], {"a": value}, Thing(value), Sample(value)):
        assert digest(around).not_compared == (name,)
    assert digest({1, Thing(value)}).not_compared == (name,)


def test_what_can_be_compared_beside_it_is() -> None:
    assert digest([threading.Lock(), 1]).hex != digest([threading.Lock(), 2]).hex
    assert digest([threading.Lock(), 1]).hex == digest([threading.Lock(), 1]).hex


def test_what_lies_too_deep_is_said_not_to_be_compared() -> None:
    deep: Any = "bottom"
    for _ in range(300):
        deep = [deep]

    assert digest(deep).not_compared == ("builtins.list below 200 levels",)


# A stream ------------------------------------------------------------------------------------

digests = st.lists(st.integers(0, 2**128 - 1).map(lambda n: f"{n:032x}"), max_size=8)


def running(parts: list[str]) -> RunningDigest:
    found = RunningDigest()
    for part in parts:
        found.add(part)
    return found


@given(digests, st.randoms())
def test_the_multiset_does_not_depend_on_the_order(parts: list[str], random: Any) -> None:
    shuffled = parts[:]
    random.shuffle(shuffled)

    assert running(parts).multiset == running(shuffled).multiset
    assert (running(parts).ordered == running(shuffled).ordered) == (parts == shuffled)


@given(digests, st.integers(1, 2**128 - 1).map(lambda n: f"{n:032x}"))
def test_one_more_batch_changes_both(parts: list[str], more: str) -> None:
    assert running([*parts, more]).multiset != running(parts).multiset
    assert running([*parts, more]).ordered != running(parts).ordered


def test_a_batch_that_comes_twice_counts_twice() -> None:
    part = of(1)

    assert running([part]).multiset != running([part, part]).multiset


# Leaves --------------------------------------------------------------------------------------


def test_leaves_are_named_by_their_paths() -> None:
    batch = {"x": [torch.tensor([1.0, 2.5]), 3], "y": Pair("a", Sample(np.arange(9)))}

    assert [(leaf.path, leaf.kind, leaf.preview) for leaf in leaves(batch)] == [
        ("batch['x'][0]", "float32 tensor of shape [2]", "[1, 2.5]"),
        ("batch['x'][1]", "int", "3"),
        ("batch['y'].left", "str", "'a'"),
        ("batch['y'].right.image", "int64 array of shape [9]", "[0, 1, 2, 3, 4, 5, ...]"),
        ("batch['y'].right.label", "int", "0"),
    ]


def test_a_leafs_digest_is_its_own() -> None:
    (leaf,) = leaves([torch.ones(2)], path="b")

    assert (leaf.path, leaf.digest) == ("b[0]", of(torch.ones(2)))


def test_only_the_first_leaves_are_kept() -> None:
    assert [leaf.path for leaf in leaves(list(range(9)), limit=2)] == ["batch[0]", "batch[1]"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.tensor([[1 / 3, 2.0]]), "[0.333333, 2]"),
        (torch.tensor([True]), "[True]"),
        (torch.eye(2).to_sparse(), "torch.sparse_coo"),
        ("a" * 99, "'" + "a" * 12 + "..." + "a" * 13 + "'"),
        (None, "None"),
    ],
)
def test_previews_are_short(value: Any, text: str) -> None:
    assert preview(value) == text


class Unreadable:
    def __repr__(self) -> str:
        raise LookupError("no")


def test_an_image_is_told_by_its_size_and_pixels() -> None:
    image = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))

    assert kind_of(image) == "RGB image of size [4, 4]"
    assert preview(image) == "[0, 1, 2, 3, 4, 5, ...]"


def test_a_preview_of_what_cannot_be_read_says_so() -> None:
    assert preview(Unreadable()).startswith("<Unreadable instance at 0x")
    assert kind_of(Unreadable()) == "Unreadable"
