"""Tensors made from sizes and numbers, in terms of full, arange, eye and empty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from primtorch.decompositions.views import contiguous_copy
from primtorch.promotion import (
    Number,
    cast,
    computation_dtype,
    real_part,
)
from primtorch.registry import decomposes

if TYPE_CHECKING:
    from collections.abc import Sequence

aten = torch.ops.aten


def _options(like: Tensor, options: dict[str, Any]) -> dict[str, Any]:
    """Dtype and device as given, otherwise those of `like`; pinning and layout only where given."""
    options = {key: value for key, value in options.items() if value is not None}
    options.setdefault("dtype", like.dtype)
    options.setdefault("device", like.device)
    return options


@decomposes(aten.zeros.default)
def zeros(size: Sequence[int], **options: Any) -> Tensor:
    """Zeros."""
    return aten.full.default(size, 0, **_floating(options))


@decomposes(aten.ones.default)
def ones(size: Sequence[int], **options: Any) -> Tensor:
    """Ones."""
    return aten.full.default(size, 1, **_floating(options))


def _floating(options: dict[str, Any]) -> dict[str, Any]:
    if options.get("dtype") is None:
        options["dtype"] = torch.get_default_dtype()
    return options


@decomposes(aten.new_zeros.default)
def new_zeros(self: Tensor, size: Sequence[int], **options: Any) -> Tensor:
    """Zeros of the tensor's dtype and device."""
    return aten.full.default(size, 0, **_options(self, options))


@decomposes(aten.new_ones.default)
def new_ones(self: Tensor, size: Sequence[int], **options: Any) -> Tensor:
    """Ones of the tensor's dtype and device."""
    return aten.full.default(size, 1, **_options(self, options))


@decomposes(aten.new_full.default)
def new_full(self: Tensor, size: Sequence[int], fill_value: Number, **options: Any) -> Tensor:
    """A constant of the tensor's dtype and device."""
    return aten.full.default(size, fill_value, **_options(self, options))


@decomposes(aten.new_empty.default)
def new_empty(self: Tensor, size: Sequence[int], **options: Any) -> Tensor:
    """No particular values, of the tensor's dtype and device."""
    return aten.empty.memory_format(size, **_options(self, options))


@decomposes(aten.new_empty_strided.default)
def new_empty_strided(
    self: Tensor, size: Sequence[int], stride: Sequence[int], **options: Any
) -> Tensor:
    """No particular values, of the tensor's dtype and device, with given strides."""
    return aten.empty_strided.default(size, stride, **_options(self, options))


@decomposes(aten.zeros_like.default)
def zeros_like(self: Tensor, **options: Any) -> Tensor:
    """Zeros of the tensor's shape."""
    return aten.full_like.default(self, 0, **options)


@decomposes(aten.ones_like.default)
def ones_like(self: Tensor, **options: Any) -> Tensor:
    """Ones of the tensor's shape."""
    return aten.full_like.default(self, 1, **options)


@decomposes("aten.fill.Scalar")
def fill(self: Tensor, value: Number) -> Tensor:
    """A constant of the tensor's shape."""
    return aten.full_like.default(self, value)


@decomposes("aten.fill.Tensor")
def fill_tensor(self: Tensor, value: Tensor) -> Tensor:
    """A 0-d tensor's value everywhere."""
    if value.dim():
        raise RuntimeError(
            f"fill_ only supports 0-dimension value tensor but got tensor with {value.dim()} dimensions."
        )
    return aten.copy.default(self, value)


@decomposes("aten.zero.default")
def zero(self: Tensor) -> Tensor:
    """Zeros of the tensor's shape."""
    return aten.full_like.default(self, 0)


@decomposes(aten.arange.default)
def arange(end: Number, **options: Any) -> Tensor:
    """0, 1, .. below `end`."""
    return aten.arange.start_step(0, end, 1, **options)


@decomposes(aten.arange.start)
def arange_start(start: Number, end: Number, **options: Any) -> Tensor:
    """start, start + 1, .. below `end`."""
    return aten.arange.start_step(start, end, 1, **options)


@decomposes(aten.eye.default)
def eye(n: int, **options: Any) -> Tensor:
    """The identity matrix."""
    return aten.eye.m(n, n, **options)


@decomposes(aten.linspace.default)
def linspace(start: Number, end: Number, steps: int, **options: Any) -> Tensor:
    """`steps` numbers from `start` to `end`, reckoned from the nearer end."""
    if steps < 0:
        raise RuntimeError("number of steps must be non-negative")
    dtype = options.get("dtype") or _linspace_dtype(start, end)
    options["dtype"] = dtype
    if steps <= 1:
        return aten.full.default([steps], start, **options)
    index = aten.arange.start_step(0, steps, 1, dtype=torch.int64, device=options.get("device"))
    if not (dtype.is_floating_point or dtype.is_complex):
        return _integral_linspace(int(real_part(start)), int(real_part(end)), steps, index, dtype)
    return _between(index, start, end, steps, dtype)


