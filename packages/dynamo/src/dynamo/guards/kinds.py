"""The closed set of guard kinds, and what each means.

A `Guard` says that what a source loads satisfies a kind with an operand. Here each kind has its
meaning in plain Python (`check_guard`, the oracle for the C evaluator) and its text
(`describe_guard`). Invariant: a check never runs the user's code except for PREDICATE, `EQUAL` on
types that define their own equality, and `HAS_` and `LACKS_ATTRIBUTE`, which ask as the user's
program does.
"""

from __future__ import annotations

import itertools
import weakref
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType, MethodType
from typing import TYPE_CHECKING, Any, assert_never

import torch

from dynamo import _torch
from dynamo.guards.state import GlobalState
from primtorch.symbolic import RealSymbol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dynamo.source import Source

__all__ = [
    "HOOK_TABLES",
    "MISSING",
    "FailedGuard",
    "Guard",
    "GuardKind",
    "TensorGuard",
    "Weakly",
    "as_number",
    "check_guard",
    "describe_guard",
    "global_hook_tables",
    "memory_apart",
    "same_constant",
    "same_keys",
    "storage_pattern",
]


class _Missing(Enum):
    MISSING = "<missing>"


MISSING = _Missing.MISSING
"""Operand of CLASS_ATTRIBUTE for a name that the class must not have."""

# Hook tables of an nn.Module that its call consults; empty ones mean that `forward` is the call.
HOOK_TABLES = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)


class Weakly:
    """An object that a program compares by identity without keeping it alive.

    A program outlives calls; held strongly, a module that one call used would never be freed. Once
    the object is gone nothing is identical to it.
    """

    __slots__ = ("reference",)

    def __init__(self, value: object) -> None:
        self.reference = weakref.ref(value)

    @classmethod
    def if_possible(cls, value: object) -> object:
        """`value` held weakly; itself where that cannot be, or where nobody else would hold it."""
        if isinstance(value, (MethodType, weakref.ref, cls)):
            return value
        try:
            return cls(value)
        except TypeError:
            return value

    def __call__(self) -> object:
        """The object, or None once it is gone."""
        return self.reference()

    def __repr__(self) -> str:
        return repr(self.reference())


class GuardKind(Enum):
    """What a guard states of the value of its source; the operand's type stands behind the dash."""

    TYPE = "type(value) is operand - a type"
    IDENTITY = "value is operand - any object"
    EQUAL = "same type and equal, floats bit by bit - a constant"
    TENSOR = "the tensor's metadata - TensorGuard"
    LENGTH = "len(value) == operand - int"
    KEYS = "the keys in iteration order are operand - tuple"
    CONTAINS = "operand in value, a dict or set - a key"
    LACKS = "operand not in value, a dict or set - a key"
    HAS_ATTRIBUTE = "hasattr(value, operand) - str"
    LACKS_ATTRIBUTE = "not hasattr(value, operand) - str"
    LACKS_OWN_ATTRIBUTE = "operand is not in the instance's dict - str"
    CLASS_ATTRIBUTE = (
        "what the class value finds along its bases under a name - (str, object | MISSING)"
    )
    CODE = "value.__code__ is operand, value a function - code object"
    NO_HOOKS = "value, an nn.Module, has no forward or backward hooks - None"
    SAME_OBJECT = "value is what another source loads - Source"
    DISTINCT = "value and what the other sources load are pairwise other objects - tuple of Source"
    STORAGES = "which of the tensors share storage - (tuple of Source, tuple of int)"
    APART = "no byte belongs to two of the tensors; no source - tuple of Source"
    GLOBAL_STATE = "the state that GlobalState holds; no source - GlobalState"
    NO_GLOBAL_HOOKS = "no hook is registered for all modules; no source - None"
    SHAPE = "a predicate over sizes and numbers; no source - primtorch.symbolic.Predicate"
    PREDICATE = "operand(value) is true - (callable, text)"

    __hash__ = object.__hash__  # Enum's own runs Python


