"""Distances between rows, all pairs or each pair once, and their derivatives."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from primtorch.decompositions.views import contiguous
from primtorch.registry import decomposes

aten = torch.ops.aten


@decomposes(aten._cdist_forward.default)
def _cdist_forward(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None) -> Tensor:  # noqa: ARG001  a choice of method, not of meaning
    """Distances between all pairs of rows."""
    difference = aten.unsqueeze.default(contiguous(x1), -2) - aten.unsqueeze.default(
        contiguous(x2), -3
    )
    return aten.linalg_vector_norm.default(difference, p, [-1], False)


def _slope(difference: Tensor, p: float, distance: Tensor) -> Tensor:
    """Derivative of the p-norm of `difference` by its elements; zero where the distance is zero."""
    zero = aten.full.default([], 0, dtype=difference.dtype, device=difference.device)
    sign = aten.sign.default(difference)
    if p == 0:
        return difference * 0
    if p == 1:
        return sign
    magnitude = aten.abs.default(difference)
    if p == math.inf:
        return sign * aten.eq.Tensor(magnitude, distance)
    apart = aten.ne.Scalar(distance, 0)
    if p == 2:
        return aten.where.self(apart, difference / distance, zero)
    if p < 2:
        inner = sign * aten.pow.Tensor_Scalar(magnitude, p - 1)
        slope = inner / aten.pow.Tensor_Scalar(distance, p - 1)
        used = aten.logical_and.default(apart, aten.ne.Scalar(difference, 0)) if p < 1 else apart
        return aten.where.self(used, slope, zero)
    slope = difference * aten.pow.Tensor_Scalar(magnitude, p - 2)
    return aten.where.self(apart, slope / aten.pow.Tensor_Scalar(distance, p - 1), zero)


@decomposes(aten._cdist_backward.default)
def _cdist_backward(grad: Tensor, x1: Tensor, x2: Tensor, p: float, cdist: Tensor) -> Tensor:
    """Gradient of `_cdist_forward` for the first operand."""
    difference = aten.unsqueeze.default(x1, -2) - aten.unsqueeze.default(x2, -3)
    slope = _slope(difference, p, aten.unsqueeze.default(cdist, -1))
    return aten.sum.dim_IntList(aten.unsqueeze.default(grad, -1) * slope, [-2])


def _pairs(self: Tensor) -> tuple[Tensor, Tensor]:
    """Row numbers of every pair i < j, in order."""
    indices = aten.triu_indices.default(self.shape[0], self.shape[0], 1, device=self.device)
    return aten.select.int(indices, 0, 0), aten.select.int(indices, 0, 1)


@decomposes(aten._pdist_forward.default)
def _pdist_forward(self: Tensor, p: float = 2) -> Tensor:
    """Distances between each pair of rows, once; of a number of rows that varies by the library."""
    if isinstance(self.shape[0], torch.SymInt):
        return NotImplemented
    if self.shape[0] <= 1:
        return aten.full.default([0], 0, dtype=self.dtype, device=self.device)
    first, second = _pairs(self)
    difference = aten.index_select.default(self, 0, first) - aten.index_select.default(
        self, 0, second
    )
    return aten.linalg_vector_norm.default(difference, p, [-1], False)


@decomposes(aten._pdist_backward.default)
def _pdist_backward(grad: Tensor, self: Tensor, p: float, pdist: Tensor) -> Tensor:
    """Gradient of `_pdist_forward`."""
    if isinstance(self.shape[0], torch.SymInt):
        return NotImplemented
    if self.shape[0] <= 1 or self.shape[1] == 0:
        return aten.full_like.default(self, 0)
    first, second = _pairs(self)
    difference = aten.index_select.default(self, 0, first) - aten.index_select.default(
        self, 0, second
    )
    part = aten.unsqueeze.default(grad, -1) * _slope(
        difference, p, aten.unsqueeze.default(pdist, -1)
    )
    zeros = aten.full.default(list(self.shape), 0, dtype=self.dtype, device=self.device)
    added = aten.index_put.default(zeros, [first], part, True)
    return aten.index_put.default(added, [second], -part, True)
