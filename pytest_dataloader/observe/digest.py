"""Digests of content: the same for the same values on every OS, in every process."""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import pathlib
import struct
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import xxhash

from pytest_dataloader.observe.facts import LeafFacts

_PREVIEW_VALUES = 6
_MAX_DEPTH = 200


class NotComparable(TypeError):
    """Raised where a value has no content that a digest could stand for; names its type."""


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
    walk = _Walk(xxhash.xxh3_128())
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


def kind_of(value: Any) -> str:
    """A short type for people: ``float32 tensor of shape [2, 3]``, or the class's name."""
    if _is_tensor(value):
        return f"{str(value.dtype).removeprefix('torch.')} tensor of shape {list(value.shape)}"
    if _is_array(value):
        return f"{value.dtype} array of shape {list(value.shape)}"
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
        text = repr(value)
    except Exception as error:
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


class _Walk:
    """One walk over a value that feeds a hasher; every part is framed by a tag and a length."""

    def __init__(self, hasher: Any) -> None:
        self.hasher = hasher
        self.not_compared: set[str] = set()
        self._above: set[int] = set()

    def feed(self, value: Any, depth: int) -> None:
        leaf = _ATOMS.get(type(value))
        if leaf is not None:
            self.hasher.update(leaf(value))
            return
        if id(value) in self._above or depth > _MAX_DEPTH:
            self.tag("again", type(value).__qualname__)
            return
        self._above.add(id(value))
        try:
            self._composite(value, depth + 1)
        finally:
            self._above.discard(id(value))

    def tag(self, kind: str, *details: Any) -> None:
        """Feed the frame of what follows."""
        self.hasher.update(f"\x00{kind}:{details!r};".encode("utf-8", "surrogatepass"))

    def _composite(self, value: Any, depth: int) -> None:
        for matches, feed in _KINDS:
            if matches(value):
                feed(self, value, depth)
                return
        self._object(value, depth)

    def _object(self, value: Any, depth: int) -> None:
        try:
            reduced = value.__reduce_ex__(4)
        except Exception:
            self.not_compared.add(_type_name(value))
            self.tag("not compared", _type_name(value))
            return
        if isinstance(reduced, str):
            self.tag("global", _type_name(value), reduced)
            return
        _, args, state, items, pairs = (*reduced, None, None, None)[:5]
        self.tag("object", _type_name(value))
        self.feed([a for a in args if not isinstance(a, type)], depth)
        self.feed(state, depth)
        self.feed(list(items) if items is not None else None, depth)
        self.feed(dict(pairs) if pairs is not None else None, depth)


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
    int: lambda v: _framed(b"i", str(v).encode()),
    float: lambda v: b"f" + struct.pack("<d", v),
    complex: lambda v: b"c" + struct.pack("<dd", v.real, v.imag),
    str: _text,
    bytes: lambda v: _framed(b"b", v),
    bytearray: lambda v: _framed(b"B", bytes(v)),
}


def _feed_tensor(walk: _Walk, value: Any, depth: int) -> None:
    torch = _torch()
    data = value.detach()
    kind = type(value).__qualname__
    if data.is_quantized:
        walk.tag("quantized", str(data.qscheme()))
        walk.feed([data.int_repr(), data.dequantize()], depth)
        return
    if data.layout != torch.strided:
        walk.tag("layout", str(data.layout))
        data = data.to_dense()
    if data.device.type == "meta":
        walk.not_compared.add("torch.Tensor on the meta device")
        return
    data = data.cpu().resolve_conj().resolve_neg().contiguous()
    walk.tag(kind, str(data.dtype), tuple(data.shape))
    count = data.numel() * data.element_size()
    if count:
        walk.hasher.update((ctypes.c_char * count).from_address(data.data_ptr()))


def _feed_array(walk: _Walk, value: Any, depth: int) -> None:
    numpy = sys.modules["numpy"]
    array = numpy.asarray(value)
    walk.tag("array", array.dtype.newbyteorder("<").str, str(array.dtype.names), array.shape)
    if array.dtype.hasobject:
        walk.feed(array.reshape(-1).tolist(), depth)
        return
    if array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and sys.byteorder == "big"):
        array = array.astype(array.dtype.newbyteorder("<"))
    if array.size:
        walk.hasher.update(numpy.ascontiguousarray(array).reshape(-1).view("u1").data)


def _feed_image(walk: _Walk, value: Any, depth: int) -> None:
    walk.tag("image", value.mode, value.size)
    walk.hasher.update(value.tobytes())


def _feed_sequence(walk: _Walk, value: Any, depth: int) -> None:
    walk.tag(type(value).__qualname__, len(value))
    for item in value:
        walk.feed(item, depth)


def _feed_mapping(walk: _Walk, value: Any, depth: int) -> None:
    walk.tag(type(value).__qualname__, len(value))
    for key, item in value.items():
        walk.feed(key, depth)
        walk.feed(item, depth)


def _feed_set(walk: _Walk, value: Any, depth: int) -> None:
    parts = [digest(item) for item in value]
    for part in parts:
        walk.not_compared.update(part.not_compared)
    walk.tag(type(value).__qualname__, tuple(sorted(part.hex for part in parts)))


def _feed_dataclass(walk: _Walk, value: Any, depth: int) -> None:
    fields = [f.name for f in dataclasses.fields(value) if hasattr(value, f.name)]
    walk.tag("dataclass", _type_name(value), tuple(fields))
    for name in fields:
        walk.feed(getattr(value, name), depth)


def _feed_path(walk: _Walk, value: Any, depth: int) -> None:
    walk.tag("path")
    walk.feed(value.as_posix(), depth)


def _feed_enum(walk: _Walk, value: Any, depth: int) -> None:
    walk.tag("enum", _type_name(value), value.name)


def _is_named(value: Any) -> bool:
    """Whether the value is a function or class that its dotted name stands for."""
    if not isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        return False
    return "<" not in value.__qualname__


def _feed_named(walk: _Walk, value: Any, depth: int) -> None:
    walk.tag("named", value.__module__, value.__qualname__)


def _feed_atom_subclass(walk: _Walk, value: Any, depth: int) -> None:
    walk.tag("subclass", _type_name(value))
    for base, leaf in _ATOMS.items():
        if isinstance(value, base):
            walk.hasher.update(leaf(base(value)))
            return


_KINDS: tuple[tuple[Callable[[Any], bool], Callable[[_Walk, Any, int], None]], ...] = (
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