@dataclass(frozen=True, slots=True)
class TensorGuard:
    """All of a tensor that changes what an operator does with it.

    A None among `shape` or `strides` leaves that dimension to shape predicates. `dispatch_keys` is
    torch's bit
    mask: it tells apart device backend, sparse layouts, conj and neg views, inference tensors,
        functorch wrappers and Python subclasses.
    """

    type: type
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout
    shape: tuple[int | None, ...]
    strides: tuple[int | None, ...] | None  # None where the layout has none
    requires_grad: bool
    dispatch_keys: int
    is_leaf: bool | None = None  # None: not looked at

    @classmethod
    def of(
        cls,
        tensor: torch.Tensor,
        *,
        dynamic_sizes: Sequence[int] = (),
        dynamic_strides: Sequence[int] = (),
        leaf: bool = False,
    ) -> TensorGuard:
        """The guard that holds for `tensor`, with some dimensions left open."""
        strided = tensor.layout is torch.strided
        return cls(
            type(tensor),
            tensor.dtype,
            tensor.device,
            tensor.layout,
            tuple(None if i in dynamic_sizes else int(n) for i, n in enumerate(tensor.shape)),
            tuple(None if i in dynamic_strides else int(n) for i, n in enumerate(tensor.stride()))
            if strided
            else None,
            tensor.requires_grad,
            _torch.dispatch_keys(tensor),
            tensor.is_leaf if leaf else None,
        )

    def matches(self, value: object) -> bool:
        """Whether `value` is a tensor like this."""
        return self.difference(value) is None

    def difference(self, value: object) -> tuple[str, str, str] | None:
        """The first field in which `value` differs: its name, expected and found; None if none."""
        if type(value) is not self.type:
            return "type", self.type.__name__, type(value).__name__
        assert isinstance(value, torch.Tensor)
        with torch._C.DisableTorchFunction():  # neither its class nor a mode answers for it
            return self._difference(value)

    def _difference(self, value: torch.Tensor) -> tuple[str, str, str] | None:  # one test per field
        if value.dtype is not self.dtype:
            return "dtype", str(self.dtype), str(value.dtype)
        if value.device != self.device:
            return "device", str(self.device), str(value.device)
        if value.layout is not self.layout:
            return "layout", str(self.layout), str(value.layout)
        if value.requires_grad is not self.requires_grad:
            return "requires_grad", str(self.requires_grad), str(value.requires_grad)
        keys = _torch.dispatch_keys(value)
        if keys != self.dispatch_keys:
            return "dispatch keys", _key_text(self.dispatch_keys), _key_text(keys)
        if not _fits(self.shape, value.shape):
            return "shape", _sizes_text(self.shape), _sizes_text(value.shape)
        if self.strides is not None and not _fits(self.strides, value.stride()):
            return "strides", _sizes_text(self.strides), _sizes_text(value.stride())
        if self.is_leaf is not None and value.is_leaf is not self.is_leaf:
            return "is_leaf", str(self.is_leaf), str(value.is_leaf)
        return None


def _fits(expected: Sequence[int | None], found: Sequence[int]) -> bool:
    return len(expected) == len(found) and all(
        want is None or want == have for want, have in zip(expected, found, strict=True)
    )


def _sizes_text(sizes: Sequence[int | None]) -> str:
    return "(" + ", ".join("*" if n is None else str(n) for n in sizes) + ")"


def _key_text(keys: int) -> str:
    return str(torch._C.DispatchKeySet.from_raw_repr(keys))


@dataclass(frozen=True, slots=True)
class Guard:
    """One condition; `source` is None for conditions on the program's state.

    `source_line` is the user's (file, line, function, text) that made the value matter.
    """

    source: Source | None
    kind: GuardKind
    operand: Any = None
    source_line: tuple[str, int, str, str] | None = None


@dataclass(frozen=True, slots=True)
class FailedGuard:
    """Why an entry could not be used: the guard, and what was expected and found as text."""

    guard: Guard
    what: str
    expected: str
    found: str

    def __str__(self) -> str:
        text = f"{self.what}: expected {self.expected}, found {self.found}"
        if self.guard.source_line is not None:
            file, line, _, source = self.guard.source_line
            text += f" (needed at {file}:{line}: {source.strip()})"
        return text


