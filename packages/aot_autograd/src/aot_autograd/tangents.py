"""The gradients that autograd hands to a node, as the compiled backward was promised them.

Comes in: the gradients of all outputs, as they are. Goes out: the tangents in the promised layouts, which of them are
absent, and whether one is of another kind than what was traced. Invariant: a gradient that fits is handed on as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from aot_autograd.functional import contiguous_stride
from aot_autograd.sizes import evaluated, zeros_of
from aot_autograd.subclasses import is_wrapper

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aot_autograd.metadata import FunctionMetadata, ViewStep
    from aot_autograd.runtime import Sizes
    from primtorch.fake import TensorMeta

__all__ = [
    "passing_on",
    "present",
    "promised_layouts",
    "tangent_layout",
    "tangent_outputs",
    "with_zeros",
]


def tangent_outputs(metadata: FunctionMetadata) -> tuple[int, ...]:
    """The outputs that have a tangent each, in their order."""
    return tuple(n for n, requires in enumerate(metadata.value_requires_grad) if requires)


def promised_layouts(metadata: FunctionMetadata) -> tuple[Any, ...]:
    """For each tangent its strides, or None where they are those of a contiguous tensor."""
    return tuple(
        None if meta.stride == contiguous_stride(meta.shape) else meta.stride
        for meta in metadata.tangents
    )


def _is_foreign(tangent: Any) -> bool:
    """Whether a gradient's operators are its own: the loss was of another kind than what was traced."""
    return type(tangent) is not torch.Tensor and is_wrapper(tangent)


def present(tangents: list[Any]) -> list[Any]:
    """The tangents that are there."""
    return [tangent for tangent in tangents if tangent is not None]


def with_zeros(metadata: FunctionMetadata, tangents: list[Any], sizes: Sizes | None) -> list[Any]:
    """The tangents, zeros where one is absent."""
    return [
        zeros_of(meta, sizes) if tangent is None else tangent
        for tangent, meta in zip(tangents, metadata.tangents, strict=True)
    ]


def passing_on(
    metadata: FunctionMetadata,
) -> Callable[[tuple[Any, ...], Sequence[Any]], tuple[Any, ...]] | None:
    """What puts gradients that flow in, as they came, where they or views of them are gradients that go out.

    A function (what the node gives, gradients of all outputs) -> what the node gives. The compiled backward was given
    them in a layout of its own; in eager they keep theirs, as that of an expanded number. None: there are no such.
    """
    wanted = tangent_outputs(metadata)
    plan = [(2 + place, wanted[tangent], views) for place, tangent, views in metadata.passed_on]
    if not plan:
        return None

    known: dict[tuple[int, tuple[int, ...]], _Geometry | tuple[()] | None] = {}

    def passed(results: tuple[Any, ...], gradients: Sequence[Any]) -> tuple[Any, ...]:
        given = list(results)
        for place, number, views in plan:
            gradient = gradients[number]
            if given[place] is None or not _is_plain(gradient):
                continue
            if not views:
                given[place] = gradient
                continue
            key = place, gradient.stride()
            found = known.get(key, ())
            if found == ():
                if len(known) >= _MOST_STRIDES:
                    known.clear()
                found = known[key] = _geometry_of(gradient, views)
            if found:
                shape, stride, offset = found
                given[place] = gradient.as_strided(
                    shape, stride, gradient.storage_offset() + offset
                )
        return tuple(given)

    return passed


_Geometry = tuple[tuple[int, ...], tuple[int, ...], int]
_MOST_STRIDES = 64


def _geometry_of(gradient: torch.Tensor, views: Sequence[ViewStep]) -> _Geometry | None:
    """Shape, strides, and distance in memory of views of a gradient with such strides; None where they are no more."""
    view = gradient
    try:
        for step in views:
            view = step(view, None)
    except (
        RuntimeError
    ):  # eager's `reshape` copies what can't be viewed so: what was computed is that copy
        return None
    if view.dtype != gradient.dtype or view.is_conj() or view.is_neg():
        return None
    return tuple(view.shape), view.stride(), view.storage_offset() - gradient.storage_offset()


def _is_plain(gradient: Any) -> bool:
    return bool(
        type(gradient) is torch.Tensor
        and gradient.layout is torch.strided
        and not gradient.is_neg()
        and not gradient.is_conj()
    )


def tangent_layout(
    metadata: FunctionMetadata,
) -> Callable[[Sequence[Any], Sizes | None], tuple[list[Any], int, bool]]:
    """A function that lays gradients out as the backward was promised.

    It tells which are absent, as bits, and whether the operators of one are its own. An absent one
    stays None among those that it gives.
    """
    wanted = tangent_outputs(metadata)
    plan = [
        (number, 1 << slot, meta, layout is None)
        for slot, (number, meta, layout) in enumerate(
            zip(wanted, metadata.tangents, promised_layouts(metadata), strict=True)
        )
    ]
    pairs = zip(wanted, metadata.backward_errors, strict=False)
    errors = [(number, error) for number, error in pairs if error]
    plain = torch.Tensor

    def lay_out(gradients: Sequence[Any], sizes: Sizes | None) -> tuple[list[Any], int, bool]:
        for number, error in errors:
            if gradients[number] is not None:
                raise RuntimeError(error)
        tangents: list[Any] = []
        absent, foreign = 0, False
        for number, bit, meta, contiguous in plan:
            gradient = gradients[number]
            if gradient is None:
                absent |= bit
            elif not (
                contiguous
                and type(gradient) is plain
                and gradient.is_contiguous()
                and not gradient.is_neg()
                and not gradient.is_conj()
            ):
                if _is_foreign(gradient):
                    foreign = True
                else:
                    gradient = _laid_out(gradient, meta, sizes, contiguous=contiguous)
            tangents.append(gradient)
        return tangents, absent, foreign

    return lay_out


def _laid_out(
    gradient: torch.Tensor, meta: TensorMeta, sizes: Sizes | None, *, contiguous: bool
) -> torch.Tensor:
    """A gradient in the layout that the compiled backward was promised."""
    if gradient.requires_grad and torch.is_grad_enabled():
        return gradient  # for the differentiable backward, which takes any layout
    if gradient.layout is not torch.strided:
        gradient = gradient.to_dense()
    if gradient.is_neg() or gradient.is_conj():
        gradient = gradient.resolve_conj().resolve_neg()
    if contiguous:
        return gradient.contiguous()
    stride: Any = evaluated(meta.stride, sizes) if sizes else meta.stride
    if gradient.stride() == stride:
        return gradient
    made = torch.empty_strided(gradient.shape, stride, dtype=gradient.dtype, device=gradient.device)
    made.data.copy_(gradient)  # whose version is not the gradient's
    return made
