"""Builtins and library functions that need more than a native call.

`RULES` maps a callable to `rule(machine, args, kwargs)`. Rules are here because the function looks at types
(a fake tensor is a Tensor), reads or writes attributes, reads the interpreter's own state (`super()`,
`globals()`), changes torch's state, or is answered as compiled code expects (`is_compiling`).
"""

# ruff: noqa: ARG001 - one signature for all rules
from __future__ import annotations

import abc
import collections
import functools
import inspect
import operator
import os
import sys
import types
import typing
from typing import TYPE_CHECKING, Any

import torch

from dynamo.errors import BreakReason, GraphBreak
from dynamo.faults import require_programs
from dynamo.values import asked, attributes, iteration, operators, subscripts, text, writing
from dynamo.values.arrays import TracedArray, type_of_array
from dynamo.values.attributes import MISSING, call_special, special
from dynamo.values.iterators import AheadIterator
from dynamo.values.native import call_native
from dynamo.values.wrap import CONSTANTS
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynamo.machine.interpreter import Machine

__all__ = ["RULES", "UNRULED", "rule"]

RULES: dict[Any, Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]] = {}
UNRULED: Any = (
    object()
)  # what the rule of a Python function gives where the function is to be interpreted


def rule(*functions: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register `handler(machine, args, kwargs)` for callables; the first registration wins nothing."""

    def register(handler: Callable[..., Any]) -> Callable[..., Any]:
        for function in functions:
            if function in RULES:
                raise ValueError(f"two rules for {function}")
            RULES[function] = handler
        return handler

    return register


def _calls() -> Any:
    from dynamo.values import calls

    return calls


# -- types ---------------------------------------------------------------------------------------------


def type_of(machine: Machine, value: Any) -> type:
    """`type(value)` as the program sees it."""
    kind = type(value)
    if kind is FakeTensor:
        tagged = machine.session.recorder.kinds.get(id(value))
        if tagged is not None:
            return tagged
        real = machine.session.reals.get(id(value))
        if real is not None:
            return type(real)
        return machine.session.recorder.parameters.get(id(value), torch.Tensor)
    if kind is TracedArray:
        return type_of_array(value)
    if kind is AheadIterator:
        return type(value.original)
    if kind.__module__.startswith("dynamo.values") or kind.__module__.startswith("dynamo.machine"):
        return types.GeneratorType
    if kind is torch.SymInt:
        return int
    if kind is torch.SymFloat:
        return float
    if kind is torch.SymBool:
        return bool
    return kind


@rule(isinstance)
def _isinstance(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value, wanted = args
    kind = type_of(machine, value)
    if kind is type(value):
        check = special(type(wanted), "__instancecheck__") if isinstance(wanted, type) else None
        if check is not None and not attributes_trusted(check.__module__):
            return operators.truth(machine, machine.inline(check, (wanted, value), {}))
        if type(attributes.class_attribute(kind, "__class__")) is property:
            claimed = attributes.load(machine, value, "__class__")
            return issubclass(kind, wanted) or issubclass(claimed, wanted)
        return isinstance(value, wanted)
    candidates = wanted if isinstance(wanted, tuple) else (wanted,)
    if isinstance(wanted, types.UnionType):
        candidates = typing.get_args(wanted)
    for candidate in candidates:
        if isinstance(candidate, tuple):
            if _isinstance(machine, (value, candidate), {}):
                return True
        elif candidate is torch.nn.Parameter or candidate is torch.nn.Buffer:
            real = machine.session.reals.get(id(value))
            made = machine.session.recorder.parameters.get(id(value))
            if isinstance(real, candidate) or (made is not None and issubclass(made, candidate)):
                return True
        elif (isinstance(candidate, type) and issubclass(kind, candidate)) or (
            isinstance(value, FakeTensor)
            and isinstance(candidate, type)
            and (
                candidate.__module__.startswith("torch")
                and isinstance(value, candidate)
                and (candidate is not FakeTensor)
            )
        ):
            return True
    return False


def attributes_trusted(module: object) -> bool:
    """Whether a metaclass hook of this module may run natively."""
    from dynamo.values.session import is_trusted

    return is_trusted(module)


@rule(issubclass)
def _issubclass(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    first, second = args
    return issubclass(torch.Tensor if first is FakeTensor else first, second)


@rule(callable)
def _callable(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return callable(args[0])


# -- attributes ----------------------------------------------------------------------------------------


@rule(getattr)
def _getattr(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if len(args) == 3:
        try:
            return attributes.load(machine, args[0], args[1])
        except AttributeError as error:
            require_programs(error)
            return args[2]
    return attributes.load(machine, *args)


@rule(hasattr)
def _hasattr(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        attributes.load(machine, *args)
    except AttributeError as error:
        require_programs(error)
        return False
    return True


@rule(setattr)
def _setattr(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    writing.store(machine, *args)


@rule(delattr)
def _delattr(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    writing.delete(machine, *args)


@rule(object.__setattr__)
def _object_setattr(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    writing.generic_store(machine, *args)


@rule(object.__delattr__)
def _object_delattr(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    writing.generic_delete(machine, *args)


@rule(object.__getattribute__)
def _object_getattribute(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    owner, name = args
    value = attributes.generic_load(machine, owner, type(owner), name)
    if value is MISSING:
        raise AttributeError(f"'{type(owner).__name__}' object has no attribute '{name}'")
    return value


@rule(torch.nn.Module.__getattr__)
def _module_getattr(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return attributes.module_member(machine, *args)


@rule(vars)
def _vars(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not args:
        raise GraphBreak(BreakReason.UNSUPPORTED_CALL, "vars() of a frame")
    return attributes.load(machine, args[0], "__dict__")


@rule(super)
def _super(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if args:
        return super(*args)
    frame = machine.frames[-1]
    cell = frame.slots[frame.program.slot_index["__class__"]]
    cls = machine.session.resolve(cell.cell_contents)
    receiver = frame.slots[0]
    if isinstance(receiver, types.CellType):
        receiver = receiver.cell_contents
    return super(cls, receiver)


@rule(sys.exc_info)
def _exc_info(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    error = machine.handled()
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)


@rule(sys.exception)
def _exception(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return machine.handled()


@rule(globals)
def _globals(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    raise GraphBreak(BreakReason.UNSUPPORTED_CALL, "globals() is not captured")


# -- objects -------------------------------------------------------------------------------------------


@rule(object.__new__)
def _object_new(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return machine.session.created(object.__new__(args[0]))


@rule(object.__init__, object.__init_subclass__)
def _object_init(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return None


@rule(object.__dict__["__init_subclass__"])
def _no_subclass_hook(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if kwargs:
        raise TypeError(f"{args[0].__name__}.__init_subclass__() takes no keyword arguments")


_BASES: tuple[Any, ...] = (tuple, dict, list, set, str, int, float)


@rule(*(base.__new__ for base in _BASES))
def _container_new(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    cls, *rest = args
    base = next(base for base in _BASES if issubclass(cls, base))
    if base is tuple:
        rest = [tuple(iteration.iterate(machine, item)) for item in rest]
    return machine.session.created(base.__new__(cls, *rest))


@rule(type.__call__)
def _type_call(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _calls().construct(machine, args[0], args[1:], kwargs)


@rule(torch.nn.Module.__call__)
def _module_call(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    from dynamo.values import modules

    return modules.call_hooked(machine, args[0], args[1:], kwargs, resumable=False)


@rule(id)
def _id(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = args[0]
    session = machine.session
    shadow = session.shadows_by_copy.get(id(value))
    from dynamo.guards import GuardKind

    real = shadow.original if shadow is not None else session.reals.get(id(value), value)
    source = session.source_of(value)
    if source is None:
        raise GraphBreak(BreakReason.UNSUPPORTED_CALL, "id() of an object made while capturing")
    session.guard(GuardKind.IDENTITY, source, real)
    return id(real)


@rule(hash)
def _hash(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = args[0]
    method = special(type(value), "__hash__")
    if method is not None:
        return call_special(machine, method, value)
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return hash(operators.plain_numbers(value))
    if type(value) in CONSTANTS or isinstance(value, tuple):
        return hash(operators.plain_numbers(value))
    raise GraphBreak(BreakReason.UNSUPPORTED_CALL, "hash() of an object depends on its address")


def _text(name: str, function: Any) -> None:
    @rule(function)
    def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name == "__str__" and (len(args) != 1 or kwargs):
            return str(*args, **kwargs)
        value = args[0]
        if isinstance(value, FakeTensor):
            raise GraphBreak(BreakReason.DATA_DEPENDENT_VALUE, "a tensor is turned into text")
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            value = operators.plain_numbers(value)
        kind = type(value)
        method = special(kind, name)
        if (
            method is None
            and name == "__str__"
            and attributes.class_attribute(kind, "__str__") is object.__str__
        ):
            method = special(kind, "__repr__")
        if method is not None and kind.__module__ != "enum":
            from dynamo.values import calls

            attributes.guard_special(machine, kind, method)
            return calls.call(machine, method, (value,), {})
        if kind in text.BRACKETS and function is not ascii and text.is_told(machine, value):
            return text.contents(machine, value)
        if isinstance(value, BaseException):
            return function(_said(machine, value))
        if kind in CONSTANTS or isinstance(value, type | types.ModuleType):
            return function(value)
        if isinstance(value, list | tuple | dict | set | frozenset | collections.deque):
            asked.force(machine, value)
            _check_text(machine, value)
            return function(operators.plain_numbers(value))
        if attributes.class_attribute(kind, "__repr__") is not object.__repr__:
            return function(value)
        raise GraphBreak(BreakReason.UNSUPPORTED_CALL, "the text of an object has its address")


def _said(machine: Machine, error: BaseException) -> BaseException:
    """The exception, with the numbers that its text is made of specialised."""
    _check_text(machine, error.args)
    for item in error.args:
        if special(type(item), "__str__") is not None and type(item).__module__ != "enum":
            raise GraphBreak(BreakReason.UNSUPPORTED_CALL, "the text of an object is needed")
    plain = operators.plain_numbers(error.args)
    if any(one is not other for one, other in zip(plain, error.args, strict=True)):
        error.args = plain
    return error


def _check_text(machine: Machine, value: Any) -> None:
    items = [*value.keys(), *value.values()] if isinstance(value, dict) else value
    for item in items:
        if isinstance(item, FakeTensor):
            raise GraphBreak(BreakReason.DATA_DEPENDENT_VALUE, "a tensor is turned into text")
        if isinstance(item, list | tuple | dict | set | frozenset):
            asked.force(machine, item)
            _check_text(machine, item)
        elif special(type(item), "__repr__") is not None and type(item).__module__ != "enum":
            raise GraphBreak(BreakReason.UNSUPPORTED_CALL, "the text of an object is needed")


_text("__str__", str)
_text("__repr__", repr)
_text("__repr__", ascii)


@rule(format)
def _format(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return text.format_text(machine, args[0], args[1] if len(args) > 1 else "")


@rule(bool)
def _bool(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return operators.truth(machine, args[0]) if args else False


def _number(cls: type, name: str) -> None:
    @rule(cls)
    def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args and isinstance(args[0], FakeTensor):
            return machine.session.recorder.data_dependent_number(args[0], cls)
        if args and isinstance(args[0], TracedArray):
            return machine.session.recorder.data_dependent_number(args[0].tensor, cls)
        if args and isinstance(args[0], torch.SymBool):
            return cls(bool(args[0]))
        if args and isinstance(args[0], torch.SymInt | torch.SymFloat):
            if cls is int and isinstance(args[0], torch.SymInt):
                return args[0]
            if cls is float:
                return torch.sym_float(args[0])
            return torch.sym_int(args[0])
        if args:
            method = special(type(args[0]), name)
            if method is not None and type(args[0]).__module__ != "enum" and not kwargs:
                return call_special(machine, method, *args)
        return cls(*args, **kwargs)


_number(int, "__int__")
_number(float, "__float__")


@rule(len)
def _len(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return subscripts.length(machine, *args)


@rule(iter)
def _iter(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if len(args) == 2:
        from dynamo.values.generators import TracedCallable

        return iter(TracedCallable(machine, args[0]), args[1])
    return iteration.get_iterator(machine, args[0])


@rule(next)
def _next(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return iteration.advance(machine, args[0])
    except StopIteration:
        if len(args) > 1:
            return args[1]
        raise


@rule(list)
def _list(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return list(iteration.iterate(machine, args[0])) if args else []


@rule(tuple)
def _tuple(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return tuple(iteration.iterate(machine, args[0])) if args else ()


def _hashed(cls: type) -> None:
    @rule(cls)
    def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        items = iteration.iterate(machine, args[0]) if args else ()
        return cls([operators.as_key(machine, item) for item in items])


_hashed(set)
_hashed(frozenset)


def _mapping(cls: type) -> None:
    @rule(cls)
    def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not args:
            return cls(**kwargs)
        first = args[0]
        if isinstance(first, dict) or hasattr(first, "keys"):
            found = subscripts.mapping_items(machine, first)
        else:
            found = {}
            for pair in iteration.iterate(machine, first):
                key, value = iteration.take(machine, pair, 3)
                found[operators.as_key(machine, key)] = value
        return cls(found, **kwargs)


_mapping(dict)
_mapping(collections.OrderedDict)


@rule(any)
def _any(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return any(operators.truth(machine, item) for item in iteration.iterate(machine, args[0]))


@rule(all)
def _all(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return all(operators.truth(machine, item) for item in iteration.iterate(machine, args[0]))


@rule(sum)
def _sum(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    total = args[1] if len(args) > 1 else kwargs.get("start", 0)
    for item in iteration.iterate(machine, args[0]):
        total = operators.binary(machine, operator.add, total, item)
    return total


def _extreme(function: Any, comparison: Any) -> None:
    @rule(function)
    def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not args:
            raise TypeError(f"{function.__name__} expected at least 1 argument, got 0")
        items = list(args) if len(args) > 1 else list(iteration.iterate(machine, args[0]))
        key = kwargs.get("key")
        if not items:
            if "default" in kwargs:
                return kwargs["default"]
            raise ValueError(f"{function.__name__}() arg is an empty sequence")
        if (
            key is None
            and all(isinstance(item, torch.SymInt | int) for item in items)
            and any(isinstance(item, torch.SymInt) for item in items)
        ):
            symbolic = torch.sym_max if function is max else torch.sym_min
            return functools.reduce(symbolic, items)
        best = items[0]
        best_key = best if key is None else _calls().call(machine, key, (best,), {})
        for item in items[1:]:
            item_key = item if key is None else _calls().call(machine, key, (item,), {})
            if operators.truth(machine, operators.compare(machine, comparison, item_key, best_key)):
                best, best_key = item, item_key
        return best


_extreme(max, operator.gt)
_extreme(min, operator.lt)


@rule(reversed)
def _reversed(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = args[0]
    method = special(type(value), "__reversed__")
    if method is not None:
        return machine.inline(method, (value,), {})
    if isinstance(value, dict):
        asked.guard_keys(machine, value)
        return reversed(value)
    if isinstance(value, FakeTensor):
        return value.flip(0)
    if special(type(value), "__getitem__") is not None:
        return iter(
            [subscripts.subscript(machine, value, i)
             for i in range(subscripts.length(machine, value) - 1, -1, -1)]
        )  # fmt: skip
    return reversed(value)


# -- operator module ------------------------------------------------------------------------------------

for _function in operators._METHODS:

    def _binary(
        machine: Machine,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        function: Any = _function,
    ) -> Any:
        return operators.binary(machine, function, *args)

    RULES[_function] = _binary

for _function in operators._REFLECTED:

    def _compare(
        machine: Machine,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        function: Any = _function,
    ) -> Any:
        return operators.compare(machine, function, *args)

    RULES[_function] = _compare


@rule(operator.getitem)
def _getitem(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return subscripts.subscript(machine, *args)


@rule(operator.setitem)
def _setitem(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    subscripts.store_subscript(machine, *args)


@rule(operator.contains)
def _contains(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return subscripts.contains(machine, *args)


@rule(operator.truth)
def _truth(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return operators.truth(machine, *args)


@rule(operator.not_)
def _not(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return not operators.truth(machine, *args)


@rule(operator.index)
def _index(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    (value,) = args
    if isinstance(value, torch.SymInt):
        return value  # a size stays one
    return call_native(machine, operator.index, args, kwargs)


_partial_type: Any = functools.partial


@rule(_partial_type)
def _partial(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return machine.session.created(_partial_type(*args, **kwargs))


@rule(types.MethodType)
def _method(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return types.MethodType(*args, **kwargs)


@rule(functools.wraps)
def _wraps(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    wrapped = args[0]
    return functools.partial(_update_wrapper, wrapped=wrapped)


def _update_wrapper(wrapper: Any, wrapped: Any) -> Any:
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        if hasattr(wrapped, name):
            setattr(wrapper, name, getattr(wrapped, name))
    wrapper.__wrapped__ = wrapped
    return wrapper


@rule(_update_wrapper)
def _update_wrapper_rule(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _update_wrapper(*args, **kwargs)


@rule(inspect.signature)
def _signature(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return machine.session.created(inspect.signature(*args, **kwargs))


@rule(str.maketrans, bytes.maketrans)
def _translation(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    function = bytes.maketrans if isinstance(args[0], bytes) else str.maketrans
    for item in args:
        asked.force(machine, item)
    return function(*operators.plain_numbers(args), **kwargs)


@rule(os.fspath)
def _path_text(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    method = special(type(args[0]), "__fspath__")
    return os.fspath(args[0]) if method is None else machine.inline(method, args, kwargs)


@rule(typing.cast)
def _cast(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[1]


@rule(abc.ABCMeta.__instancecheck__)
def _instancecheck(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return isinstance(args[1], args[0])
