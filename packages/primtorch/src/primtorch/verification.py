"""Checks a decomposition while it is used: its results must have the metadata that the operator's have.

Comes in: an operator and its decomposition. Goes out: a function that calls it and compares shape, strides, dtype and
device of each result with the operator's shape rule. An operator without a rule, or whose result depends on data,
passes unchecked. Strides count where they matter: not of single or absent elements.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from primtorch.errors import DecompositionError, PrimtorchError
from primtorch.fake import RULES, FakeTensor, TensorMeta, infer, meta_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._ops import OpOverload

    from primtorch.symbolic import SizeEnvironment

__all__ = ["checked"]


def checked(operator: OpOverload, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, its results compared with `operator`'s shape rule.

    The function returned raises DecompositionError where they differ.
    """
    if operator not in RULES or operator._schema.is_mutable:
        return function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        found = function(*args, **kwargs)
        if found is NotImplemented:
            return found
        environment = _environment((args, kwargs))
        try:
            expected = infer(operator, args, kwargs, environment)
        except (PrimtorchError, NotImplementedError):
            return found  # only the data, or nobody, can tell
        _compare(operator, function, _flat(expected), _flat(found), environment)
        return found

    return call


def _environment(value: Any) -> SizeEnvironment | None:
    """The environment of the first fake tensor among the arguments."""
    if isinstance(value, FakeTensor):
        return value.context.environment
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            found = _environment(item)
            if found is not None:
                return found
    return None


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _flat(item)]
    return [value]


def _compare(
    operator: OpOverload,
    function: Callable[..., Any],
    expected: list[Any],
    found: list[Any],
    environment: SizeEnvironment | None,
) -> None:
    """Raise DecompositionError at the first result that differs."""
    if len(expected) != len(found):
        raise DecompositionError(operator, function, f"{len(expected)} results", f"{len(found)}")
    for position, (left, right) in enumerate(zip(expected, found, strict=True)):
        if not isinstance(left, TensorMeta):
            continue
        wanted = _described(left, environment)
        got = _described(meta_of(right), environment) if isinstance(right, torch.Tensor) else None
        if wanted != got:
            where = f"result {position}: " if len(expected) > 1 else ""
            shown = type(right).__name__ if got is None else _text(got)
            raise DecompositionError(operator, function, where + _text(wanted), shown)


def _described(meta: TensorMeta, environment: SizeEnvironment | None) -> tuple[Any, ...]:
    """Sizes, strides that matter (None for the others), dtype, device; symbols at their hints."""
    hint = (lambda size: size) if environment is None else environment.hint
    try:
        shape, stride = tuple(map(hint, meta.shape)), tuple(map(hint, meta.stride))
    except PrimtorchError:  # a size known only at run time
        return len(meta.shape), (), meta.dtype, meta.device
    empty = 0 in shape
    steps = tuple(
        None if empty or size == 1 else step for size, step in zip(shape, stride, strict=True)
    )
    return shape, steps, meta.dtype, meta.device


def _text(described: tuple[Any, ...]) -> str:
    shape, stride, dtype, device = described
    steps = ", ".join("any" if step is None else str(step) for step in stride)
    return f"{dtype} of shape {shape} with strides ({steps}) on {device}"
