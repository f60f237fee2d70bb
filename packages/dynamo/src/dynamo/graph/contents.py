"""Which numbers tensors can hold that are made of constants: masks of ones, padded with zeros, compared, cut.

In: each recorded call and its result. Out: the number that a question about data is answered with (`item`, a branch)
where only one is possible, so that `if mask.any():` of a mask that no input decides is no graph break. Invariant: every
element of a storage that is remembered is one of its few numbers, which follow from the calls alone, whatever the sizes
and the inputs; a call that isn't known to leave its arguments as they are makes theirs forgotten.
"""

from __future__ import annotations

import itertools
import math
import types
from typing import TYPE_CHECKING, Any

import torch

from dynamo.graph.tensor_classes import traced_in
from primtorch.fake import FakeTensor
from primtorch.symbolic import bounds, expression_of

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Contents", "compute"]

_MOST = 4  # numbers that are remembered of a storage
_MOST_RUNS = 64  # combinations of them that one call is tried with

_Numbers = tuple[Any, ...]

# Makers: the number that they fill with, or the place of the argument that says it.
_FILLED: dict[str, Any] = {
    **dict.fromkeys(("ones", "ones_like", "new_ones"), 1),
    **dict.fromkeys(("zeros", "zeros_like", "new_zeros"), 0),
}
_FILLED_WITH = {"full": 1, "full_like": 1, "new_full": 2, "tensor": 0, "scalar_tensor": 0}
_FILL_NAMES = ("fill_value", "data", "s")
# Element by element, and the same on every device: what they give is found by trying.
_EXACT = frozenset(
    {
        "eq", "ne", "lt", "le", "gt", "ge", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__",
        "not_equal", "less", "less_equal", "greater", "greater_equal",
        "logical_not", "logical_and", "logical_or", "logical_xor", "bitwise_not", "bitwise_and", "bitwise_or",
        "bitwise_xor", "__and__", "__or__", "__xor__", "__invert__", "__rand__", "__ror__", "__rxor__",
        "add", "sub", "mul", "neg", "abs", "rsub", "__radd__", "__rsub__", "__rmul__", "__add__", "__sub__",
        "__mul__", "__neg__", "__abs__", "minimum", "maximum", "clamp", "clip", "clamp_min", "clamp_max",
        "where", "masked_fill", "isnan", "isinf", "isfinite", "sign",
    }
)  # fmt: skip
_BY_CONDITION = frozenset({"where", "masked_fill"})
_CASTS = frozenset(
    {"to", "type_as", "bool", "int", "long", "short", "float", "double", "half", "bfloat16", "cpu", "cuda"}
)  # fmt: skip
# The elements of their first argument, in another place or order, some of them or again.
_PLACED = frozenset(
    {
        "__getitem__", "view", "view_as", "reshape", "reshape_as", "expand", "expand_as", "broadcast_to", "flatten",
        "ravel", "unflatten", "squeeze", "unsqueeze", "transpose", "permute", "t", "movedim", "moveaxis", "swapaxes",
        "swapdims", "narrow", "select", "diagonal", "unfold", "as_strided", "contiguous", "clone", "detach", "alias",
        "repeat", "tile", "index_select", "gather", "take_along_dim", "flip", "roll",
    }
)  # fmt: skip
_WITH_ZEROS = frozenset({"tril", "triu"})
_JOINED = frozenset({"cat", "concat", "concatenate", "stack"})
_SPLIT = frozenset({"chunk", "split", "tensor_split", "unbind"})  # views only
# Of one element they give what they give of many equal ones.
_REDUCED = {
    "any": torch.any, "all": torch.all, "max": torch.max, "min": torch.min, "amax": torch.amax, "amin": torch.amin,
}  # fmt: skip
_SUMS = frozenset({"sum", "count_nonzero"})
# Others that read their arguments and make something new.
_READING = frozenset(
    {
        "scaled_dot_product_attention", "matmul", "bmm", "mm", "einsum", "linear", "softmax", "cumsum", "mean",
        "argmax", "argmin", "div", "pow",
    }
)  # fmt: skip
_PURE = frozenset(
    {*_FILLED, *_FILLED_WITH, *_EXACT, *_CASTS, *_PLACED, *_WITH_ZEROS, *_JOINED, *_SPLIT, *_REDUCED, *_SUMS, *_READING}
) | {"pad"}  # fmt: skip
_OF_C = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
_TRUTHS = (False, True)
_PLAIN = frozenset({int, float, bool})


