"""Digests of content: the same for the same values on every OS, in every process."""

from __future__ import annotations

import copyreg
import ctypes
import dataclasses
import enum
import functools
import itertools
import marshal
import operator
import pathlib
import reprlib
import struct
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import xxhash

from pytest_dataloader.observe.facts import LeafFacts

_PREVIEW_VALUES = 6
_MAX_DEPTH = 200
_MOST_LEAVES = 64
_LARGE_STORAGE = 2**20
_MUCH_LARGER = 8
_BLOCK_BYTES = 1 << 20


@dataclasses.dataclass
class Digest:
    """The digest of one value: 128 bits as hex, and the types inside it that were not compared."""

    hex: str
    not_compared: tuple[str, ...] = ()


def digest(value: Any) -> Digest:
    """Digest ``value`` by content: tensors and arrays by dtype, shape and bytes (little-endian).

    Containers, dataclasses, named tuples, paths and Pillow images go by value; sets without
    their order; any other object by its class and the state that it would be pickled with.
    What has no such state is left out and named in ``not_compared``.
    """
    walk = Walk(xxhash.xxh3_128())
    walk.feed(value, 0)
    return Digest(walk.hasher.hexdigest(), tuple(sorted(walk.not_compared)))


class RunningDigest:
    """An ordered digest and an unordered one over a stream of batches, in constant memory."""

    def __init__(self) -> None:
        self._ordered = xxhash.xxh3_128()
        self._sum = 0

    def add(self, hexdigest: str) -> None:
        """Take in one batch's digest."""
        self._ordered.update(bytes.fromhex(hexdigest))
        self._sum = (self._sum + int(hexdigest, 16)) % (1 << 128)

    @property
    def ordered(self) -> str:
        """Depends on the order of the batches."""
        return self._ordered.hexdigest()

    @property
    def multiset(self) -> str:
        """Does not depend on the order of the batches."""
        return f"{self._sum:032x}"


def leaves(value: Any, path: str = "batch", limit: int = 64) -> tuple[LeafFacts, ...]:
    """The first ``limit`` leaves of a batch with their paths, digests and first values."""
    found: list[LeafFacts] = []
    for leaf_path, leaf in _leaves(value, path, 0):
        if len(found) == limit:
            break
        found.append(LeafFacts(leaf_path, kind_of(leaf), digest(leaf).hex, preview(leaf)))
    return tuple(found)


def oversized(value: Any, path: str = "batch") -> Iterator[tuple[str, int, int]]:
    """Tensors of a batch that keep a storage eight times their values and over 1 MiB alive."""
    for leaf_path, leaf in itertools.islice(_leaves(value, path, 0), _MOST_LEAVES):
        if not _is_tensor(leaf) or leaf.layout != _torch().strided or leaf.device.type == "meta":
            continue
        values, storage = leaf.numel() * leaf.element_size(), leaf.untyped_storage().nbytes()
        if storage >= _LARGE_STORAGE and storage >= _MUCH_LARGER * max(values, 1):
            yield leaf_path, values, storage


def kind_of(value: Any) -> str:
    """A short type for people: ``float32 tensor of shape [2, 3]``, or the class's name."""
    if _is_tensor(value):
        dtype = str(value.dtype).removeprefix("torch.")
        if value.is_nested:
            return f"{dtype} nested tensor of {value.size(0)}"
        return f"{dtype} tensor of shape {list(value.shape)}"
    if _is_array(value):
        return f"{value.dtype} array of shape {list(value.shape)}"
    if _is_image(value):
        return f"{value.mode} image of size {list(value.size)}"
    return type(value).__qualname__


def preview(value: Any) -> str:
    """The first values of a leaf, on one short line."""
    try:
        if _is_tensor(value):
            if value.layout != _torch().strided:
                return str(value.layout)
            return _listed(value.detach().reshape(-1)[:_PREVIEW_VALUES].tolist(), value.numel())
        if _is_array(value):
            return _listed(value.reshape(-1)[:_PREVIEW_VALUES].tolist(), value.size)
        if _is_image(value):
            pixels = value.tobytes()
            return _listed(list(pixels[:_PREVIEW_VALUES]), len(pixels))
        text = reprlib.repr(value)
    except Exception as error:  # noqa: BLE001 - a user's __repr__ may raise anything
        return f"<{type(error).__name__} on reading it>"
    return text if len(text) <= 60 else text[:57] + "..."


def _listed(values: list[Any], count: int) -> str:
    shown = ", ".join(f"{v:.6g}" if isinstance(v, float) else str(v) for v in values)
    return f"[{shown}{', ...' if count > len(values) else ''}]"