def same_constant(left: object, right: object) -> bool:
    """Whether two constants mean the same: equal types, equal values, floats with the same bits."""
    if left is right:
        return True
    if type(left) is not type(right):
        return False
    match left:
        case float():
            return left.hex() == right.hex()  # type: ignore[attr-defined]  # types are equal
        case complex():
            assert isinstance(right, complex)
            return same_constant(left.real, right.real) and same_constant(left.imag, right.imag)
        case tuple() | list():
            assert isinstance(right, (tuple, list))
            return len(left) == len(right) and all(map(same_constant, left, right))
        case slice():
            assert isinstance(right, slice)
            return (
                same_constant(left.start, right.start)
                and same_constant(left.stop, right.stop)
                and same_constant(left.step, right.step)
            )
        case MappingProxyType():
            assert isinstance(right, MappingProxyType)
            return same_constant(tuple(left.items()), tuple(right.items()))
        case torch.Tensor():
            return False  # as a key a tensor is itself only
        case _:
            return bool(left == right)


def as_number(symbol: Any, value: Any) -> Any:
    """What a symbol of a SHAPE predicate stands for; TypeError where it is a float and `value` isn't."""
    if isinstance(symbol, RealSymbol) and not isinstance(value, float):
        raise TypeError(f"a float is wanted, not {type(value).__name__}")
    return value


def same_keys(value: Any, keys: tuple[Any, ...]) -> bool:
    """Whether iterating over `value` gives `keys`."""
    return len(value) == len(keys) and all(map(same_constant, value, keys))


def _class_attribute(owner: object, name: str) -> object:
    if not isinstance(owner, type):
        return None
    for base in owner.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return MISSING


def _own_dict(value: object) -> dict[str, Any]:
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:  # slots only
        return {}
    return found if isinstance(found, dict) else {}


def global_hook_tables() -> tuple[dict[Any, Any], ...]:
    """The tables of hooks that run for every nn.Module; torch changes them in place."""
    module = torch.nn.modules.module
    kinds = ("forward", "forward_pre", "backward", "backward_pre")
    return tuple(getattr(module, f"_global_{kind}_hooks") for kind in kinds)


