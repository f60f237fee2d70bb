"""The reference meaning of bodies: runs them with torch's own operators over whole ranges at once.

In: a body (of a loop node or a kernel) and the flat storages of its buffers. Out: the storages,
written. It is the oracle in tests and the last resort for a kernel that no compiler will build; it
is not fast.
"""

# ruff: noqa: D102  # the protocol's methods are documented by the operation list of
# docs/loop_ir.md

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from inductor.errors import UnsupportedOperationError
from inductor.ir.apply import apply_operation
from inductor.ir.index import inner_symbols, outer_symbols
from inductor.ir.recorder import half_dtype
from primtorch.symbolic import Expression, Symbol, evaluate, map_expression

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from inductor.ir.nodes import LoopBody
    from inductor.ir.operations import (
        BoundsCheck,
        Constant,
        Indirect,
        ReductionKind,
        ScanKind,
        Size,
        StoreMode,
    )


_TORCH_NAMES = {
    "rsqrt": torch.rsqrt,
    "neg": torch.neg,
    "abs": torch.abs,
    "sign": torch.sign,
    "isnan": torch.isnan,
    "isinf": torch.isinf,
    "signbit": torch.signbit,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "atan2": torch.atan2,
    "shift_left": torch.bitwise_left_shift,
    "shift_right": torch.bitwise_right_shift,
}


def _elementwise(name: str) -> Callable[..., Tensor]:
    """The torch function of the same meaning."""
    return _TORCH_NAMES.get(name) or getattr(torch, name)


