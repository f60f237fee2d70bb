"""Arithmetic, comparisons, identity, truth and hashes on the interpreter's values.

A special method written in Python is interpreted; everything else is Python's own operator on the values,
which for tensors records into the graph (`dynamo.graph.recorder`). Subscripts: `values.subscripts`; iteration:
`values.iteration`.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from dynamo.errors import BreakReason, GraphBreak
from dynamo.graph.sizes import SYMBOLIC
from dynamo.guards import Guard, GuardKind
from dynamo.source import ConstantSource
from dynamo.values import asked, iteration, unread
from dynamo.values.attributes import call_special, special
from dynamo.values.unread import NOT_HERE
from dynamo.values.wrap import CONSTANTS, open_container
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynamo.machine.interpreter import Machine

__all__ = [
    "as_key",
    "binary",
    "check_hashable",
    "check_plain_contents",
    "compare",
    "identical",
    "plain_numbers",
    "truth",
    "unary",
]

_METHODS: dict[Callable[..., Any], tuple[str | None, str, str]] = {}
for _name in (
    "add", "and", "floordiv", "lshift", "matmul", "mul", "mod", "or", "pow", "rshift", "sub",
    "truediv", "xor",
):  # fmt: skip
    _METHODS[getattr(operator, {"and": "and_", "or": "or_"}.get(_name, _name))] = (
        None, f"__{_name}__", f"__r{_name}__",
    )  # fmt: skip
    _METHODS[getattr(operator, f"i{_name}")] = (f"__i{_name}__", f"__{_name}__", f"__r{_name}__")
_REFLECTED = {
    operator.lt: ("__lt__", "__gt__"),
    operator.le: ("__le__", "__ge__"),
    operator.eq: ("__eq__", "__eq__"),
    operator.ne: ("__ne__", "__ne__"),
    operator.gt: ("__gt__", "__lt__"),
    operator.ge: ("__ge__", "__le__"),
}
_PLAIN: frozenset[type] = CONSTANTS | {
    FakeTensor,
    torch.SymInt,
    torch.SymFloat,
    torch.SymBool,
}
_CONTAINERS = (list, tuple, dict, set, frozenset)


def _class_of(kinds: dict[int, type], value: Any) -> type:
    """The class whose special methods decide, where tensors of other classes take part."""
    kind = type(value)
    if kind is not FakeTensor or not kinds:
        return kind
    return kinds.get(id(value), torch.Tensor)


def _simple(value: Any) -> bool:
    return type(value) in _PLAIN


# -- arithmetic ----------------------------------------------------------------------------------------


_POWERS = frozenset({operator.pow, operator.ipow})


def _reckons_with_floats(left: type, right: type) -> bool:
    """Whether one operand varies and one is a float: torch's own symbols round otherwise than Python."""
    if left is torch.SymFloat or right is torch.SymFloat:
        return True
    return (left is torch.SymInt and right is float) or (left is float and right is torch.SymInt)


def binary(machine: Machine, function: Callable[..., Any], left: Any, right: Any) -> Any:
    """`left <op> right`, in place for the in-place operators."""
    kinds = machine.session.recorder.kinds
    if type(left) in _PLAIN and type(right) in _PLAIN and not kinds:
        if type(left) is str:
            right = plain_numbers(right)
        if _reckons_with_floats(type(left), type(right)) or (
            type(left) is torch.SymInt and type(right) is int and right < 0 and function in _POWERS
        ):
            from dynamo.values import real_numbers

            result = real_numbers.binary(function, left, right)
            if result is not NotImplemented:
                return result
        if function is operator.mod and type(left) is int and type(right) is int:
            machine.session.recorder.divides(left)
        return function(left, right)
    in_place, forward, backward = _METHODS[function]
    kind_left, kind_right = _class_of(kinds, left), _class_of(kinds, right)
    if in_place is not None:
        method = special(kind_left, in_place)
        if method is not None:
            result = call_special(machine, method, left, right)
            if result is not NotImplemented:
                return result
    first = special(kind_left, forward)
    second = special(kind_right, backward)
    if function is operator.iadd and id(left) in machine.session.unread:
        return _extended(machine, left, right)
    if first is None and second is None:
        asked.prepare(machine, left)
        asked.prepare(machine, right)
        return function(left, plain_numbers(right) if kind_left is str else right)
    if second is not None and kind_left is not kind_right and issubclass(kind_right, kind_left):
        result = call_special(machine, second, right, left)
        if result is not NotImplemented:
            return result
        second = None
    if first is not None:
        result = call_special(machine, first, left, right)
        if result is not NotImplemented:
            return result
    elif hasattr(kind_left, forward) and not isinstance(left, torch.Tensor):
        result = getattr(kind_left, forward)(left, right)
        if result is not NotImplemented:
            return result
    if second is not None and kind_left is not kind_right:
        result = call_special(machine, second, right, left)
        if result is not NotImplemented:
            return result
    symbol = forward.strip("_")
    raise TypeError(
        f"unsupported operand type(s) for {symbol}: '{kind_left.__name__}' and "
        f"'{kind_right.__name__}'"
    )