def _leaves(value: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{path}[{key!r}]", depth + 1)
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for name in value._fields:
            yield from _leaves(getattr(value, name), f"{path}.{name}", depth + 1)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}[{index}]", depth + 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            if hasattr(value, field.name):
                yield from _leaves(getattr(value, field.name), f"{path}.{field.name}", depth + 1)
    else:
        yield path, value


def _torch() -> Any:
    return sys.modules["torch"]


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic))


def _is_image(value: Any) -> bool:
    image = sys.modules.get("PIL.Image")
    return image is not None and isinstance(value, image.Image)


class Walk:
    """One walk over a value that feeds a hasher; every part is framed by a tag and a length."""

    #: Whether each part is fed by itself, for a walk that stops after so many.
    counts_parts = False

    def __init__(self, hasher: Any) -> None:
        self.hasher = hasher
        self.not_compared: set[str] = set()
        self._above: set[int] = set()

    def fresh(self) -> Walk:
        """A walk of the same kind, for the parts of what has no order."""
        return Walk(xxhash.xxh3_128())

    def feed(self, value: Any, depth: int) -> None:
        """Feed a value."""
        leaf = _ATOMS.get(type(value))
        if leaf is not None:
            self.hasher.update(leaf(value))
            return
        if depth > _MAX_DEPTH:
            self.leave_out(f"{_type_name(value)} below {_MAX_DEPTH} levels")
            return
        if id(value) in self._above:
            self.tag("again", type(value).__qualname__)
            return
        self._above.add(id(value))
        try:
            if not self._at_once(value):
                self._composite(value, depth + 1)
        finally:
            self._above.discard(id(value))

    def _at_once(self, value: Any) -> bool:
        """Feed a list, tuple or dict of nothing but atoms in one go; whether it was one."""
        kind = type(value)
        if kind not in _OPENED or self.counts_parts:
            return False
        if not _MARSHALLED.issuperset(map(type, value)):
            return kind is not dict and self._rows_at_once(value)
        if kind is dict and not _MARSHALLED.issuperset(map(type, value.values())):
            return False
        # Of these types version 2 writes the values alone: no references, no interned strings.
        data = marshal.dumps(value, 2)
        self.hasher.update(b"\x00%b:%d;" % (_OPENED[kind], len(data)))
        self.hasher.update(data)
        return True

    def _rows_at_once(self, values: Any) -> bool:
        """Feed objects of one class, each of which holds nothing but atoms; whether they were."""
        kinds = set(map(type, values))
        kind: Any = kinds.pop()
        fields = None if kinds else _fields_at_once(kind)
        if fields is None:
            return False
        try:
            rows: list[Any] = list(map(operator.attrgetter(*fields) if fields else vars, values))
        except AttributeError:  # a slot that is not filled
            return False
        if len(fields) == 1:
            inner: Any = rows
        elif fields:
            inner = itertools.chain.from_iterable(rows)
        else:
            inner = (part for row in rows for pair in row.items() for part in pair)
        if not _MARSHALLED.issuperset(map(type, inner)):
            return False
        data = marshal.dumps(rows, 2)
        self.tag("rows", type(values).__name__, kind.__module__, kind.__qualname__, fields)
        self.hasher.update(b"%d;" % len(data))
        self.hasher.update(data)
        return True

    def leave_out(self, what: str) -> None:
        """Note that something has no content to compare."""
        self.not_compared.add(what)
        self.tag("not compared", what)

    def tag(self, kind: str, *details: Any) -> None:
        """Feed the frame of what follows."""
        self.hasher.update(f"\x00{kind}:{details!r};".encode("utf-8", "surrogatepass"))

    def _composite(self, value: Any, depth: int) -> None:
        kind: Any = type(value)
        if _is_plain(kind):
            self.describe(value, depth)
            return
        for matches, feed in _KINDS:
            if matches(value):
                try:
                    feed(self, value, depth)
                except Exception:  # noqa: BLE001 - an exotic value must not end the user's run
                    self.leave_out(_type_name(value))
                return
        self.describe(value, depth)

    def describe(self, value: Any, depth: int) -> None:
        """Feed an object of another kind: its class and the state it would be pickled with."""
        try:
            reduced = value.__reduce_ex__(4)
        except Exception:  # noqa: BLE001 - a user's __getstate__ may raise anything
            self.leave_out(_type_name(value))
            return
        if isinstance(reduced, str):
            self.tag("global", _type_name(value), reduced)
            return
        _, args, state, items, pairs = (*reduced, None, None, None)[:5]
        kind: Any = type(value)
        self.hasher.update(_object_tag(kind))
        given = [a for a in args if not isinstance(a, type)]
        if given:
            self.tag("arguments")
            self.feed(given, depth)
        if type(state) is tuple and len(state) == 2 and state[0] is None:
            state = state[1]  # of a class with slots alone
        self.feed(state, depth)
        if items is not None:
            self.tag("items")
            self.feed(list(items), depth)
        if pairs is not None:
            self.tag("pairs")
            self.feed(dict(pairs), depth)


