"""Shape rules of Fourier transforms, and of windows chosen by fractions.

The libraries transform memory whose last dimensions are the transformed ones: the other dimensions come first, those of
the longest steps first. The result keeps that order.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch

from primtorch.fake.meta import TensorMeta
from primtorch.fake.promotion import complex_of, real_of
from primtorch.fake.registry import shape_rule, symbolic_rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from primtorch.symbolic import Expression, Sizes


def _by_steps(sizes: Sizes, x: TensorMeta, dimensions: Sequence[int]) -> list[int]:
    """Dimensions in order of their strides, the longest first; equal ones as they stand."""

    def compare(first: int, second: int) -> int:
        left, right = x.stride[first], x.stride[second]
        if sizes.same(left, right):
            return 0
        return 1 if sizes.less(left, right) else -1

    return sorted(dimensions, key=functools.cmp_to_key(compare))


def _transformed(
    sizes: Sizes,
    x: TensorMeta,
    dimensions: Sequence[int],
    dtype: torch.dtype,
    last: int | Expression | None = None,
) -> TensorMeta:
    """A new tensor stored with the transformed dimensions last; `last` is the new size of the very last."""
    others = [d for d in range(x.ndim) if d not in dimensions]
    order = [*_by_steps(sizes, x, others), *dimensions]
    shape = list(x.shape)
    if last is not None:
        shape[dimensions[-1]] = last
    stride: list[int | Expression] = [0] * x.ndim
    for d, step in zip(order, x.contiguous(tuple(shape[d] for d in order)).stride, strict=True):
        stride[d] = step
    return TensorMeta(tuple(shape), tuple(stride), dtype, x.device)


def _wrapped(x: TensorMeta, dim: Sequence[int]) -> list[int]:
    return [d % x.ndim for d in dim]


@shape_rule("_fft_c2c")
def fft_c2c(
    sizes: Sizes, x: TensorMeta, dim: Sequence[int], normalization: int, forward: bool
) -> TensorMeta:
    """Complex to complex; the dimensions in order of their strides."""
    del normalization, forward
    if not dim:
        return x.with_dtype(x.dtype)
    return _transformed(sizes, x, _by_steps(sizes, x, _wrapped(x, dim)), x.dtype)


@shape_rule("_fft_r2c")
def fft_r2c(
    sizes: Sizes, x: TensorMeta, dim: Sequence[int], normalization: int, onesided: bool
) -> TensorMeta:
    """Real to complex: half of the last dimension, or all of it."""
    del normalization
    axes = _wrapped(x, dim)
    axes = [*_by_steps(sizes, x, axes[:-1]), axes[-1]]
    half = x.shape[axes[-1]] // 2 + 1 if onesided else None
    return _transformed(sizes, x, axes, complex_of(x.dtype), half)


@shape_rule("_fft_c2r")
def fft_c2r(
    sizes: Sizes,
    x: TensorMeta,
    dim: Sequence[int],
    normalization: int,
    last_dim_size: int | Expression,
) -> TensorMeta:
    """Complex to real: the last dimension gets the size asked for; the others are transformed before."""
    axes = _wrapped(x, dim)
    if axes[:-1]:
        x = fft_c2c(sizes, x, axes[:-1], normalization, False)
    return _transformed(sizes, x, axes[-1:], real_of(x.dtype), last_dim_size)


@symbolic_rule("fractional_max_pool2d", "fractional_max_pool3d")
def fractional_pool(
    sizes: Sizes,
    x: TensorMeta,
    kernel_size: Sequence[int],
    output_size: Sequence[int],
    random_samples: TensorMeta,
) -> tuple[TensorMeta, TensorMeta]:
    """(maxima, their positions), row-major."""
    del sizes, random_samples
    shape = (*x.shape[: x.ndim - len(kernel_size)], *output_size)
    return x.contiguous(shape), x.contiguous(shape, torch.int64)