def storage_pattern(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """For each tensor the index of the first one that shares its storage."""
    first: dict[int, int] = {}
    with torch._C.DisableTorchFunction():
        return tuple(
            first.setdefault(tensor.untyped_storage()._cdata, index)
            for index, tensor in enumerate(tensors)
        )


def memory_apart(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether no two of the tensors reach into the same memory, to the byte between first and last."""
    reach = []
    for tensor in tensors:
        if tensor.numel():
            last = sum(
                (size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True)
            )
            start = tensor.data_ptr()
            reach.append((start, start + (last + 1) * tensor.element_size()))
    reach.sort()
    return all(first[1] <= second[0] for first, second in itertools.pairwise(reach))


def check_guard(  # one case per kind
    guard: Guard, value: Any, load: Callable[[Source], Any], sizes: Callable[[Any], Any]
) -> bool:
    """Whether `guard` holds: `value` is its source's, `load` loads other sources.

    `sizes` gives the mapping that a shape predicate is evaluated under.
    """
    operand = guard.operand
    match guard.kind:
        case GuardKind.TYPE:
            return type(value) is operand
        case GuardKind.IDENTITY:
            return (
                value is not None and value is operand()
                if isinstance(operand, Weakly)
                else (value is operand)
            )
        case GuardKind.EQUAL:
            return same_constant(value, operand)
        case GuardKind.TENSOR:
            return bool(operand.matches(value))
        case GuardKind.LENGTH:
            return len(value) == operand
        case GuardKind.KEYS:
            return same_keys(value, operand)
        case GuardKind.CONTAINS:
            return operand in value
        case GuardKind.LACKS:
            return operand not in value
        case GuardKind.HAS_ATTRIBUTE:
            return hasattr(value, operand)
        case GuardKind.LACKS_ATTRIBUTE:
            return not hasattr(value, operand)
        case GuardKind.LACKS_OWN_ATTRIBUTE:
            return operand not in _own_dict(value)
        case GuardKind.CLASS_ATTRIBUTE:
            return _class_attribute(value, operand[0]) is operand[1]
        case GuardKind.CODE:
            return getattr(value, "__code__", None) is operand
        case GuardKind.NO_HOOKS:
            own = _own_dict(value)
            return not any(own.get(table) for table in HOOK_TABLES)
        case GuardKind.SAME_OBJECT:
            return value is load(operand)
        case GuardKind.DISTINCT:
            objects = [value, *map(load, operand)]
            return len({id(found) for found in objects}) == len(objects)
        case GuardKind.STORAGES:
            sources, pattern = operand
            return storage_pattern([load(source) for source in sources]) == pattern
        case GuardKind.APART:
            return memory_apart([load(source) for source in operand])
        case GuardKind.GLOBAL_STATE:
            return bool(operand.holds())
        case GuardKind.NO_GLOBAL_HOOKS:
            return not any(global_hook_tables())
        case GuardKind.SHAPE:
            return bool(operand.evaluate(sizes(operand)))
        case GuardKind.PREDICATE:
            return bool(operand[0](value))
        case _:
            assert_never(guard.kind)


def _short(value: object) -> str:
    text = value.__qualname__ if isinstance(value, type) else repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


def describe_guard(guard: Guard, value: Any, *, found: bool = True) -> tuple[str, str, str]:
    """(what is guarded, what is expected, what `value` is), for a guard that failed.

    With `found` False the source itself could not be loaded and `value` is the exception.
    """
    name = "" if guard.source is None else guard.source.name()
    operand = guard.operand
    if not found:
        return name, _expected(guard), f"nothing ({type(value).__name__}: {value})"
    match guard.kind:
        case GuardKind.TENSOR:
            field, expected, actual = operand.difference(value) or ("", "", "")
            return f"{field} of {name}", expected, actual
        case GuardKind.GLOBAL_STATE:
            field, expected, actual = operand.difference(GlobalState.now()) or ("", "", "")
            return field, expected, actual
        case GuardKind.TYPE:
            return f"type of {name}", _short(operand), _short(type(value))
        case GuardKind.LENGTH:
            return f"len({name})", str(operand), str(len(value))
        case GuardKind.KEYS:
            return f"keys of {name}", _short(operand), _short(tuple(value))
        case GuardKind.CLASS_ATTRIBUTE:
            actual = _class_attribute(value, operand[0])
            return f"{name}.{operand[0]}", _short(operand[1]), _short(actual)
        case GuardKind.CODE:
            return f"code of {name}", _short(operand), _short(getattr(value, "__code__", None))
        case GuardKind.SHAPE:
            return "sizes", operand.text, str(value)
        case GuardKind.APART:
            return "memory of " + ", ".join(s.name() for s in operand), "apart", "shared"
        case GuardKind.NO_GLOBAL_HOOKS:
            return "hooks for all modules", "none", "some"
        case _:
            return name, _expected(guard), _short(value)


def _expected(guard: Guard) -> str:
    operand = guard.operand
    match guard.kind:
        case GuardKind.HAS_ATTRIBUTE:
            return f"an attribute {operand!r}"
        case GuardKind.LACKS_ATTRIBUTE | GuardKind.LACKS_OWN_ATTRIBUTE:
            return f"no attribute {operand!r}"
        case GuardKind.CONTAINS:
            return f"the key {operand!r}"
        case GuardKind.LACKS:
            return f"no key {operand!r}"
        case GuardKind.NO_HOOKS:
            return "no hooks"
        case GuardKind.SAME_OBJECT:
            return f"the same object as {operand.name()}"
        case GuardKind.DISTINCT:
            return "an object other than " + ", ".join(source.name() for source in operand)
        case GuardKind.STORAGES:
            return f"storages shared as {operand[1]}"
        case GuardKind.PREDICATE:
            return str(operand[1])
        case GuardKind.TENSOR:
            return f"a tensor {operand.dtype} {_sizes_text(operand.shape)}"
        case _:
            return _short(operand)
