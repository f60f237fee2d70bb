"""Which operator calls go straight to torch's C ABI.

Comes in: an `OperatorCall`. Goes out: its tensors and numbers in the order `_calls.c` reads them, or None when
the call goes through Python. Invariant: a direct call computes what the operator does; when it reports failure
nothing was written that matters, and the same operator is called through Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from inductor.ir.index import contiguous_stride
from inductor.lowering.linear import LINEAR
from inductor.lowering.recurrent import LAYER, fused
from inductor.runtime.launch import DIRECT_CALLS

if TYPE_CHECKING:
    from inductor.ir import OperatorCall, Size, View

__all__ = ["DirectCall", "direct_call"]

aten = torch.ops.aten
_PRODUCTS = {aten.mm.default: "mm", aten.bmm.default: "bmm"}
_ADDED_PRODUCTS = {aten.addmm.default: "addmm", aten.baddbmm.default: "baddbmm"}


@dataclass(frozen=True, slots=True)
class DirectCall:
    """The operands of one vendor function."""

    kind: int
    tensors: tuple[View | None, ...]
    numbers: tuple[Size | float | bool, ...]


def direct_call(step: OperatorCall, available: frozenset[int]) -> DirectCall | None:
    """How `step` is called through the C ABI, if it can be."""
    found = _describe(step)
    if found is None or found.kind not in available or step.outputs[0] is None:
        return None
    return found


def _describe(step: OperatorCall) -> DirectCall | None:
    operator = step.operator
    if operator in _PRODUCTS:
        left, right = step.args
        return DirectCall(DIRECT_CALLS[_PRODUCTS[operator]], (left, right), ())
    if operator in _ADDED_PRODUCTS:
        return _added_product(step)
    if operator is LINEAR:
        return DirectCall(DIRECT_CALLS["linear"], step.args[:3], ())
    if operator is aten._scaled_dot_product_flash_attention_for_cpu.default:
        return _attention(step)
    if operator is aten.convolution.default:
        return _convolution(step)
    if operator is LAYER:
        return _recurrent_layer(step)
    return None


def _named(step: OperatorCall, names: tuple[str, ...], defaults: dict[str, Any]) -> list[Any]:
    values = {**defaults, **dict(zip(names, step.args, strict=False)), **step.kwargs}
    return [values[name] for name in names]


def _added_product(step: OperatorCall) -> DirectCall | None:
    names = ("self", "left", "right", "beta", "alpha")
    bias, left, right, beta, alpha = _named(step, names, {"beta": 1, "alpha": 1})
    if not isinstance(beta, int | float) or not isinstance(alpha, int | float):
        return None
    # the C function has doubles; an integer product may need scalars beyond their 53 bits
    if not left.dtype.is_floating_point:
        return None
    kind = DIRECT_CALLS[_ADDED_PRODUCTS[step.operator]]
    return DirectCall(kind, (bias, left, right), (float(beta), float(alpha)))


def _attention(step: OperatorCall) -> DirectCall | None:
    names = ("query", "key", "value", "dropout_p", "is_causal", "attn_mask", "scale")
    defaults = {"dropout_p": 0.0, "is_causal": False, "attn_mask": None, "scale": None}
    query, key, value, dropout, causal, mask, scale = _named(step, names, defaults)
    if not isinstance(dropout, int | float) or not isinstance(causal, bool):
        return None
    if scale is not None and not isinstance(scale, int | float):
        return None
    numbers = (float(dropout), causal, scale is not None, float(scale or 0.0))
    return DirectCall(DIRECT_CALLS["flash"], (query, key, value, mask), numbers)


def _convolution(step: OperatorCall) -> DirectCall | None:
    tensor, weight, bias, stride, padding, dilation, transposed, output_padding, groups = step.args
    dims = len(tensor.shape) - 2
    lists = [list(values) for values in (stride, padding, dilation, output_padding)]
    lists = [values * dims if len(values) == 1 else values for values in lists]
    if (
        not 0 < dims <= 8
        or any(len(values) != dims for values in lists)
        or not isinstance(transposed, bool)
    ):
        return None
    numbers = [transposed, groups, dims]
    for values in lists:
        numbers += values
    return DirectCall(DIRECT_CALLS["convolution"], (tensor, weight, bias), tuple(numbers))


def _recurrent_layer(step: OperatorCall) -> DirectCall | None:
    steps, state, cell, weights, _, reverse, keep = step.args
    if not fused(steps, state, cell, weights):
        return None
    tensors = (steps, *weights, state, cell)
    if any(view.stride != contiguous_stride(view.shape) for view in tensors):
        return None
    return DirectCall(DIRECT_CALLS["lstm"], tensors, (state.shape[-1], reverse, keep))