class Contents:
    """What is known of the storages of one capture."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        # By the storage, which is kept: its id stays its own.
        self._held: dict[int, tuple[Any, torch.dtype, _Numbers]] = {}

    def clear(self) -> None:
        """Nothing is certain any more: code that isn't seen ran."""
        self._held.clear()

    def single(self, value: Any) -> torch.Tensor | None:
        """A tensor of one element as a real one, if only one number can be in it."""
        found = self._held.get(id(value.storage)) if type(value) is FakeTensor else None
        if found is None or len(found[2]) != 1 or found[1] is not value.dtype:
            return None
        if any(type(size) is not int or size != 1 for size in value.shape):
            return None
        with torch._C.DisableTorchFunction():
            return torch.full(tuple(value.shape), found[2][0], dtype=found[1])

    def note(
        self, function: Any, name: str, args: Any, kwargs: dict[str, Any], result: Any
    ) -> None:
        """Remember what this call makes, and forget what it may have written to."""
        if "out" in kwargs or kwargs.get("inplace"):
            self.forget(traced_in(args, kwargs))
        elif name in _PURE and _is_torchs(function):
            if type(result) is not FakeTensor or id(result.storage) in self._held:
                return
            numbers = self._made(function, name, args, kwargs, result)
            if numbers is None or len(numbers) > _MOST:
                return
            if result.dtype is torch.bool and len(numbers) == len(_TRUTHS):
                return
            if all(value.storage is not result.storage for value in traced_in(args[:1], {})):
                self._held[id(result.storage)] = (result.storage, result.dtype, numbers)
        elif self._held and not (_is_torchs(function) and self._written(name, args)):
            self.forget(traced_in(args, kwargs))

    def forget(self, values: Iterable[Any]) -> None:
        """These tensors may hold anything now."""
        if not self._held:
            return
        for value in values:
            if type(value) is FakeTensor:
                self._held.pop(id(value.storage), None)
            else:  # its parts
                self._held.clear()

    def _numbers(self, value: Any) -> _Numbers | None:
        """What an element of a tensor can be; None for anything."""
        if type(value) is not FakeTensor:
            return None
        found = self._held.get(id(value.storage))
        if found is not None and found[1] is value.dtype:
            return found[2]
        return _TRUTHS if value.dtype is torch.bool else None

    def _made(
        self, function: Any, name: str, args: Any, kwargs: dict[str, Any], result: Any
    ) -> _Numbers | None:
        """The numbers in a new tensor."""
        if name in _FILLED:
            return _cast((_FILLED[name],), result.dtype)
        if name in _FILLED_WITH:
            at = _FILLED_WITH[name]
            given = args[at : at + 1] or [kwargs[key] for key in _FILL_NAMES if key in kwargs]
            plain = bool(given) and type(given[0]) in _PLAIN
            return _cast((given[0],), result.dtype) if plain else None
        if not self._held and name not in _BY_CONDITION:
            return None
        if name in _EXACT:
            return self._tried(function, args, kwargs, result)
        if name in _JOINED:
            return self._joined(args[0] if args else kwargs.get("tensors"), result)
        numbers = self._numbers(args[0]) if args else None
        if numbers is None:
            return None
        if name in _CASTS or (name in _PLACED and args[0].dtype is result.dtype):
            return _cast(numbers, result.dtype)
        if name in _WITH_ZEROS:
            return _union(numbers, _cast((0,), result.dtype))
        if name == "pad":
            return _padded(numbers, args, kwargs, result)
        if name in _REDUCED:
            return _reduced(name, numbers, args, kwargs, result)
        if name in _SUMS and not any(numbers):
            return _cast((0,), result.dtype)
        return None

    def _tried(
        self, function: Any, args: Any, kwargs: dict[str, Any], result: Any
    ) -> _Numbers | None:
        """What a call gives element by element, of all combinations."""
        given = [*args, *kwargs.values()]
        choices: list[list[Any]] = []
        for value in given:
            if type(value) in _PLAIN:
                choices.append([value])
                continue
            numbers = self._numbers(value)
            if numbers is None:
                return None
            shape = (1,) * value.dim()
            choices.append([_full(shape, number, value.dtype) for number in numbers])
        if math.prod(map(len, choices)) > _MOST_RUNS:
            return None
        found: _Numbers = ()
        for chosen in itertools.product(*choices):
            named = dict(zip(kwargs, chosen[len(args) :], strict=True))
            real = compute(function, chosen[: len(args)], named)
            if real is None or real.dtype is not result.dtype or real.numel() != 1:
                return None
            found = _union(found, (real.item(),)) or ()
        return found

    def _joined(self, parts: Any, result: Any) -> _Numbers | None:
        found: _Numbers | None = ()
        for part in parts if type(parts) in (list, tuple) else (None,):
            numbers = self._numbers(part)
            if part is None or numbers is None or part.dtype is not result.dtype:
                return None
            found = _union(found, numbers)
        return found

    def _written(self, name: str, args: Any) -> bool:
        """Whether this call writes to its first argument only, and what; then that is added to what it holds."""
        if not args or type(args[0]) is not FakeTensor:
            return False
        target = args[0]
        mask: Any = None
        match name:
            case "__setitem__" if len(args) == 3:
                mask, value = args[1:]
            case "masked_fill_" if len(args) == 3:
                mask, value = args[1:]
            case "fill_" | "copy_" if len(args) == 2:
                value = args[1]
            case "zero_":
                value = 0
            case _:
                return False
        found = self._held.get(id(target.storage))
        if found is None:
            return True
        if (
            type(mask) is FakeTensor
            and mask.dtype is torch.bool
            and not any(self._numbers(mask) or ())
        ):
            return True  # nowhere
        storage, kind, before = found
        added = (value,) if type(value) in _PLAIN else self._numbers(value)
        numbers = None
        if added is not None and target.dtype is kind:
            numbers = _union(before, _cast(added, kind))
        if numbers is None or len(numbers) > _MOST:
            del self._held[id(storage)]
        else:
            self._held[id(storage)] = (storage, kind, numbers)
        return True


