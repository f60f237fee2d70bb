"""Where a value came from, as the user would write it.

A source is a path from the root frame (its arguments, closure and globals) or from a constant.
Everything that capture knows of a real object hangs on its source: `name()` spells it in messages,
`load_instructions` loads it in generated code, `dynamo.guards` loads it in a guard program.
Sources are frozen and hashable, equal where they mean the same path, so a trie over them shares
common prefixes. Invariant: `value(source, scope)`, the instructions and the guard program load the
same object from the same frame.
"""

from __future__ import annotations

import copy
import functools
import math
import re
from dataclasses import dataclass
from itertools import islice
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any, assert_never

import numpy as np
import torch

from dynamo.bytecode import build

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dynamo.bytecode import Instruction

__all__ = [
    "OVER_CONTAINERS",
    "AheadSource",
    "ArraySource",
    "AttributeSource",
    "ClosureSource",
    "ConstantSource",
    "DictItemSource",
    "DictKeySource",
    "FunctionSource",
    "GlobalSource",
    "InstanceAttributeSource",
    "ItemSource",
    "LengthSource",
    "LocalSource",
    "ModuleMemberSource",
    "Namespace",
    "ReferentSource",
    "RoundedSource",
    "Scope",
    "SizeSource",
    "Source",
    "StorageOffsetSource",
    "StrideSource",
    "TypeSource",
    "array_as_tensor",
    "base_of",
    "load_instructions",
    "root_of",
    "rounding",
    "twin_of",
    "value",
]