def _linspace_dtype(start: Number, end: Number) -> torch.dtype:
    default = torch.get_default_dtype()
    if isinstance(start, complex) or isinstance(end, complex):
        return torch.complex128 if default is torch.float64 else torch.complex64
    return default


def _between(
    index: Tensor, start: Number | Tensor, end: Number | Tensor, steps: int, dtype: torch.dtype
) -> Tensor:
    """start + index * step in the first half, end - (steps - 1 - index) * step in the second."""
    computation = computation_dtype(dtype)
    step = (end - start) / (steps - 1)
    rising = cast(index, computation) * step + start
    rest = cast(aten.sub.Tensor(steps - 1, index), computation)
    falling = aten.sub.Tensor(end, rest * step)
    return cast(aten.where.self(aten.lt.Scalar(index, steps // 2), rising, falling), dtype)


def _require_no_dimensions(start: Number | Tensor, end: Number | Tensor) -> None:
    for name, value in (("start", start), ("end", end)):
        if isinstance(value, Tensor) and value.dim():
            raise RuntimeError(
                "linspace only supports 0-dimensional start and end tensors, "
                f"but got {name} with {value.dim()} dimension(s)."
            )


def _is_complex(value: Number | Tensor) -> bool:
    return value.dtype.is_complex if isinstance(value, Tensor) else isinstance(value, complex)


def _linspace_of_tensors(
    start: Number | Tensor, end: Number | Tensor, steps: int, **options: Any
) -> Tensor:
    """`linspace` whose ends are 0-d tensors."""
    _require_no_dimensions(start, end)
    if steps < 0:
        raise RuntimeError("number of steps must be non-negative")
    has_complex = _is_complex(start) or _is_complex(end)
    dtype = options.get("dtype") or _linspace_dtype(1j if has_complex else 1, 1)
    if has_complex and not dtype.is_complex:
        return NotImplemented  # eager refuses an imaginary part that isn't zero
    device = options.get("device")
    if steps <= 1:
        first = cast(start, dtype) if isinstance(start, Tensor) else None
        if first is None:
            return aten.full.default([steps], start, dtype=dtype, device=device)
        return aten.repeat.default(first, [steps])
    index = aten.arange.start_step(0, steps, 1, dtype=torch.int64, device=device)
    if not (dtype.is_floating_point or dtype.is_complex):
        whole = [
            cast(v, torch.int64) if isinstance(v, Tensor) else int(real_part(v))
            for v in (start, end)
        ]
        return _integral_linspace(whole[0], whole[1], steps, index, dtype)
    computation = computation_dtype(dtype)
    ends = [cast(v, computation) if isinstance(v, Tensor) else v for v in (start, end)]
    return _between(index, ends[0], ends[1], steps, dtype)


def _logspace_of_tensors(
    start: Number | Tensor, end: Number | Tensor, steps: int, base: float = 10.0, **options: Any
) -> Tensor:
    """`logspace` whose ends are 0-d tensors."""
    _require_no_dimensions(start, end)
    has_complex = _is_complex(start) or _is_complex(end)
    dtype = options.get("dtype") or _linspace_dtype(1j if has_complex else 1, 1)
    inner = {**options, "dtype": _exponent_dtype(dtype)}
    exponents = _linspace_of_tensors(start, end, steps, **inner)
    if exponents is NotImplemented:
        return exponents
    return cast(aten.pow.Scalar(base, exponents), dtype)


def _exponent_dtype(dtype: torch.dtype) -> torch.dtype:
    """What the exponents of `logspace` are reckoned in."""
    if dtype.is_floating_point or dtype.is_complex:
        return computation_dtype(dtype)
    return torch.float32


for _ends in ("Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor"):
    decomposes(f"aten.linspace.{_ends}")(_linspace_of_tensors)
    decomposes(f"aten.logspace.{_ends}")(_logspace_of_tensors)


def _integral_linspace(
    start: int | Tensor, end: int | Tensor, steps: int, index: Tensor, dtype: torch.dtype
) -> Tensor:
    """Integers: the step in float32, each number truncated, as eager's kernel reckons."""
    if isinstance(start, int) and isinstance(end, int):
        step = (end - start) / (steps - 1)
        step_tensor = aten.full.default([], step, dtype=torch.float32, device=index.device)
    else:
        distance = cast(aten.sub.Tensor(end, start), torch.float64)
        step_tensor = cast(distance / (steps - 1), torch.float32)
    rising = step_tensor * cast(index, torch.float32) + start
    rest = cast(aten.sub.Tensor(steps - 1, index), torch.float32)
    falling = aten.sub.Tensor(end, step_tensor * rest)
    return cast(aten.where.self(aten.lt.Scalar(index, steps // 2), rising, falling), dtype)


@decomposes(aten.tril.default)
def tril(self: Tensor, diagonal: int = 0) -> Tensor:
    """The lower triangle, zeros above the diagonal."""
    return _triangle(self, diagonal, lower=True)


@decomposes(aten.triu.default)
def triu(self: Tensor, diagonal: int = 0) -> Tensor:
    """The upper triangle, zeros below the diagonal."""
    return _triangle(self, diagonal, lower=False)


def _triangle(self: Tensor, diagonal: int, *, lower: bool) -> Tensor:
    if self.dim() < 2:
        raise RuntimeError(
            f"{'tril' if lower else 'triu'}: input tensor must have at least 2 dimensions"
        )
    rows, columns = self.shape[-2:]
    row = aten.arange.start_step(0, rows, 1, dtype=torch.int64, device=self.device)
    column = aten.arange.start_step(0, columns, 1, dtype=torch.int64, device=self.device)
    offset = aten.unsqueeze.default(column, 0) - aten.unsqueeze.default(row, 1)
    inside = aten.le.Scalar(offset, diagonal) if lower else aten.ge.Scalar(offset, diagonal)
    zero = aten.full.default([], 0, dtype=self.dtype, device=self.device)
    return contiguous_or_same(aten.where.self(inside, self, zero))


def contiguous_or_same(tensor: Tensor) -> Tensor:
    """The tensor if it is row-major, else a row-major copy."""
    return tensor if tensor.is_contiguous() else contiguous_copy(tensor)


@decomposes(aten.tril_indices.default)
def tril_indices(
    row: int, col: int, offset: int = 0, *, dtype: torch.dtype = torch.int64, **options: Any
) -> Tensor:
    """Rows and columns of the lower triangle, row by row."""
    lengths = [min(max(r + offset + 1, 0), col) for r in range(row)]
    return _triangle_indices(lengths, [0] * row, dtype, options)


@decomposes(aten.triu_indices.default)
def triu_indices(
    row: int, col: int, offset: int = 0, *, dtype: torch.dtype = torch.int64, **options: Any
) -> Tensor:
    """Rows and columns of the upper triangle, row by row."""
    starts = [min(max(r + offset, 0), col) for r in range(row)]
    return _triangle_indices([col - start for start in starts], starts, dtype, options)


def _triangle_indices(
    lengths: list[int], starts: list[int], dtype: torch.dtype | None, options: dict[str, Any]
) -> Tensor:
    dtype = dtype or torch.int64
    device = options.get("device")
    rows, columns = [], []
    for row, (length, start) in enumerate(zip(lengths, starts, strict=True)):
        if length:
            rows.append(aten.full.default([length], row, dtype=dtype, device=device))
            columns.append(
                aten.arange.start_step(start, start + length, 1, dtype=dtype, device=device)
            )
    if not rows:
        return aten.full.default([2, 0], 0, dtype=dtype, device=device)
    return aten.stack.default([aten.cat.default(rows), aten.cat.default(columns)])


@decomposes(aten.logspace.default)
def logspace(start: Number, end: Number, steps: int, base: float = 10.0, **options: Any) -> Tensor:
    """`base` raised to `steps` numbers from `start` to `end`."""
    dtype = options.get("dtype") or torch.get_default_dtype()
    if not options.get("dtype") and (isinstance(start, complex) or isinstance(end, complex)):
        dtype = _linspace_dtype(start, end)
    exponents = linspace(start, end, steps, **{**options, "dtype": _exponent_dtype(dtype)})
    return cast(aten.pow.Scalar(base, exponents), dtype)


@decomposes("aten.empty_permuted.default")
def empty_permuted(size: Sequence[int], physical_layout: Sequence[int], **options: Any) -> Tensor:
    """No particular values, stored in the given order of dimensions, the last one fastest."""
    if sorted(physical_layout) != list(range(len(size))):
        raise RuntimeError(
            "Number of dimensions in the tensor input does not match the length of the desired ordering of dimensions"
            if len(physical_layout) != len(size)
            else "Duplicate dim not allowed"
        )
    stride = [0] * len(size)
    step = 1
    for dim in reversed(physical_layout):
        stride[dim] = step
        step = step * max(size[dim], 1)
    return aten.empty_strided.default(size, stride, **_floating(options))


@decomposes("aten._efficientzerotensor.default")
def _efficientzerotensor(size: Sequence[int], **options: Any) -> Tensor:
    """Zeros."""
    return aten.full.default(size, 0, **_floating(options))
