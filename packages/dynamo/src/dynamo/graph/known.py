"""Tensors that hold one number which is known while capturing, as `torch.tensor(3) * 2` or `torch.tensor(x.shape[0])`.

In: each recorded call and its result. Out: the number, where the program asks for it (`item`, a size, a slice's
bound, a branch), so that no graph break is needed. Invariant: a number is known only if the tensor was made in
this capture on the CPU, from numbers alone, by operators without side effects, and nothing was written in place
since; what is kept for it is a real tensor of the dtype that eager's has, a symbolic size where it is an int64, or
other arithmetic on such sizes, which fixes them when somebody asks for the number.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from dynamo.graph.contents import Contents, compute
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dynamo.graph.recorder import Recorder

__all__ = ["ANSWERED", "Known", "first_as_tensor", "made_of_sizes", "of_size"]

# Questions about data that a known number answers.
ANSWERED = frozenset(
    {"item", "tolist", "__bool__", "is_nonzero", "__int__", "__float__", "__index__", "__complex__"}
)
_MAKERS = frozenset({"tensor", "scalar_tensor", "as_tensor"})
_ARITHMETIC = frozenset(
    {
        "add", "sub", "mul", "div", "true_divide", "divide", "floor_divide", "remainder", "pow", "neg",
        "rsub", "__rsub__", "__rdiv__", "__rtruediv__", "__floordiv__", "__rfloordiv__", "__rpow__",
        "__rmul__", "__radd__", "abs", "sqrt", "rsqrt", "exp", "log", "log2", "ceil", "floor", "trunc",
        "round", "sign", "clamp", "minimum", "maximum", "square", "reciprocal", "float", "double", "int",
        "long", "bool", "eq", "ne", "lt", "le", "gt", "ge", "logical_not", "logical_and", "logical_or", "to",
        "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "greater", "less",
    }
)  # fmt: skip
# Other operators whose result shares no memory with a number that they were given.
_SEPARATE = frozenset(
    {"clone", "where", "cat", "stack", "matmul", "masked_fill", "full", "__setitem__", "full_like"}
)
_PLAIN = frozenset({int, float, bool, str, type(None), torch.dtype})
_NUMBERS = frozenset({int, float, bool, torch.SymInt, torch.SymFloat})
_SEQUENCES = frozenset({list, tuple, torch.Size})


def _trunc_divide(dividend: Any, divisor: Any) -> Any:
    """The quotient rounded towards zero; assumes the signs of sizes."""
    below = bool(dividend < 0) != bool(divisor < 0)
    return -(-dividend // divisor) if below else dividend // divisor


# Arithmetic on symbolic sizes, where it is that of int64 tensors.
_ON_SIZES: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "__radd__": operator.add,
    "sub": operator.sub,
    "rsub": lambda a, b: b - a,
    "__rsub__": lambda a, b: b - a,
    "mul": operator.mul,
    "__rmul__": operator.mul,
    "neg": operator.neg,
    "abs": lambda a: a if a >= 0 else -a,
    "floor_divide": operator.floordiv,
    "__floordiv__": operator.floordiv,
    "trunc_divide": _trunc_divide,
    "remainder": operator.mod,
    "minimum": torch.sym_min,
    "maximum": torch.sym_max,
}
_DIVIDES = frozenset({"floor_divide", "__floordiv__", "trunc_divide", "remainder"})
_COMPARISONS: dict[str, Callable[..., Any]] = {
    "eq": operator.eq,
    "__eq__": operator.eq,
    "ne": operator.ne,
    "__ne__": operator.ne,
    "lt": operator.lt,
    "__lt__": operator.lt,
    "less": operator.lt,
    "le": operator.le,
    "__le__": operator.le,
    "gt": operator.gt,
    "__gt__": operator.gt,
    "greater": operator.gt,
    "ge": operator.ge,
    "__ge__": operator.ge,
}


@dataclass(frozen=True, slots=True)
class _Later:
    """A number computed from symbolic sizes, which are fixed when it is asked for; of a comparison only its outcome."""

    function: Any
    values: tuple[Any, ...]
    named: dict[str, Any]
    compares: bool = False

    def settled(self) -> torch.Tensor | None:
        """The number; None where it can't be computed."""
        if self.compares:
            return compute(torch.tensor, [bool(self.function(*self.values))], {})
        values: list[Any] = []
        for value in self.values:
            match value:
                case torch.SymInt():
                    values.append(int(value))
                case _Later():
                    number = value.settled()
                    if number is None:
                        return None
                    values.append(number)
                case _:
                    values.append(value)
        return compute(self.function, values, self.named)