class Namespace:
    """A module's globals other than the root function's, equal by identity of the dict."""

    __slots__ = ("values",)

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    @property
    def spelling(self) -> str:
        """The module's dotted name."""
        return str(self.values.get("__name__", "<globals>"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Namespace) and self.values is other.values

    def __hash__(self) -> int:
        return id(self.values)

    def __repr__(self) -> str:
        return f"Namespace({self.spelling})"


class _Path:
    """A source's hash, computed once: paths are deep, and keys of many tables."""

    __slots__ = ("_hash",)

    _hash: int

    def __post_init__(self) -> None:
        fields = self.__dataclass_fields__  # type: ignore[attr-defined]  # of each subclass
        values = [getattr(self, name) for name in fields]
        try:
            found = hash((type(self), *values))
        except TypeError:  # a slice as a key
            found = hash((type(self), *map(id, values)))
        object.__setattr__(self, "_hash", found)

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:  # a copy was made without the constructor
            self.__post_init__()
            return self._hash


@dataclass(frozen=True, slots=True)
class LocalSource(_Path):
    """An argument of the root function by its name; `cell` if an inner function shares it.

    `*args` and `**kwargs` are locals too: the tuple and the dict.
    """

    local: str
    cell: bool = False

    __hash__ = _Path.__hash__

    def name(self) -> str:
        """The user's spelling."""
        return self.local


@dataclass(frozen=True, slots=True)
class ClosureSource(_Path):
    """What a free variable of the root function holds."""

    variable: str

    __hash__ = _Path.__hash__

    def name(self) -> str:
        """The user's spelling."""
        return self.variable


@dataclass(frozen=True, slots=True)
class FunctionSource(_Path):
    """The root function itself (its defaults, annotations, attributes)."""

    spelling: str = "<the compiled function>"

    __hash__ = _Path.__hash__

    def name(self) -> str:
        """The user's spelling."""
        return self.spelling


@dataclass(frozen=True, slots=True)
class GlobalSource(_Path):
    """A global, or failing that a builtin: of the root function, or of `namespace` if given."""

    variable: str
    namespace: Namespace | None = None

    __hash__ = _Path.__hash__

    def name(self) -> str:
        """The user's spelling."""
        if self.namespace is None:
            return self.variable
        return f"{self.namespace.spelling}.{self.variable}"


@dataclass(frozen=True, slots=True)
class AttributeSource(_Path):
    """`base.attribute` by the full protocol: may run a property or `__getattr__`."""

    base: Source
    attribute: str

    __hash__ = _Path.__hash__

    def name(self) -> str:
        """The user's spelling."""
        return f"{self.base.name()}.{self.attribute}"


@dataclass(frozen=True, slots=True)
class InstanceAttributeSource(_Path):
    """`base.attribute` found in the instance's own dict or slots; never runs user code.

    For attributes that no data descriptor of the class shadows, whatever `__getattr__` the class
    has.
    """

    base: Source
    attribute: str

    __hash__ = _Path.__hash__

    def name(self) -> str:
        """The user's spelling."""
        return f"{self.base.name()}.{self.attribute}"


@dataclass(frozen=True, slots=True)
class ModuleMemberSource(_Path):
    """`base.member` of an `nn.Module`, from its `_parameters`, `_buffers` or `_modules`."""

    base: Source
    table: str
    member: str

    __hash__ = _Path.__hash__

    def name(self) -> str:
        """The user's spelling."""
        base = self.base.name()
        return f"{base}.{self.member}" if self.member.isidentifier() else f"{base}[{self.member}]"


@dataclass(frozen=True, slots=True)
class ItemSource(_Path):
    """`base[key]`; the key is a constant object."""

    base: Source
    key: Any

    __hash__ = _Path.__hash__

    def name(self) -> str:
        """The user's spelling."""
        key = self.key
        text = f"<{type(key).__name__}>" if hasattr(key, "untyped_storage") else repr(key)
        return f"{self.base.name()}[{text}]"


@dataclass(frozen=True, slots=True)
class DictKeySource(_Path):
    """The element at `index` in the iteration order of a dict (its key), set or other iterable."""

    base: Source
    index: int

    __hash__ = _Path.__hash__

    def name(self) -> str:
        """The user's spelling."""
        return f"list({self.base.name()})[{self.index}]"


@dataclass(frozen=True, slots=True)
class DictItemSource(_Path):
    """What a dict has under a key, whatever its class makes of `base[key]`."""

    base: Source
    key: Any

    __hash__ = _Path.__hash__

    def name(self) -> str:
        """The user's spelling."""
        return f"dict.__getitem__({self.base.name()}, {self.key!r})"


@dataclass(frozen=True, slots=True)
class TypeSource(_Path):
    """`type(base)`."""

    base: Source

    __hash__ = _Path.__hash__

    def name(self) -> str:
        """The user's spelling."""
        return f"type({self.base.name()})"


@dataclass(frozen=True, slots=True)
class LengthSource(_Path):
    """`len(base)`, an int."""

    base: Source

    __hash__ = _Path.__hash__

    def name(self) -> str:
        """The user's spelling."""
        return f"len({self.base.name()})"


@dataclass(frozen=True, slots=True)
class SizeSource(_Path):
    """`base.size(dimension)` of a tensor, an int."""

    base: Source
    dimension: int

    __hash__ = _Path.__hash__

    def name(self) -> str:
        """The user's spelling."""
        return f"{self.base.name()}.size({self.dimension})"


@dataclass(frozen=True, slots=True)
class StrideSource(_Path):
    """`base.stride(dimension)` of a tensor, an int."""

    base: Source
    dimension: int

    __hash__ = _Path.__hash__

    def name(self) -> str:
        """The user's spelling."""
        return f"{self.base.name()}.stride({self.dimension})"


@dataclass(frozen=True, slots=True)
class StorageOffsetSource(_Path):
    """`base.storage_offset()` of a tensor, an int."""

    base: Source

    __hash__ = _Path.__hash__

    def name(self) -> str:
        """The user's spelling."""
        return f"{self.base.name()}.storage_offset()"


@dataclass(frozen=True, slots=True)
class ArraySource(_Path):
    """The tensor that shares the memory of `base`, a numpy array."""

    base: Source

    __hash__ = _Path.__hash__

    def name(self) -> str:
        """The user's spelling."""
        return f"torch.from_numpy({self.base.name()})"


@dataclass(frozen=True, slots=True)
class AheadSource(_Path):
    """What the iterator `base` gives after `index` others; it is not advanced by looking."""

    base: Source
    index: int

    __hash__ = _Path.__hash__

    def name(self) -> str:
        """The user's spelling."""
        return f"next({self.base.name()})" + (f" after {self.index}" if self.index else "")


@dataclass(frozen=True, slots=True)
class RoundedSource(_Path):
    """A float reckoned of the number `base`, made an int by `function`: `math.floor(n * 0.6)`.

    `real` is Python's text of the float, where `n` is the number.
    """

    base: Source
    function: str
    real: str

    __hash__ = _Path.__hash__

    def name(self) -> str:
        """The user's spelling."""
        return re.sub(r"\bn\b", lambda _: self.base.name(), f"{self.function}({self.real})")


@dataclass(frozen=True, slots=True)
class ReferentSource(_Path):
    """What the weak reference `base` refers to; None once that is gone."""

    base: Source

    __hash__ = _Path.__hash__

    def name(self) -> str:
        """The user's spelling."""
        return f"{self.base.name()}()"


@dataclass(frozen=True, slots=True, eq=False)
class ConstantSource:
    """An object that capture holds itself; equal to another holder of the same object."""

    value: Any
    spelling: str = ""

    def name(self) -> str:
        """The user's spelling."""
        return self.spelling or repr(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConstantSource) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


Source = (
    LocalSource
    | ClosureSource
    | FunctionSource
    | GlobalSource
    | AttributeSource
    | InstanceAttributeSource
    | ModuleMemberSource
    | ItemSource
    | DictItemSource
    | DictKeySource
    | TypeSource
    | LengthSource
    | SizeSource
    | StrideSource
    | StorageOffsetSource
    | ArraySource
    | AheadSource
    | ReferentSource
    | RoundedSource
    | ConstantSource
)


def base_of(source: Source) -> Source | None:
    """What the source is reached from; None for a root."""
    base: Source | None = getattr(source, "base", None)
    return base


def root_of(source: Source) -> Source:
    """The first step of the path."""
    while (base := base_of(source)) is not None:
        source = base
    return source


@dataclass(frozen=True, slots=True)
class Scope:
    """A call of the root function: the function, and its argument slots by name."""

    function: FunctionType
    arguments: Mapping[str, Any]


def value(source: Source, scope: Scope) -> Any:  # one case per kind of source
    """The object that `source` names in `scope`.

    Raises:
        Exception: whatever the access raises (KeyError, AttributeError, IndexError, a user's own
        error).
    """
    match source:
        case LocalSource(local, _):
            found = scope.arguments[local]
            return found.cell_contents if source.cell and isinstance(found, CellType) else found
        case ClosureSource(variable):
            function = scope.function
            cells = function.__closure__ or ()
            return cells[function.__code__.co_freevars.index(variable)].cell_contents
        case FunctionSource():
            return scope.function
        case GlobalSource(variable, namespace):
            names = scope.function.__globals__ if namespace is None else namespace.values
            return names[variable] if variable in names else _builtins_of(names)[variable]
        case AttributeSource(base, attribute):
            return getattr(value(base, scope), attribute)
        case InstanceAttributeSource(base, attribute):
            return object.__getattribute__(value(base, scope), attribute)
        case ModuleMemberSource(base, table, member):
            return object.__getattribute__(value(base, scope), table)[member]
        case ItemSource(base, key):
            return item(value(base, scope), key)
        case DictItemSource(base, key):
            return dict.__getitem__(value(base, scope), key)
        case DictKeySource(base, index):
            return element(value(base, scope), index)
        case TypeSource(base):
            return type(value(base, scope))
        case LengthSource(base):
            return len(value(base, scope))
        case SizeSource(base, dimension):
            return value(base, scope).size(dimension)
        case StrideSource(base, dimension):
            return value(base, scope).stride(dimension)
        case StorageOffsetSource(base):
            return value(base, scope).storage_offset()
        case ArraySource(base):
            return array_as_tensor(value(base, scope))
        case AheadSource(base, index):
            return ahead(value(base, scope), index)
        case ReferentSource(base):
            return value(base, scope)()
        case RoundedSource(base, function, real):
            return rounding(function, real)(value(base, scope))
        case ConstantSource(held, _):
            return held
        case _:
            assert_never(source)


def _builtins_of(names: Mapping[str, Any]) -> Mapping[str, Any]:
    import builtins  # rare: only names that are no globals

    found = names.get("__builtins__", builtins)
    return found if isinstance(found, dict) else vars(found)


def item(container: Any, key: Any) -> Any:
    """`container[key]`, without the side effect that a dict's `__missing__` may have.

    Raises:
        LookupError: there is none.
    """
    if isinstance(container, dict) and type(container).__getitem__ is dict.__getitem__:
        found = dict.get(container, key, _ABSENT)
        if found is _ABSENT:
            raise KeyError(key)
        return found
    return container[key]


_ABSENT = object()


def element(container: Any, index: int) -> Any:
    """The element at `index` in iteration order.

    Raises:
        IndexError: there is none.
    """
    for found in islice(iter(container), index, None):
        return found
    raise IndexError(index)


_EMPTY: tuple[Any, ...] = ([], (), "", b"", range(0), {}, {}.values(), {}.items(), set())
OVER_CONTAINERS: frozenset[type] = frozenset(type(iter(container)) for container in _EMPTY) | {
    type(reversed([])),
    type(iter(range(1 << 70))),
    type(iter("\u1234")),
}


def twin_of(iterator: Any) -> Any:
    """An iterator that gives what a builtin one over containers will give; that stays as it is.

    Raises:
        TypeError: what this iterator gives can't be told without taking it.
    """
    kind = type(iterator)
    if kind in OVER_CONTAINERS:
        return copy.copy(iterator)
    if kind is zip:
        reduced = iterator.__reduce__()
        if len(reduced) == 2:  # strict ones keep their mode as a state
            return zip(*map(twin_of, reduced[1]), strict=False)
    elif kind is enumerate:
        inner, number = iterator.__reduce__()[1]
        return enumerate(twin_of(inner), number)
    raise TypeError(f"a {kind.__name__} can't be read ahead")


def ahead(iterator: Any, index: int) -> Any:
    """What an iterator gives after `index` others.

    Raises:
        IndexError: it ends before.
    """
    for found in islice(twin_of(iterator), index, None):
        return found
    raise IndexError(index)


@functools.lru_cache(maxsize=1024)
def rounding(function: str, real: str) -> Callable[..., int]:
    """What `RoundedSource` makes of its number; a second argument is passed over."""
    text = f"lambda n, _=0: {function}({real})"
    made: Callable[..., int] = eval(text, {"math": math})  # noqa: S307 - arithmetic that capture wrote
    return made


class _Memory:
    """Says where an array's memory is, as if it could be written to."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, array: Any) -> None:
        described = array.__array_interface__
        self.__array_interface__ = {**described, "data": (described["data"][0], False)}
        self.owner = array


def array_as_tensor(array: Any, _: int = 0) -> torch.Tensor:
    """The tensor that shares an array's memory, one that must not be written to included.

    Raises:
        ValueError, TypeError: no tensor can have this layout or type.
    """
    if not array.flags.writeable:  # torch would warn: whoever captures keeps from writing
        array = np.asarray(_Memory(array))
    return torch.from_numpy(array)


def load_instructions(source: Source) -> list[Instruction]:
    """[..] -> [.., the value], in code that runs in place of the root frame.

    To be used before locals are reassigned. A running function cannot load itself.
    """
    match source:
        case LocalSource(local, cell):
            return [build.load_deref(local) if cell else build.load_fast(local)]
        case ClosureSource(variable):
            return [build.load_deref(variable)]
        case GlobalSource(variable, None):
            return [build.load_global(variable)]
        case GlobalSource(variable, namespace):
            assert namespace is not None
            return build.call(
                [build.load_const(_global_of)],
                [build.load_const(namespace.values)],
                [build.load_const(variable)],
            )
        case FunctionSource():
            raise LookupError("a running function cannot load itself")
        case AttributeSource(base, attribute):
            return [*load_instructions(base), build.load_attr(attribute)]
        case InstanceAttributeSource(base, attribute):
            return _own_attribute(load_instructions(base), attribute)
        case ModuleMemberSource(base, table, member):
            owner = _own_attribute(load_instructions(base), table)
            return [*owner, build.load_const(member), build.load_item()]
        case ItemSource(base, key):
            return [*load_instructions(base), build.load_const(key), build.load_item()]
        case DictItemSource(base, key):
            return _applied(dict.__getitem__, base, key)
        case DictKeySource(base, index):
            return _applied(element, base, index)
        case TypeSource(base):
            return _applied(type, base)
        case LengthSource(base):
            return _applied(len, base)
        case SizeSource(base, dimension):
            return _method(base, "size", dimension)
        case StrideSource(base, dimension):
            return _method(base, "stride", dimension)
        case StorageOffsetSource(base):
            return _method(base, "storage_offset")
        case ArraySource(base):
            return _applied(array_as_tensor, base)
        case AheadSource(base, index):
            return _applied(ahead, base, index)
        case ReferentSource(base):
            return build.call(load_instructions(base))
        case RoundedSource(base, function, real):
            return _applied(rounding(function, real), base)
        case ConstantSource(held, _):
            return [build.load_const(held)]
        case _:
            assert_never(source)


def _global_of(names: Mapping[str, Any], variable: str) -> Any:
    return names[variable] if variable in names else _builtins_of(names)[variable]


def _own_attribute(owner: list[Instruction], attribute: str) -> list[Instruction]:
    getter = object.__getattribute__
    return build.call([build.load_const(getter)], owner, [build.load_const(attribute)])


def _applied(function: Any, base: Source, *constants: Any) -> list[Instruction]:
    arguments = [[build.load_const(constant)] for constant in constants]
    return build.call([build.load_const(function)], load_instructions(base), *arguments)


def _method(base: Source, method: str, *constants: Any) -> list[Instruction]:
    arguments = [[build.load_const(constant)] for constant in constants]
    owner = [*load_instructions(base), build.load_attr(method)]
    return build.call(owner, *arguments)