_OPENED: dict[Any, bytes] = {list: b"list", tuple: b"tuple", dict: b"dict"}
_MARSHALLED = frozenset({type(None), bool, int, float, complex, str, bytes})


class _Plain:
    """A class that adds nothing to what every object with a ``__dict__`` has."""


_OF_THEIR_OWN = frozenset(
    {"__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__"}
    | {"__getnewargs_ex__", "__getattr__", "__getattribute__", "__dict__"}
)


@functools.lru_cache(maxsize=256)
def _fields_at_once(kind: type) -> tuple[str, ...] | None:
    """The fields that are all that objects of a class hold; empty for those of a ``__dict__``.

    None where the class does not say so itself: for what pickles in a way of its own, and for
    what has a part in C.
    """
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind)) or None
    if not _is_plain(kind) or kind in copyreg.dispatch_table:
        return None
    classes = kind.__mro__[:-1]
    if not kind.__dictoffset__ and all("__slots__" in vars(k) for k in classes):
        slots = (vars(k)["__slots__"] for k in classes)
        names = [n for some in slots for n in ((some,) if isinstance(some, str) else some)]
        own = any(_OF_THEIR_OWN & vars(k).keys() for k in classes)
        return tuple(names) if names and not own and not _hidden(names) else None
    own = any(_OF_THEIR_OWN - {"__dict__"} & vars(k).keys() for k in classes)
    return () if kind.__basicsize__ == _Plain.__basicsize__ and not own else None


def _hidden(names: list[str]) -> bool:
    return any(name.startswith("__") for name in names)


@functools.lru_cache(maxsize=256)
def _object_tag(kind: type) -> bytes:
    return f"\x00object:{kind.__module__}.{kind.__qualname__};".encode("utf-8", "surrogatepass")


@functools.lru_cache(maxsize=256)
def _is_plain(kind: type) -> bool:
    """Whether objects of a class are of none of the kinds below, whatever their value."""
    bases = (list, tuple, dict, set, frozenset, enum.Enum, pathlib.PurePath, int, float, str, bytes)
    if issubclass(kind, (*bases, type, types.FunctionType, types.BuiltinFunctionType)):
        return False
    libraries = ("torch", "numpy", "PIL")
    if any(base.__module__.partition(".")[0] in libraries for base in kind.__mro__):
        return False
    return not dataclasses.is_dataclass(kind)


def _type_name(value: Any) -> str:
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def _framed(tag: bytes, data: bytes) -> bytes:
    return tag + struct.pack("<Q", len(data)) + data


def _text(value: str) -> bytes:
    return _framed(b"s", value.encode("utf-8", "surrogatepass"))


_ATOMS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda v: b"N;",
    bool: lambda v: b"T;" if v else b"F;",
    # In hexadecimal: Python refuses to write very long numbers in decimal.
    int: lambda v: _framed(b"i", f"{v:x}".encode()),
    float: lambda v: b"f" + struct.pack("<d", v),
    complex: lambda v: b"c" + struct.pack("<dd", v.real, v.imag),
    str: _text,
    bytes: lambda v: _framed(b"b", v),
    bytearray: lambda v: _framed(b"B", bytes(v)),
}


def _feed_tensor(walk: Walk, value: Any, depth: int) -> None:
    torch = _torch()
    data = value.detach() if value.requires_grad else value
    kind = type(value).__qualname__
    if data.is_nested:
        walk.tag("nested", kind)
        walk.feed(list(data.unbind()), depth)
        return
    if data.is_quantized:
        walk.tag("quantized", str(data.qscheme()))
        walk.feed([data.int_repr(), data.dequantize()], depth)
        return
    if data.layout != torch.strided:
        walk.tag("layout", str(data.layout))
        data = data.to_dense()
    if data.is_meta:
        walk.leave_out("torch.Tensor on the meta device")
        return
    if not data.is_cpu or data.is_conj() or data.is_neg():
        data = data.cpu().resolve_conj().resolve_neg()
    walk.tag(kind, str(data.dtype), tuple(data.shape))
    for block in (data,) if data.is_contiguous() else _contiguous_blocks(data):
        count = block.nbytes
        if count:
            walk.hasher.update((ctypes.c_char * count).from_address(block.data_ptr()))