class Interpreter:
    """`ScalarOps` over tensors that span the iteration space, outer dimensions first.

    Unary, binary and comparison operations are torch's functions of the same name, reached by
    `__getattr__`.
    """

    def __init__(
        self,
        body: LoopBody,
        storages: Mapping[str, Tensor],
        sizes: Mapping[Symbol, int],
        scalars: Mapping[str, Constant],
        locals_: Mapping[str, int],
    ) -> None:
        self._storages = dict(storages)
        self._local_rows: dict[str, Tensor] = {}
        self._scalars = scalars
        self.device = next(iter(storages.values())).device if storages else torch.device("cpu")
        self.outer_shape = tuple(evaluate(extent, sizes) for extent in body.ranges)
        self.inner_shape = tuple(evaluate(extent, sizes) for extent in body.reduction_ranges)
        rank = len(self.outer_shape) + len(self.inner_shape)
        self._rank = rank
        self._values: dict[Symbol, Any] = dict(sizes)
        symbols = (*outer_symbols(body.ranges), *inner_symbols(body.reduction_ranges))
        for axis, (symbol, extent) in enumerate(
            zip(symbols, self.outer_shape + self.inner_shape, strict=True)
        ):
            shape = [1] * rank
            shape[axis] = extent
            self._values[symbol] = torch.arange(extent, device=self.device).reshape(shape)
        self._level_shape: tuple[int, ...] = ()
        points = math.prod(self.outer_shape)
        rows = torch.arange(points, device=self.device).reshape(
            self.outer_shape + (1,) * len(self.inner_shape)
        )
        for name, length in locals_.items():
            dtype = storages[name].dtype
            self._storages[name] = torch.zeros(points * length, dtype=dtype, device=self.device)
            self._local_rows[name] = rows * length

    def _place(self, buffer: str, index: Size) -> Tensor:
        """Element numbers in a buffer; a local buffer has one row for each outer point here."""
        where = self._index(index)
        rows = self._local_rows.get(buffer)
        return where if rows is None else where + rows

    def enter(self, level: str) -> None:
        """Begin a stage: outer values have extent 1 in inner dimensions."""
        inner = self.inner_shape if level == "inner" else (1,) * len(self.inner_shape)
        self._level_shape = self.outer_shape + inner

    def __getattr__(self, name: str) -> Callable[..., Tensor]:
        function = _elementwise(name)

        def call(*operands: Any) -> Tensor:
            *values, dtype = operands
            result = function(*values)
            return result if result.dtype == dtype else result.to(dtype)

        return call

    # ---- leaves and memory
    def constant(self, value: Constant, dtype: torch.dtype) -> Tensor:
        return torch.tensor(value, dtype=dtype, device=self.device)

    def _index(self, index: Size) -> Tensor:
        value = index if isinstance(index, int) else _evaluate(index, self._values)
        if not isinstance(value, Tensor):
            value = torch.tensor(value, device=self.device)
        return value

    def index_expression(
        self, index: Size, dtype: torch.dtype, indirects: tuple[Tensor, ...]
    ) -> Tensor:
        del indirects
        return self._index(index).to(dtype)

    def argument(self, name: str, dtype: torch.dtype) -> Tensor:
        return torch.tensor(self._scalars[name], dtype=dtype, device=self.device)

    def load(
        self,
        buffer: str,
        index: Size,
        dtype: torch.dtype,
        indirects: tuple[Tensor, ...],
        mask: Tensor | None,
    ) -> Tensor:
        del indirects
        storage = self._storages[buffer]
        where = self._place(buffer, index)
        if mask is not None:
            where = torch.where(mask, where, 0)
            value = (
                storage.new_zeros(()).expand(where.shape)
                if storage.numel() == 0
                else storage[where]
            )
            value = torch.where(
                mask, value, torch.zeros((), dtype=storage.dtype, device=self.device)
            )
        else:
            # flat, because a single number as an index gives a view, which a later store would change
            value = storage[where.reshape(-1)].reshape(where.shape)
        return value.float() if dtype.itemsize < 4 and dtype.is_floating_point else value

    def store(
        self,
        buffer: str,
        index: Size,
        value: Tensor,
        mode: StoreMode,
        dtype: torch.dtype,
        indirects: tuple[Tensor, ...],
        mask: Tensor | None,
    ) -> Tensor:
        del indirects
        where = self._place(buffer, index).expand(self._level_shape).reshape(-1)
        narrowed = value.to(dtype).expand(self._level_shape).reshape(-1)
        if mask is not None:
            chosen = mask.expand(self._level_shape).reshape(-1)
            where, narrowed = where[chosen], narrowed[chosen]
        storage = self._storages[buffer]
        if mode == "add":
            storage.index_put_((where,), narrowed, accumulate=True)
        elif mode == "set":
            storage[where] = narrowed
        else:
            reduction = {"mul": "prod", "max": "amax", "min": "amin"}[mode]
            storage.scatter_reduce_(0, where, narrowed, reduction)
        return value

    def accumulate(
        self, buffer: str, index: Size, value: Tensor, kind: ReductionKind, dtype: torch.dtype
    ) -> Tensor:
        axes = tuple(range(len(self.outer_shape)))
        total = _reduce(kind, value.expand(self._level_shape), axes, dtype)
        where = self._index(index).expand((1,) * len(self.outer_shape) + self.inner_shape)
        self._storages[buffer][where.reshape(-1)] = total.to(dtype).reshape(-1)
        return value

    def indirect(self, value: Tensor, indirect: Indirect, mask: Tensor | None) -> Tensor:
        size = (
            indirect.size
            if isinstance(indirect.size, int)
            else _evaluate(indirect.size, self._values)
        )
        where = value.to(torch.int64)
        if indirect.wrap:
            where = torch.where(where < 0, where + size, where)
        inside = (where >= 0) & (where < size)
        relevant = inside if mask is None else inside | ~mask
        if indirect.check is not None and not bool(relevant.all()):
            bad = value.expand(relevant.shape)[~relevant].flatten()[0]
            raise bounds_error(indirect.check, int(bad), int(size))
        self._values[indirect.symbol] = torch.where(inside, where, 0)
        return where

    # ---- conversion and the operations that torch names otherwise
    def to_dtype(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return x.to(dtype)

    def round_to(self, x: Tensor, half: str, dtype: torch.dtype) -> Tensor:
        return x.to(half_dtype(half)).to(dtype)

    def bitcast(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return x.contiguous().view(dtype)

    def floor_div(self, x: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
        if dtype.is_floating_point:
            return torch.floor_divide(x, y)
        return torch.where(y == 0, 0, torch.floor_divide(x, torch.where(y == 0, 1, y))).to(dtype)

    def trunc_div(self, x: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
        return torch.where(
            y == 0, 0, torch.div(x, torch.where(y == 0, 1, y), rounding_mode="trunc")
        ).to(dtype)

    def remainder(self, x: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
        if dtype.is_floating_point:
            return torch.remainder(x, y)
        return torch.where(y == 0, 0, torch.remainder(x, torch.where(y == 0, 1, y))).to(dtype)

    def fmod(self, x: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
        if dtype.is_floating_point:
            return torch.fmod(x, y)
        return torch.where(y == 0, 0, torch.fmod(x, torch.where(y == 0, 1, y))).to(dtype)

    def pow(self, x: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
        if dtype.is_floating_point or dtype.is_complex:
            return torch.pow(x, y).to(dtype)
        base = torch.pow(x, torch.where(y < 0, 0, y))
        odd = torch.where(y % 2 == 0, 1, -1)
        small = torch.where(x == 1, 1, torch.where(x == -1, odd, 0))
        return torch.where(y < 0, small, base).to(dtype)

    def make_complex(self, x: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
        return torch.complex(*torch.broadcast_tensors(x, y)).to(dtype)

    def where(self, condition: Tensor, x: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
        return torch.where(condition, x, y).to(dtype)

    def eq(self, x: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
        return torch.eq(x, y).to(dtype)

    # ---- random numbers
    def philox_uniform(
        self, seed: Tensor, offset: Tensor, element: Tensor, dtype: torch.dtype
    ) -> Tensor:
        return self._random("philox_uniform", seed, offset, element, dtype)

    def philox_normal(
        self, seed: Tensor, offset: Tensor, element: Tensor, dtype: torch.dtype
    ) -> Tensor:
        return self._random("philox_normal", seed, offset, element, dtype)

    def philox_bits(
        self, seed: Tensor, offset: Tensor, element: Tensor, dtype: torch.dtype
    ) -> Tensor:
        return self._random("philox_bits", seed, offset, element, dtype)

    def _random(
        self, name: str, seed: Tensor, offset: Tensor, element: Tensor, dtype: torch.dtype
    ) -> Tensor:
        from inductor.ir import philox

        return getattr(philox, name)(seed, offset, element.expand(self._level_shape), dtype)

    # ---- loops
    def reduce(self, kind: ReductionKind, values: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
        axes = tuple(range(len(self.outer_shape), self._rank))
        spread = tuple(value.expand(self._level_shape) for value in values)
        if kind == "welford":
            return _welford(spread[0], axes)
        if kind == "welford_combine":
            mean, squares, count = spread
            return _welford_combine(mean, squares, count, axes)
        return _reduce(kind, spread[0], axes, dtype)

    def part(self, x: Tensor, number: int, dtype: torch.dtype) -> Tensor:
        return x[number].to(dtype)

    def scan(self, x: Tensor, kind: ScanKind, dtype: torch.dtype) -> Tensor:
        axis = self._rank - 1
        spread = x.expand(self._level_shape)
        match kind:
            case "sum":
                return torch.cumsum(spread, axis, dtype=dtype)
            case "prod":
                return torch.cumprod(spread, axis, dtype=dtype)
            case "max":
                return torch.cummax(spread, axis).values
            case "min":
                return torch.cummin(spread, axis).values
            case "logaddexp":
                return torch.logcumsumexp(spread, axis)


def bounds_error(check: BoundsCheck, index: int, size: int) -> Exception:
    """The exception that eager raises for an index outside its bounds."""
    kind = IndexError if check.error == "IndexError" else RuntimeError
    return kind(check.message.format(index=index, dimension=check.dimension, size=size))


class _OverTensors:
    """Visits an index expression, symbols standing for tensors or ints."""

    def __init__(self, values: Mapping[Symbol, Any]) -> None:
        self._values = values

    def integer(self, value: int) -> Any:
        return value

    def symbol(self, symbol: Symbol) -> Any:
        return self._values[symbol]

    def sum(self, constant: int, terms: tuple[tuple[Expression, int], ...]) -> Any:
        total: Any = constant
        for term, count in terms:
            total = total + count * term.map(self)
        return total

    def product(self, factors: tuple[Expression, ...]) -> Any:
        result: Any = 1
        for factor in factors:
            result = result * factor.map(self)
        return result

    def floor_div(self, dividend: Size, divisor: Size) -> Any:
        return map_expression(dividend, self) // map_expression(divisor, self)

    def modulo(self, dividend: Size, divisor: Size) -> Any:
        return map_expression(dividend, self) % map_expression(divisor, self)

    def maximum(self, arguments: tuple[Size, ...]) -> Any:
        return self._extreme(torch.maximum, arguments)

    def minimum(self, arguments: tuple[Size, ...]) -> Any:
        return self._extreme(torch.minimum, arguments)

    def _extreme(
        self, choose: Callable[[Tensor, Tensor], Tensor], arguments: tuple[Size, ...]
    ) -> Any:
        values = [torch.as_tensor(map_expression(argument, self)) for argument in arguments]
        result = values[0]
        for value in values[1:]:
            result = choose(*torch.broadcast_tensors(result, value))
        return result


def _evaluate(index: Expression, values: Mapping[Symbol, Any]) -> Any:
    return index.map(_OverTensors(values))


def _reduce(
    kind: ReductionKind, value: Tensor, axes: tuple[int, ...], dtype: torch.dtype
) -> Tensor:
    flat = (
        value.movedim(axes, tuple(range(-len(axes), 0))).flatten(-len(axes))
        if axes
        else value.unsqueeze(-1)
    )
    shape = [1 if axis in axes else extent for axis, extent in enumerate(value.shape)]
    match kind:
        case "sum":
            result = flat.sum(-1, dtype=dtype)
        case "prod":
            result = flat.prod(-1, dtype=dtype)
        case "max":
            result = flat.amax(-1)
        case "min":
            result = flat.amin(-1)
        case "any":
            result = flat.bool().any(-1)
        case "all":
            result = flat.bool().all(-1)
        case "argmax":
            result = flat.int().argmax(-1) if flat.dtype == torch.bool else flat.argmax(-1)
        case "argmin":
            result = flat.int().argmin(-1) if flat.dtype == torch.bool else flat.argmin(-1)
        case _:
            raise UnsupportedOperationError(f"reduction {kind}", "it has several results")
    return result.to(dtype).reshape(shape)


def _welford(value: Tensor, axes: tuple[int, ...]) -> Tensor:
    mean = value.mean(axes, keepdim=True)
    m2 = (value - mean).square().sum(axes, keepdim=True)
    count = 1
    for axis in axes:
        count *= value.shape[axis]
    return torch.stack([mean, m2, torch.full_like(mean, count)])


def _welford_combine(mean: Tensor, m2: Tensor, count: Tensor, axes: tuple[int, ...]) -> Tensor:
    total = count.sum(axes, keepdim=True)
    middle = (mean * count).sum(axes, keepdim=True) / total
    spread = (m2 + count * (mean - middle).square()).sum(axes, keepdim=True)
    return torch.stack([middle, spread, total])


def run_body(
    body: LoopBody,
    storages: Mapping[str, Tensor],
    sizes: Mapping[Symbol, int] | None = None,
    scalars: Mapping[str, Constant] | None = None,
    locals_: Mapping[str, int] | None = None,
) -> None:
    """Run a body.

    Args:
        body: what to run.
        storages: for every buffer, its storage as a one-dimensional tensor, element 0 first; for a
            local buffer any tensor of its dtype.
        sizes: values of the size symbols.
        scalars: values of the graph's scalar inputs.
        locals_: lengths of the local buffers.

    Raises:
        IndexError: an index is out of bounds where eager raises it (RuntimeError likewise).
    """
    interpreter = Interpreter(body, storages, sizes or {}, scalars or {}, locals_ or {})
    values: dict[int, Tensor] = {}
    for stage in body.stages:
        interpreter.enter(stage.level)
        for offset, operation in enumerate(stage.operations):
            values[stage.start + offset] = apply_operation(interpreter, operation, values)