def _is_torchs(function: Any) -> bool:
    """Whether a function is one of torch's own: a library's operator may go by the same name."""
    if type(function) is types.FunctionType:
        return function.__module__.startswith("torch.")
    return isinstance(function, _OF_C)


def _full(shape: tuple[int, ...], number: Any, kind: torch.dtype) -> torch.Tensor:
    with torch._C.DisableTorchFunction():
        return torch.full(shape, number, dtype=kind)


def compute(function: Any, args: Any, kwargs: dict[str, Any]) -> torch.Tensor | None:
    """The call on real numbers; None where it raises or makes something else."""
    try:
        with torch._C.DisableTorchFunction(), torch.no_grad():
            result = function(*args, **kwargs)
    except Exception:  # noqa: BLE001 - the recorded call raises the same where it must
        return None
    return result if type(result) is torch.Tensor else None


def _union(first: _Numbers | None, second: _Numbers | None) -> _Numbers | None:
    """All of both; minus zero and zero, and the numbers that aren't any, are told apart."""
    if first is None or second is None:
        return None
    return tuple({repr(number): number for number in (*first, *second)}.values())


def _cast(numbers: _Numbers, kind: torch.dtype) -> _Numbers | None:
    """The numbers in another dtype; None where devices differ."""
    if kind.is_complex:
        return None
    if not kind.is_floating_point and kind is not torch.bool:
        limits = torch.iinfo(kind)
        if any(not limits.min <= number <= limits.max for number in numbers):
            return None
    reals = [compute(torch.tensor, (number,), {"dtype": kind}) for number in numbers]
    found: _Numbers | None = ()
    for real in reals:
        found = None if real is None else _union(found, (real.item(),))
    return found


def _padded(numbers: _Numbers, args: Any, kwargs: dict[str, Any], result: Any) -> _Numbers | None:
    given = dict(zip(("input", "pad", "mode", "value"), args, strict=False)) | kwargs
    if given.get("mode", "constant") != "constant":
        return numbers
    value = given.get("value")
    value = 0 if value is None else value
    return _union(numbers, _cast((value,), result.dtype)) if type(value) in _PLAIN else None


def _reduced(
    name: str, numbers: _Numbers, args: Any, kwargs: dict[str, Any], result: Any
) -> _Numbers | None:
    """What a reduction gives of some of these numbers; of none of them only what it gives then, too."""
    if sum(1 for _ in traced_in(args, kwargs)) != 1:
        return None
    found: _Numbers | None = ()
    for number in numbers:
        real = compute(_REDUCED[name], (_full((1,), number, args[0].dtype),), {})
        if real is None or real.dtype is not result.dtype:
            return None
        found = _union(found, (real.item(),))
    of_none = {"any": (False,), "all": (True,)}
    return found if found == of_none.get(name) or _has_elements(args[0]) else None


def _has_elements(value: Any) -> bool:
    """Whether a tensor surely has some, whatever its symbolic sizes are."""
    for size in value.shape:
        lower = size if type(size) is int else bounds(expression_of(size))[0]
        if lower is None or lower < 1:
            return False
    return True