class Known:
    """The known numbers of one capture."""

    __slots__ = ("_exposed", "_values", "contents")

    def __init__(self) -> None:
        self.contents = Contents()
        self._exposed = False  # a tensor that may share a known one's memory was made
        self._values: dict[
            int, tuple[Any, torch.Tensor | torch.SymInt | _Later]
        ] = {}  # the fake is kept: its id stays its own

    def __bool__(self) -> bool:
        return bool(self._values)

    def clear(self) -> None:
        """Nothing is certain any more: code that isn't seen ran."""
        self._values.clear()
        self.contents.clear()

    def written(self, targets: Any) -> None:
        """These tensors were written in place."""
        if self._exposed or self.holds_any(targets):
            self._values.clear()

    def seen(self, name: str, args: Any, kwargs: Any) -> None:
        """A call may make a view of a known number, through which it can be written."""
        if name in _ARITHMETIC or name in _SEPARATE or name.endswith("_"):
            return
        self._exposed = self._exposed or self.holds_any(args) or self.holds_any(kwargs)

    def note(self, function: Any, name: str, args: Any, kwargs: Any, result: Any) -> None:
        """Remember the number in `result`, if this call makes it known."""
        maker = name in _MAKERS
        if not (maker or (name in _ARITHMETIC and (self._values or not _tensors(args)))):
            return
        if result.ndim != 0 or result.device.type != "cpu" or result.requires_grad:
            return
        try:
            values = [self._real(value) for value in args]
            named = {key: self._real(value) for key, value in kwargs.items()}
        except LookupError:
            return
        if any(type(value) in (torch.SymInt, _Later) for value in values):
            size = _of_sizes(name, values, named, result)
            if size is None:
                tensors = [
                    _Later(torch.tensor, (value,), {})
                    if type(value) is torch.SymInt and type(arg) is FakeTensor
                    else value
                    for arg, value in zip(args, values, strict=True)
                ]
                size = _Later(function, tuple(tensors), named)
            self._values[id(result)] = (result, size)
            return
        real = compute(function, values, named)
        if real is not None and real.ndim == 0 and real.dtype is result.dtype:
            self._values[id(result)] = (result, real)

    def numbers_only(self, function: Any, name: str, args: Any, kwargs: Any) -> torch.Tensor | None:
        """What arithmetic on numbers alone, `torch.div(7, 2)`, makes: a tensor of one number."""
        if name not in _ARITHMETIC or not all(type(value) in _PLAIN for value in args):
            return None
        return compute(function, list(args), kwargs)

    def keep(self, fake: Any, real: torch.Tensor | torch.SymInt) -> None:
        """Remember that `fake` holds the number in `real`, or this size in its dtype."""
        if isinstance(real, torch.SymInt) and fake.dtype is not torch.int64:
            self._values[id(fake)] = (fake, _Later(torch.tensor, (real,), {"dtype": fake.dtype}))
        else:
            self._values[id(fake)] = (fake, real)

    def find(self, value: Any) -> torch.Tensor | torch.SymInt | None:
        """The real tensor of a known number, or the symbolic size that it is."""
        found = self._values.get(id(value))
        if found is None:
            return self.contents.single(value)
        number = found[1]
        return number.settled() if isinstance(number, _Later) else number

    def replaced(self, value: Any) -> Any:
        """The arguments of a call with numbers in place of the tensors that hold them."""
        match value:
            case FakeTensor():
                real = self.find(value)
                return (
                    real.item()
                    if isinstance(real, torch.Tensor)
                    else value
                    if real is None
                    else real
                )
            case list():
                return [self.replaced(item) for item in value]
            case tuple() if type(value) in (tuple, torch.Size):
                return tuple(self.replaced(item) for item in value)
            case dict():
                return {key: self.replaced(item) for key, item in value.items()}
            case slice():
                return slice(*map(self.replaced, (value.start, value.stop, value.step)))
            case _:
                return value

    def holds_any(self, value: Any) -> bool:
        """Whether a known number is among the arguments of a call."""
        match value:
            case FakeTensor():
                return id(value) in self._values
            case list() | tuple():
                return any(map(self.holds_any, value))
            case dict():
                return any(map(self.holds_any, value.values()))
            case slice():
                return any(map(self.holds_any, (value.start, value.stop, value.step)))
            case _:
                return False

    def _real(self, value: Any) -> Any:
        """An argument for computing; LookupError if it isn't known."""
        kind = type(value)
        if kind is FakeTensor:
            return self._values[id(value)][1]
        if kind in _PLAIN or kind is torch.SymInt or (kind is torch.device and value.type == "cpu"):
            return value
        raise LookupError