def _contiguous_blocks(data: Any) -> Iterator[Any]:
    """A strided tensor's content in order, copied a piece at a time: that stays in the cache."""
    if data.dim() == 0 or data.nbytes <= _BLOCK_BYTES:
        yield data.contiguous()
        return
    rows = max(1, _BLOCK_BYTES * len(data) // data.nbytes)
    for block in data.split(rows):
        yield block.contiguous()


def _feed_array(walk: Walk, value: Any, depth: int) -> None:
    numpy = sys.modules["numpy"]
    array = numpy.asarray(value)
    if array.dtype.names is not None:
        walk.tag("record array", array.dtype.names, array.shape)
        for name in array.dtype.names:
            walk.feed(array[name], depth)
        return
    if array.dtype.hasobject:
        walk.tag("array", str(array.dtype), array.shape)
        walk.feed(array.reshape(-1).tolist(), depth)
        return
    walk.tag("array", array.dtype.newbyteorder("<").str, array.shape)
    if array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and sys.byteorder == "big"):
        array = array.astype(array.dtype.newbyteorder("<"))
    if array.size:
        walk.hasher.update(numpy.ascontiguousarray(array).reshape(-1).view("u1").data)


def _feed_image(walk: Walk, value: Any, depth: int) -> None:
    walk.tag("image", value.mode, value.size)
    walk.hasher.update(value.tobytes())
    walk.feed(value.getpalette() if value.mode in ("P", "PA") else None, depth)


def _feed_sequence(walk: Walk, value: Any, depth: int) -> None:
    walk.tag(type(value).__qualname__, len(value))
    for item in value:
        walk.feed(item, depth)


def _feed_mapping(walk: Walk, value: Any, depth: int) -> None:
    walk.tag(type(value).__qualname__, len(value))
    for key, item in value.items():
        walk.feed(key, depth)
        walk.feed(item, depth)


def _feed_set(walk: Walk, value: Any, depth: int) -> None:
    parts = []
    for item in value:
        part = walk.fresh()
        part.feed(item, depth)
        walk.not_compared.update(part.not_compared)
        parts.append(part.hasher.hexdigest())
    walk.tag(type(value).__qualname__, tuple(sorted(parts)))


def _feed_dataclass(walk: Walk, value: Any, depth: int) -> None:
    fields = [f.name for f in dataclasses.fields(value) if hasattr(value, f.name)]
    walk.tag("dataclass", _type_name(value), tuple(fields))
    for name in fields:
        walk.feed(getattr(value, name), depth)


def _feed_path(walk: Walk, value: Any, depth: int) -> None:
    walk.tag("path")
    walk.feed(value.as_posix(), depth)


def _feed_enum(walk: Walk, value: Any, depth: int) -> None:
    walk.tag("enum", _type_name(value), value.name)
    if value.name is None:  # a combination of flags
        walk.feed(value.value, depth)


def _is_named(value: Any) -> bool:
    """Whether the value is a function or class that its dotted name stands for."""
    if not isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        return False
    return "<" not in value.__qualname__


def _feed_named(walk: Walk, value: Any, depth: int) -> None:
    walk.tag("named", value.__module__, value.__qualname__)


def _feed_atom_subclass(walk: Walk, value: Any, depth: int) -> None:
    walk.tag("subclass", _type_name(value))
    for base, leaf in _ATOMS.items():
        if isinstance(value, base):
            walk.hasher.update(leaf(base(value)))
            return


_KINDS: tuple[tuple[Callable[[Any], bool], Callable[[Walk, Any, int], None]], ...] = (
    (_is_tensor, _feed_tensor),
    (_is_array, _feed_array),
    (lambda v: isinstance(v, (list, tuple)), _feed_sequence),
    (lambda v: isinstance(v, dict), _feed_mapping),
    (lambda v: isinstance(v, (set, frozenset)), _feed_set),
    (lambda v: isinstance(v, enum.Enum), _feed_enum),
    (lambda v: dataclasses.is_dataclass(v) and not isinstance(v, type), _feed_dataclass),
    (lambda v: isinstance(v, pathlib.PurePath), _feed_path),
    (_is_image, _feed_image),
    (_is_named, _feed_named),
    (lambda v: isinstance(v, (int, float, str, bytes)), _feed_atom_subclass),
)
