"""Tensors that hold one number which is known while capturing, as `torch.tensor(3) * 2`.

In: each recorded call and its result. Out: the number, where the program asks for it (`item`, a size, a slice's
bound, a branch), so that no graph break is needed. Invariant: a number is known only if the tensor was made in
this capture on the CPU, from numbers alone, by operators without side effects, and nothing was written in place
since; the real tensor kept for it has the dtype that eager's has.
"""

from __future__ import annotations

from typing import Any

import torch

from primtorch.fake import FakeTensor

__all__ = ["ANSWERED", "Known"]

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


class Known:
    """The known numbers of one capture."""

    __slots__ = ("_exposed", "_values")

    def __init__(self) -> None:
        self._exposed = False  # a tensor that may share a known one's memory was made
        self._values: dict[
            int, tuple[Any, torch.Tensor]
        ] = {}  # the fake is kept: its id stays its own

    def __bool__(self) -> bool:
        return bool(self._values)

    def clear(self) -> None:
        """Nothing is certain any more: code that isn't seen ran."""
        self._values.clear()

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
        real = compute(function, values, named)
        if real is not None and real.ndim == 0 and real.dtype is result.dtype:
            self._values[id(result)] = (result, real)

    def numbers_only(self, function: Any, name: str, args: Any, kwargs: Any) -> torch.Tensor | None:
        """What arithmetic on numbers alone, `torch.div(7, 2)`, makes: a tensor of one number."""
        if name not in _ARITHMETIC or not all(type(value) in _PLAIN for value in args):
            return None
        return compute(function, list(args), kwargs)

    def keep(self, fake: Any, real: torch.Tensor) -> None:
        """Remember that `fake` holds the number in `real`."""
        self._values[id(fake)] = (fake, real)

    def find(self, value: Any) -> torch.Tensor | None:
        """The real tensor of a known number."""
        found = self._values.get(id(value))
        return None if found is None else found[1]

    def replaced(self, value: Any) -> Any:
        """The arguments of a call with numbers in place of the tensors that hold them."""
        match value:
            case FakeTensor():
                real = self.find(value)
                return value if real is None else real.item()
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
        if kind in _PLAIN or (kind is torch.device and value.type == "cpu"):
            return value
        raise LookupError


def compute(function: Any, args: list[Any], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """The call on real numbers; None where it raises or makes something else."""
    try:
        with torch._C.DisableTorchFunction(), torch.no_grad():
            result = function(*args, **kwargs)
    except Exception:  # noqa: BLE001 - the recorded call raises the same where it must
        return None
    return result if type(result) is torch.Tensor else None


def _tensors(args: Any) -> bool:
    return any(type(value) is FakeTensor for value in args)