def _of_sizes(
    name: str, values: list[Any], named: dict[str, Any], result: Any
) -> torch.SymInt | _Later | None:
    """What arithmetic on sizes and int64 numbers gives where it is a size or compares; None elsewhere."""
    if name in ("div", "divide") and named.keys() == {"rounding_mode"}:
        name = {"floor": "floor_divide", "trunc": "trunc_divide"}.get(named["rounding_mode"], "")
        named = {}
    if named:
        return None
    numbers = [
        value.item() if type(value) is torch.Tensor and value.dtype is torch.int64 else value
        for value in values
    ]
    if not all(type(number) in (int, torch.SymInt) for number in numbers):
        return None
    if name in _COMPARISONS:
        return _Later(_COMPARISONS[name], tuple(numbers), {}, compares=True)
    if name not in _ON_SIZES or result.dtype is not torch.int64:
        return None
    if name in _DIVIDES and type(numbers[1]) is int and numbers[1] == 0:
        return None  # raises when it runs
    size: torch.SymInt = _ON_SIZES[name](*numbers)
    return size


def of_size(name: str, size: torch.SymInt) -> Any:
    """What a question about the data of an int64 tensor that holds `size` is answered."""
    match name:
        case "__bool__" | "is_nonzero":
            return bool(size != 0)
        case "__float__":
            return torch.sym_float(size)
        case "__complex__":
            return complex(int(size))
        case _:
            return size


def made_of_sizes(recorder: Recorder, data: Any, options: dict[str, Any]) -> Any:
    """What `torch.tensor` makes of numbers some of which are symbolic: tensors filled, and stacked.

    None where none is, or something else is among them.
    """
    kinds = set(map(type, _leaves(data)))
    if kinds.isdisjoint((torch.SymInt, torch.SymFloat)) or not kinds <= _NUMBERS:
        return None
    if not options.keys() <= {"dtype", "device"}:
        return None
    default = (
        torch.int64 if kinds.isdisjoint((float, torch.SymFloat)) else torch.get_default_dtype()
    )
    options = {"dtype": options.get("dtype") or default, "device": options.get("device")}

    def make(value: Any) -> Any:
        if type(value) in _SEQUENCES:
            return recorder.intercept(torch.stack, (list(map(make, value)),), {})
        made = recorder.intercept(torch.full, ((), value), options)
        if type(value) is torch.SymInt and made.device.type == "cpu":
            recorder.known.keep(made, value)
        return made

    return make(data)


def first_as_tensor(recorder: Recorder, name: str, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The arguments of arithmetic on sizes alone, `torch.div(x.shape[1], 4)`, the first size as the tensor it becomes.

    None for any other call.
    """
    kinds = [type(value) for value in args]
    if name not in _ARITHMETIC or torch.SymInt not in kinds or not _NUMBERS.issuperset(kinds):
        return None
    at = kinds.index(torch.SymInt)
    return (*args[:at], made_of_sizes(recorder, args[at], {}), *args[at + 1 :])


def _leaves(data: Any) -> Iterator[Any]:
    if type(data) in _SEQUENCES:
        for item in data:
            yield from _leaves(item)
    else:
        yield data


def _tensors(args: Any) -> bool:
    return any(type(value) is FakeTensor for value in args)