def _extended(machine: Machine, left: Any, right: Any) -> Any:
    """`left += right` of a list that the program has not read."""
    session = machine.session
    items = list(iteration.iterate(machine, right))
    shadow = session.unread.get(id(left))  # `right` may have been the same list
    if shadow is None or unread.method(session, shadow, "extend", (items,)) is NOT_HERE:
        open_container(session, left)
        left.extend(items)
    return left


def unary(machine: Machine, function: Callable[..., Any], value: Any) -> Any:
    """`-value`, `+value`, `~value`."""
    method = special(
        machine.session.recorder.kinds.get(id(value), type(value)),
        {"neg": "__neg__", "pos": "__pos__"}.get(getattr(function, "__name__", ""), "__invert__"),
    )
    return function(value) if method is None else call_special(machine, method, value)


def compare(machine: Machine, function: Callable[..., Any], left: Any, right: Any) -> Any:
    """`left <comparison> right`."""
    kinds = machine.session.recorder.kinds
    kind_left, kind_right = _class_of(kinds, left), _class_of(kinds, right)
    if kind_left in _PLAIN and kind_right in _PLAIN:
        return function(left, right)
    forward, backward = _REFLECTED[function]
    first = special(kind_left, forward)
    second = special(kind_right, backward)
    if first is None and second is None:
        if function is operator.ne and special(kind_left, "__eq__") is not None:
            result = compare(machine, operator.eq, left, right)
            return result if result is NotImplemented else not truth(machine, result)
        asked.prepare(machine, left)
        asked.prepare(machine, right)
        if isinstance(left, _CONTAINERS) and isinstance(right, _CONTAINERS):
            check_plain_contents(machine, left)
            check_plain_contents(machine, right)
        return function(left, right)
    if first is not None:
        result = call_special(machine, first, left, right)
        if result is not NotImplemented:
            return result
    elif kind_left in CONSTANTS or isinstance(left, _CONTAINERS):
        result = getattr(kind_left, forward)(left, right)
        if result is not NotImplemented:
            return result
    if second is not None:
        result = call_special(machine, second, right, left)
        if result is not NotImplemented:
            return result
    if function is operator.eq:
        return left is right
    if function is operator.ne:
        return left is not right
    raise TypeError(
        f"'{forward}' not supported between instances of '{kind_left.__name__}' and "
        f"'{kind_right.__name__}'"
    )


def identical(machine: Machine, left: Any, right: Any) -> bool:
    """`left is right`; that two objects from outside are two is guarded."""
    if left is right:
        return True
    session = machine.session
    if type(left) in CONSTANTS or type(right) in CONSTANTS:
        return False
    first, second = session.source_of(left), session.source_of(right)
    if first is None or second is None or session.is_created(left) or session.is_created(right):
        return False
    if type(first) is not ConstantSource and type(second) is not ConstantSource:
        key = (GuardKind.DISTINCT, first, second)
        if key not in session.guards:
            session.guards[key] = Guard(first, GuardKind.DISTINCT, (second,), session.source_line)
    return False


