"""Values to JSON and blobs, and back.

`Writer.value` gives JSON for a value: numbers and text as themselves, all else as a list whose first item is the
kind. Objects go into one table, bytes into blobs. `Writer.pack` makes the whole into bytes, `unpack` gives the
data and the `Reader` that turns it back. Invariant: the bytes hold data only; an object is looked up, never made.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import operator
import struct
import types
from typing import TYPE_CHECKING, Any

import torch

from primtorch.errors import PrimtorchError
from primtorch.fake.meta import TensorMeta
from primtorch.serial.objects import codes_of, digest_of, find_path, follow
from primtorch.symbolic import (
    And,
    Equal,
    Expression,
    IntegerNode,
    LessThan,
    Node,
    Not,
    Or,
    Real,
    RealRelation,
    RealSymbol,
    Symbol,
)
from primtorch.symbolic.expression import (
    FloorDiv,
    Maximum,
    Minimum,
    Modulo,
    Product,
    Sum,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Foreign", "NotStorable", "Reader", "Writer", "unpack"]

_LARGEST_TENSOR = 1 << 22
_NAMESPACES = frozenset({"aten", "mkldnn", "prim", "prims", "primtorch"})
_EXPRESSIONS: dict[str, type[Expression]] = {
    kind.__name__: kind for kind in (Symbol, Sum, Product, FloorDiv, Modulo, Maximum, Minimum)
}
_RECORDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (TensorMeta, Equal, LessThan, Not, And, Or, RealRelation, Real, RealSymbol)
}
_LAYOUTS = {
    str(kind): kind
    for kind in vars(torch).values()
    if isinstance(kind, torch.layout | torch.memory_format)
}


class NotStorable(PrimtorchError):
    """A value that means nothing in another process; the message says which and why."""


class Foreign(PrimtorchError):
    """Data of another state of the program: an object is missing, or is not what it was."""


class Writer:
    """Collects what one package of data refers to.

    Args:
        records: Frozen dataclasses that may occur, by the name they are written under.
        elsewhere: Describes an object that has no path, or raises NotStorable.
    """

    def __init__(
        self,
        records: Mapping[str, type[Any]] | None = None,
        elsewhere: Callable[[Any], Any] | None = None,
    ) -> None:
        self.blobs: list[bytes] = []
        self.objects: list[Any] = []
        self.codes: set[types.CodeType] = set()
        self._names = {kind: name for name, kind in {**_RECORDS, **(records or {})}.items()}
        self._elsewhere = elsewhere
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []

    def blob(self, content: bytes) -> int:
        """The number of a piece of bytes."""
        self.blobs.append(content)
        return len(self.blobs) - 1

    def object(self, value: Any) -> Any:
        """An object by its path, with what it must still be.

        Raises:
            NotStorable: there is no path to it.
        """
        number = self._numbers.get(id(value))
        if number is None:
            path = find_path(value)
            if path is None:
                if self._elsewhere is not None:
                    return self._elsewhere(value)
                raise NotStorable(f"{_shown(value)} cannot be found from its module")
            self.objects.append([path[0], [list(step) for step in path[1]], self.digest(value)])
            number = self._numbers[id(value)] = len(self.objects) - 1
            self._kept.append(value)
        return ["o", number]

    def digest(self, value: Any) -> str:
        """The digest of an object; its code counts as recorded."""
        try:
            digest = digest_of(value)
        except LookupError as error:
            raise NotStorable(f"the code of {_shown(value)} holds a {error.args[0]}") from None
        for function in _functions_of(value):
            self.codes.update(codes_of(function))
        return digest

    def value(self, value: Any) -> Any:  # one case per kind
        """JSON for a value.

        Raises:
            NotStorable: its kind cannot be written.
        """
        kind = type(value)
        if value is None or kind is bool or kind is int or kind is str:
            return value
        if kind is tuple:
            return ["t", *map(self.value, value)]
        if kind is list:
            return ["l", *map(self.value, value)]
        name = self._names.get(kind)
        if name is not None:
            fields = dataclasses.fields(kind)
            return ["R", name, *(self.value(getattr(value, field.name)) for field in fields)]
        if isinstance(value, Expression):
            return ["e", kind.__name__, *map(self.value, value.__reduce__()[1])]
        return self._rare(value, kind)

    def _rare(self, value: Any, kind: type) -> Any:
        match value:
            case enum.Enum():
                return ["E", self.object(kind), value.name]
            case float() if kind is float:
                return ["f", value.hex()]
            case complex() if kind is complex:
                return ["c", value.real.hex(), value.imag.hex()]
            case bytes() if kind is bytes:
                return ["b", self.blob(value)]
            case dict() if kind is dict:
                return ["d", *([self.value(k), self.value(v)] for k, v in value.items())]
            case set() | frozenset() if kind in (set, frozenset):
                return ["s" if kind is set else "F", *map(self.value, value)]
            case slice():
                return ["sl", *map(self.value, (value.start, value.stop, value.step))]
            case range():
                return ["r", value.start, value.stop, value.step]
            case torch.Size():
                return ["z", *map(self.value, value)]
            case torch.dtype():
                return ["dt", str(value).partition(".")[2]]
            case torch.device():
                return ["dv", str(value)]
            case torch.layout() | torch.memory_format():
                return ["ly", str(value)]
            case torch._ops.OpOverload():
                return ["op", *self._operator(value.namespace, value._opname), value._overloadname]
            case torch._ops.OpOverloadPacket():
                namespace, _, name = value._qualified_op_name.partition("::")
                return ["op", *self._operator(namespace, name)]
            case torch.Tensor():
                return self._tensor(value)
            case torch.SymInt() | torch.SymFloat() if isinstance(value.node, Node):
                return self.value(
                    value.node.expression
                    if isinstance(value.node, IntegerNode)
                    else value.node.value  # type: ignore[attr-defined]
                )
            case types.UnionType() | types.GenericAlias():
                origin = None if isinstance(value, types.UnionType) else value.__origin__
                return ["U", self.value(origin), *map(self.value, value.__args__)]
            case _ if value is ...:
                return ["..."]
            case _ if value is NotImplemented:
                return ["N"]
            case _:
                return self.object(value)

    @staticmethod
    def _operator(namespace: str, name: str) -> tuple[str, str]:
        if namespace not in _NAMESPACES:
            raise NotStorable(
                f"the operator {namespace}::{name} belongs to a library whose code is not recorded"
            )
        return namespace, name

    def _tensor(self, value: torch.Tensor) -> Any:
        plain = (
            type(value) is torch.Tensor
            and value.device.type in ("cpu", "cuda")
            and not value.requires_grad
        )
        size = value.numel() * value.element_size()
        if not plain or value.layout is not torch.strided or value.is_conj() or value.is_neg():
            raise NotStorable(f"a constant tensor of kind {type(value).__name__} on {value.device}")
        if size > _LARGEST_TENSOR:
            raise NotStorable(f"a constant tensor of {size} bytes")
        here = value.detach().cpu()
        raw = here.contiguous().reshape(-1).view(torch.uint8) if size else None
        content = (
            b"" if raw is None else bytes(raw.tolist()) if size < 64 else raw.numpy().tobytes()
        )
        words = [self.value(value.dtype), list(value.shape), list(value.stride())]
        return ["T", *words, self.blob(content), str(value.device)]

    def pack(self, data: Any) -> bytes:
        """The data, the table of objects and the blobs as bytes."""
        head = {"data": data, "objects": self.objects, "blobs": [len(b) for b in self.blobs]}
        text = json.dumps(head, separators=(",", ":"), allow_nan=False).encode()
        return b"".join((struct.pack("<Q", len(text)), text, *self.blobs))


def _functions_of(value: Any) -> list[types.CodeType]:
    """The code objects whose digests are in an object's digest."""
    if hasattr(value, "co_code"):
        return [value]
    parts = [
        getattr(value, name, None)
        for name in ("__code__", "fget", "fset", "fdel", "__func__", "func")
    ]
    found: list[types.CodeType] = []
    for part in parts:
        if hasattr(part, "co_code"):
            found.append(part)  # type: ignore[arg-type]
        elif isinstance(getattr(part, "__code__", None), type(_functions_of.__code__)):
            found.append(part.__code__)  # type: ignore[union-attr]
    return found