def truth(machine: Machine, value: Any) -> bool:
    """`bool(value)`."""
    kind = type(value)
    if kind is bool:
        return bool(value)
    if isinstance(value, torch.Tensor) and (
        kind is FakeTensor or special(kind, "__bool__") is None
    ):
        return bool(machine.session.recorder.data_dependent_truth(value))
    method = special(kind, "__bool__")
    if method is not None:
        result = call_special(machine, method, value)
        if not isinstance(result, bool):
            raise TypeError(f"__bool__ should return bool, returned {type(result).__name__}")
        return result
    if not isinstance(value, type):
        method = special(kind, "__len__")
        if method is not None and not hasattr(kind, "__bool__"):
            return bool(call_special(machine, method, value))
    if isinstance(value, dict):
        asked.guard_keys(machine, value)
    elif id(value) in machine.session.unread:
        return bool(unread.ask(machine.session, value, unread.truth, bool))
    return bool(value)


# -- containers ----------------------------------------------------------------------------------------


def check_plain_contents(machine: Machine, value: Any, depth: int = 0) -> None:
    """Refuse a native comparison of containers that would run the user's `__eq__` unseen."""
    if depth > 8:
        raise GraphBreak(BreakReason.UNSUPPORTED_OPERATION, "a container is nested too deeply")
    items = [*value.keys(), *value.values()] if isinstance(value, dict) else value
    for item in items:
        if isinstance(item, _CONTAINERS):
            asked.prepare(machine, item)
            check_plain_contents(machine, item, depth + 1)
        elif special(type(item), "__eq__") is not None and not _known_equality(type(item)):
            raise GraphBreak(
                BreakReason.UNSUPPORTED_OPERATION,
                f"{type(item).__qualname__} objects are compared inside a container",
            )


def _known_equality(kind: type) -> bool:
    module = kind.__module__.partition(".")[0]
    return module in ("torch", "enum", "pathlib")


def as_key(machine: Machine, value: Any) -> Any:
    """A key of a dict or set: symbolic numbers in it become numbers, a user's own hash is refused."""
    if type(value) in SYMBOLIC or type(value) is tuple:
        value = plain_numbers(value)
    check_hashable(machine, value)
    return value


def check_hashable(machine: Machine, value: Any) -> None:
    """Refuse to run a user's `__hash__` or `__eq__` natively, if that could differ from interpreting it."""
    kind = type(value)
    if kind in CONSTANTS or kind is FakeTensor:  # a tensor's hash is its identity
        return
    if isinstance(value, tuple | frozenset):
        for item in value:
            check_hashable(machine, item)
        return
    method = special(kind, "__hash__")
    if method is not None and method.__module__ != "enum":
        if method.__code__.co_filename == "<string>":
            return  # generated by dataclass: a hash of the fields
        _check_own_hash(machine, value, method)


def _check_own_hash(machine: Machine, value: Any, method: Any) -> None:
    """Interpret `__hash__` and `__eq__`, which guards what they read; natively they must say the same."""
    session = machine.session
    kind = type(value)
    graph = session.recorder.graph
    count = len(graph.nodes)
    told = call_special(machine, method, value)
    equal = special(kind, "__eq__")
    same = True if equal is None else truth(machine, call_special(machine, equal, value, value))
    plain = id(value) not in session.instance_dicts or session.is_created(value)
    if len(graph.nodes) != count or not plain or same is not True or told != hash(value):
        raise GraphBreak(
            BreakReason.UNSUPPORTED_OPERATION, f"{kind.__qualname__} objects are used as keys"
        )


# -- iteration -----------------------------------------------------------------------------------------


def plain_numbers(value: Any) -> Any:
    """`value` with symbolic numbers specialised: what text is made of."""
    if isinstance(value, torch.SymInt):
        return int(value)
    if isinstance(value, torch.SymFloat):
        return float(value)
    if isinstance(value, torch.SymBool):
        return bool(value)
    kind = type(value)
    if kind is tuple or kind is list:
        return kind(map(plain_numbers, value))
    if kind is torch.Size:
        return torch.Size(map(plain_numbers, value))
    if kind is dict:
        return {plain_numbers(key): plain_numbers(item) for key, item in value.items()}
    return value