def _shown(value: Any) -> str:
    name = getattr(value, "__qualname__", None)
    kind = type(value).__qualname__
    return f"{kind} {name}" if isinstance(name, str) else f"an object of type {kind}"


def unpack(
    content: bytes | memoryview,
    records: Mapping[str, type[Any]] | None = None,
    elsewhere: Callable[[Any], Any] | None = None,
) -> tuple[Any, Reader]:
    """The data that was packed, still as JSON, and the reader that turns it into values.

    Raises:
        Foreign: these are not such bytes.
    """
    view = memoryview(content)
    try:
        (length,) = struct.unpack_from("<Q", view)
        head = json.loads(bytes(view[8 : 8 + length]))
        blobs, start = [], 8 + length
        for size in head["blobs"]:
            if start + size > len(view):
                raise Foreign("data is cut off")
            blobs.append(view[start : start + size])
            start += size
        return head["data"], Reader(head["objects"], blobs, records, elsewhere)
    except (struct.error, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Foreign(f"data is damaged: {error}") from None


class Reader:
    """Turns JSON back into values; see `Writer` for the arguments."""

    def __init__(
        self,
        objects: list[Any],
        blobs: list[memoryview],
        records: Mapping[str, type[Any]] | None = None,
        elsewhere: Callable[[Any], Any] | None = None,
    ) -> None:
        self.blobs = blobs
        self.elsewhere = elsewhere
        self._described = objects
        self._objects: dict[int, Any] = {}
        self._records = {**_RECORDS, **(records or {})}

    def object(self, number: int) -> Any:
        """An object of the table.

        Raises:
            Foreign: it is not there, or not what it was.
        """
        try:
            return self._objects[number]
        except KeyError:
            pass
        module, steps, digest = self._described[number]
        where = ".".join((module, *(str(step[1]) for step in steps)))
        try:
            found = follow((module, tuple(map(tuple, steps))))
            now = digest_of(found)
        except (LookupError, AttributeError, TypeError, ValueError, IndexError):
            raise Foreign(f"{where} is not there") from None
        if now != digest:
            raise Foreign(f"{where} has changed")
        self._objects[number] = found
        return found

    def objects(self) -> None:
        """Look all objects up; see `object`."""
        for number in range(len(self._described)):
            self.object(number)

    def found(self) -> list[Any]:
        """The objects that were looked up so far."""
        return list(self._objects.values())

    def value(self, data: Any) -> Any:
        """The value of JSON.

        Raises:
            Foreign: see `object`; or the data is no value.
        """
        if type(data) is not list:
            return data
        try:
            read = _READERS.get(data[0])
            if read is not None:
                return read(self, data)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise Foreign(f"data is damaged: {error!r}") from None
        if self.elsewhere is None:
            raise Foreign(f"data is damaged: {data!r:.60}")
        return self.elsewhere(data)

    def values(self, data: Any, start: int = 1) -> list[Any]:
        """The values of the items of a list."""
        value = self.value
        return [value(item) for item in data[start:]]

    def record(self, data: Any) -> Any:
        """A frozen dataclass."""
        return self._records[data[1]](*self.values(data, 2))

    def tensor(self, data: Any) -> torch.Tensor:
        """A constant tensor.

        Raises:
            Foreign: it lay on a device that isn't here.
        """
        _, dtype, shape, stride, blob, place = data
        device = torch.device(place)
        if device.type != "cpu" and not torch.cuda.is_available():
            raise Foreign(f"a constant tensor on {place}")
        content = self.blobs[blob]
        made = torch.empty_strided(shape, stride, dtype=self.value(dtype), device=device)
        if len(content):
            flat = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(made.dtype)
            once = made
            for dimension, step in enumerate(stride):
                if step == 0 and shape[dimension] > 1:
                    once = once.narrow(dimension, 0, 1)
            source = flat.reshape(shape)
            for dimension in range(len(shape)):
                source = source.narrow(dimension, 0, once.shape[dimension])
            once.copy_(source)
        return made


def _operator(reader: Reader, data: Any) -> Any:
    del reader
    found: Any = torch.ops
    if data[1] not in _NAMESPACES:
        raise Foreign(f"an operator of {data[1]}")
    for name in data[1:]:
        found = getattr(found, name)
    return found


def _alias(origin: Any, *arguments: Any) -> Any:
    """`int | None`, or `list[int]`."""
    if origin is None:
        return functools.reduce(operator.or_, arguments)
    return types.GenericAlias(origin, arguments)


def _expression(reader: Reader, data: Any) -> Any:
    kind = _EXPRESSIONS[data[1]]
    fields = reader.values(data, 2)
    if kind is Symbol:
        return Symbol(*fields)
    return _MAKERS[kind](*fields)


def _maker(sample: Any) -> Any:
    return sample.__reduce__()[0]


_A, _B = Symbol("a", 2), Symbol("b", 2)
_MAKERS: dict[type, Any] = {
    Sum: _maker(_A + _B),
    Product: _maker(_A * _B),
    FloorDiv: _maker(_A // _B),
    Modulo: _maker(_A % _B),
}


def _extremes() -> None:
    from primtorch.symbolic import maximum, minimum

    _MAKERS[Maximum] = _maker(maximum(_A, _B))
    _MAKERS[Minimum] = _maker(minimum(_A, _B))


_extremes()
_READERS: dict[str, Callable[[Reader, Any], Any]] = {
    "t": lambda reader, data: tuple(reader.values(data)),
    "l": lambda reader, data: reader.values(data),
    "o": lambda reader, data: reader.object(data[1]),
    "R": lambda reader, data: reader.record(data),
    "e": _expression,
    "E": lambda reader, data: reader.value(data[1])[data[2]],
    "f": lambda _, data: float.fromhex(data[1]),
    "c": lambda _, data: complex(float.fromhex(data[1]), float.fromhex(data[2])),
    "b": lambda reader, data: bytes(reader.blobs[data[1]]),
    "d": lambda reader, data: {reader.value(k): reader.value(v) for k, v in data[1:]},
    "s": lambda reader, data: set(reader.values(data)),
    "F": lambda reader, data: frozenset(reader.values(data)),
    "sl": lambda reader, data: slice(*reader.values(data)),
    "r": lambda _, data: range(data[1], data[2], data[3]),
    "z": lambda reader, data: torch.Size(reader.values(data)),
    "dt": lambda _, data: getattr(torch, data[1]),
    "dv": lambda _, data: torch.device(data[1]),
    "ly": lambda _, data: _LAYOUTS[data[1]],
    "op": _operator,
    "T": lambda reader, data: reader.tensor(data),
    "U": lambda reader, data: _alias(*reader.values(data)),
    "...": lambda _reader, _data: ...,
    "N": lambda _reader, _data: NotImplemented,
}
