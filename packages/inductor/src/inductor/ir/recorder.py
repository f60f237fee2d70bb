"""Define-by-run: calling scalar operations records them into a `LoopBody`.

A `Recorder` is opened for given ranges; lowering code asks it for operations and gets `Scalar`s;
`finish` yields the body. Equal operations are recorded once; a load of what the same body stored at
the same index is the stored value; operations that nothing needs are dropped at the end, and
positions renumbered.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, cast

import torch

from inductor.ir.index import indirect_symbol, inner_symbols, outer_symbols
from inductor.ir.nodes import LoopBody, Stage
from inductor.ir.operations import (
    EFFECTS,
    HALF_DTYPES,
    OPERATIONS,
    Attribute,
    BoundsCheck,
    Constant,
    Indirect,
    Operation,
    ReductionKind,
    ScanKind,
    Size,
    StoreMode,
    value_dtype,
)
from primtorch.symbolic import Expression, Symbol, substitute

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_HALF_NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in HALF_DTYPES}


_BYTES = frozenset({torch.int8, torch.uint8})
_EIGHT_BITS = frozenset({torch.float16, torch.bfloat16})
"""Half types that hold every integer of eight bits."""


def half_name(dtype: torch.dtype) -> str:
    """The name under which `round_to` knows a half type."""
    return str(dtype).removeprefix("torch.")


def half_dtype(name: str) -> torch.dtype:
    """The inverse of `half_name`."""
    return _HALF_NAMES[name]


@dataclass(frozen=True, slots=True)
class Scalar:
    """A recorded value: its position and dtype."""

    position: int
    dtype: torch.dtype


@dataclass(slots=True)
class _OpenStage:
    level: Literal["outer", "inner"]
    positions: list[int]


class Recorder:
    """Records one body; see the module. Positions are final only after `finish`."""

    def __init__(
        self,
        ranges: Sequence[Size],
        reduction_ranges: Sequence[Size] = (),
        *,
        hoist: bool = False,
    ) -> None:
        self.ranges = tuple(ranges)
        self.reduction_ranges = tuple(reduction_ranges)
        self.outer = outer_symbols(self.ranges)
        self.inner = inner_symbols(self.reduction_ranges)
        self._operations: list[Operation] = []
        self._stages: list[_OpenStage] = []
        self._seen: dict[Operation, int] = {}
        self._seen_inner: dict[Operation, int] = {}
        self._stored: dict[tuple[str, Size], int] = {}
        self._stored_inner: dict[tuple[str, Size], int] = {}
        self._indirects: dict[Symbol, int] = {}
        self._mask: Scalar | None = None
        self._hoist = hoist
        self._lasting: set[int] = set()
        self._inner_set = frozenset(self.inner)

    # ---- stages
    def stage(self, level: Literal["outer", "inner"]) -> None:
        """Continue in a new stage, or in the current one if both are outer."""
        if level == "outer" and self._stages and self._stages[-1].level == "outer":
            return
        self._stages.append(_OpenStage(level, []))
        self._seen_inner.clear()
        self._stored_inner.clear()

    @property
    def level(self) -> Literal["outer", "inner"]:
        """The level of the current stage."""
        if not self._stages:
            self.stage("outer")
        return self._stages[-1].level

    def operation(self, value: Scalar) -> Operation:
        """What was recorded for a value."""
        return self._operations[value.position]

    def recorded(self) -> tuple[Operation, ...]:
        """All that was recorded so far."""
        return tuple(self._operations)

    def emit(self, operation: Operation) -> Scalar:
        """Record an operation (or find the equal one that is visible)."""
        if operation.name == "div":
            known = self._quotient_of_truth(operation)
            if known is not None:
                return known
        inner = self.level == "inner"
        if operation.name not in EFFECTS:
            position = self._seen.get(operation)
            if position is None and inner:
                position = self._seen_inner.get(operation)
            if position is not None:
                return Scalar(position, operation.dtype)
        position = len(self._operations)
        self._operations.append(operation)
        stage = self._stages[-1]
        lasting = not inner or operation.name in ("reduce", "part")
        if inner and not lasting and self._hoist and self._invariant(operation):
            stage = self._outer_stage()
            lasting = True
        stage.positions.append(position)
        if lasting:
            self._lasting.add(position)
        if operation.name not in EFFECTS:
            (self._seen if lasting else self._seen_inner)[operation] = position
        return Scalar(position, operation.dtype)

    def _quotient_of_truth(self, operation: Operation) -> Scalar | None:
        """A truth value as a number, divided by a constant, as the choice between two constants.

        A mask that is scaled by what it keeps asks for it; a correctly rounded division is a dozen instructions.
        """
        dividend, divisor = (self._operations[operand] for operand in operation.operands)
        if divisor.name != "constant" or dividend.name != "to_dtype":
            return None
        condition = Scalar(dividend.operands[0], self._operations[dividend.operands[0]].dtype)
        by = constant_value(str(divisor.attribute))
        if condition.dtype != torch.bool or not isinstance(by, float) or not 0 < by < math.inf:
            return None
        inverse = float(torch.tensor(1.0, dtype=operation.dtype) / by)
        branches = (self.constant(value, operation.dtype) for value in (inverse, 0.0))
        return self.op("where", condition, *branches)

    def _invariant(self, operation: Operation) -> bool:
        """Whether an operation of a sweep has the same value at all of its points."""
        if operation.name in EFFECTS or operation.name in ("reduce", "scan"):
            return False
        if not all(operand in self._lasting for operand in operation.operands):
            return False
        index = operation.index
        return (
            isinstance(index, int)
            or index is None
            or self._inner_set.isdisjoint(index.free_symbols)
        )

    def _outer_stage(self) -> _OpenStage:
        """The outer stage right before the current sweep."""
        if len(self._stages) < 2 or self._stages[-2].level != "outer":
            self._stages.insert(len(self._stages) - 1, _OpenStage("outer", []))
        return self._stages[-2]

    def hold(self, buffer: str, index: Size, value: Scalar) -> None:
        """Let later loads of an element be a value, without storing it."""
        table = self._stored if self.level == "outer" else self._stored_inner
        table[buffer, index] = value.position

    # ---- masks
    @contextmanager
    def masked(self, mask: Scalar) -> Iterator[None]:
        """Loads and index checks within happen only where `mask` holds (loads give 0 elsewhere)."""
        before = self._mask
        self._mask = mask if before is None else self.op("logical_and", before, mask)
        try:
            yield
        finally:
            self._mask = before

    # ---- leaves
    def constant(self, value: Constant, dtype: torch.dtype) -> Scalar:
        """A literal of `dtype` (half types: their float32)."""
        dtype = value_dtype(dtype)
        if dtype == torch.bool:
            value = bool(value)
        elif dtype.is_complex:
            value = complex(value)
        elif dtype.is_floating_point:
            value = float(value.real if isinstance(value, complex) else value)
        else:
            value = int(value.real if isinstance(value, complex) else value)
        return self.emit(Operation("constant", (), dtype, attribute=_exact(value)))

    def index_expression(self, index: Size, dtype: torch.dtype) -> Scalar:
        """The value of an index expression."""
        if isinstance(index, int):
            return self.constant(index, dtype)
        return self.emit(
            Operation(
                "index_expression", self._indirect_operands(index), value_dtype(dtype), index=index
            )
        )

    def argument(self, name: str, dtype: torch.dtype) -> Scalar:
        """A scalar input of the graph."""
        return self.emit(Operation("argument", (), dtype, attribute=name))

    # ---- memory
    def load(self, buffer: str, index: Size, dtype: torch.dtype) -> Scalar:
        """An element of storage type `dtype`; what this body stored there before, if it did."""
        key = (buffer, index)
        position = self._stored_inner.get(key) if self.level == "inner" else None
        if position is None:
            position = self._stored.get(key)
        if position is not None:
            value = Scalar(position, self._operations[position].dtype)
            if dtype in HALF_DTYPES:
                value = self.round_to(value, dtype)
            if self._mask is None:
                return value
            return self.op("where", self._mask, value, self.constant(0, value.dtype))
        operands = self._indirect_operands(index)
        mask = self._mask
        if mask is not None:
            operands = (*operands, mask.position)
        return self.emit(
            Operation(
                "load",
                operands,
                value_dtype(dtype),
                buffer,
                index,
                _storage(dtype),
                mask is not None,
            )
        )

    def store(
        self, buffer: str, index: Size, value: Scalar, dtype: torch.dtype, mode: StoreMode = "set"
    ) -> None:
        """Write a value, narrowed to storage type `dtype`."""
        assert self._mask is None, "stores under a mask are written with where()"
        operands = (value.position, *self._indirect_operands(index))
        self.emit(Operation("store", operands, dtype, buffer, index, mode))
        if mode == "set":
            table = self._stored if self.level == "outer" else self._stored_inner
            table[(buffer, index)] = value.position

    def accumulate(
        self, buffer: str, index: Size, value: Scalar, dtype: torch.dtype, kind: ReductionKind
    ) -> None:
        """Combine a value over all outer iterations; see `ScalarOps.accumulate`."""
        self.emit(Operation("accumulate", (value.position,), dtype, buffer, index, kind))

    def indirect(
        self, value: Scalar, size: Size, *, wrap: bool, check: BoundsCheck | None
    ) -> Symbol:
        """The index symbol for a computed integer."""
        symbol = indirect_symbol(len(self._indirects), size)
        operands: tuple[int, ...] = (value.position,)
        if self._mask is not None:
            operands = (*operands, self._mask.position)
        for known, position in self._indirects.items():
            seen = self._operations[position]
            other = seen.attribute
            assert isinstance(other, Indirect)
            same = (other.size, other.wrap, other.check) == (size, wrap, check)
            if seen.operands == operands and same and self._visible(position):
                return known
        indirect = Indirect(symbol, size, wrap, check)
        recorded = self.emit(
            Operation(
                "indirect", operands, torch.int64, attribute=indirect, masked=self._mask is not None
            )
        )
        self._indirects[symbol] = recorded.position
        return symbol

    def _visible(self, position: int) -> bool:
        operation = self._operations[position]
        return operation in self._seen or operation in self._seen_inner

    def _indirect_operands(self, index: Size) -> tuple[int, ...]:
        if isinstance(index, int) or not self._indirects:
            return ()
        used = [self._indirects[s] for s in index.free_symbols if s in self._indirects]
        return tuple(sorted(used))

    # ---- arithmetic
    def op(self, name: str, *operands: Scalar, dtype: torch.dtype | None = None) -> Scalar:
        """Any unary, binary or ternary operation; the dtype follows from the operands unless given."""
        if dtype is None:
            result = OPERATIONS[name].result
            assert result != "given", f"{name} needs a dtype"
            dtype = torch.bool if result == "bool" else operands[-1].dtype
        return self.emit(Operation(name, tuple(operand.position for operand in operands), dtype))

    def to_dtype(self, value: Scalar, dtype: torch.dtype) -> Scalar:
        """Numeric conversion; to a half type: rounded to it, kept as float32."""
        target = value_dtype(dtype)
        if value.dtype != target:
            operation = self._operations[value.position]
            if operation.name == "constant" and not value.dtype.is_complex:
                attribute = operation.attribute
                assert isinstance(attribute, str)
                literal = constant_value(attribute)
                finite = not isinstance(literal, float) or abs(literal) < 2.0**63
                if finite and not isinstance(literal, complex):
                    value = self.constant(literal, target)
                else:
                    value = self.emit(Operation("to_dtype", (value.position,), target))
            else:
                value = self.emit(Operation("to_dtype", (value.position,), target))
        return self.round_to(value, dtype) if dtype in HALF_DTYPES else value

    def round_to(self, value: Scalar, dtype: torch.dtype) -> Scalar:
        """Round a float32 to what half type `dtype` holds, unless it is so already."""
        name = half_name(dtype)
        operation = self._operations[value.position]
        if operation.name == "round_to" and operation.attribute == name:
            return value
        if operation.name == "load" and operation.attribute == name:
            return value
        if operation.name == "constant":
            return self.constant(_rounded(str(operation.attribute), dtype), torch.float32)
        if operation.name == "to_dtype":
            source = self._operations[operation.operands[0]].dtype
            if source is torch.bool or (source in _BYTES and dtype in _EIGHT_BITS):
                return value
        if operation.name == "where":
            condition, *branches = operation.operands
            constants = all(self._operations[branch].name == "constant" for branch in branches)
            before = self._hoist and self.level == "inner" and condition not in self._lasting
            if constants or (before and self._lasting.issuperset(branches)):
                # Both branches can be rounded now or before the sweep, once.
                rounded = [
                    self.round_to(Scalar(branch, torch.float32), dtype) for branch in branches
                ]
                return self.op("where", Scalar(condition, torch.bool), *rounded)
        return self.emit(Operation("round_to", (value.position,), torch.float32, attribute=name))

    def bitcast(self, value: Scalar, dtype: torch.dtype) -> Scalar:
        """The same bits as `dtype`."""
        return self.op("bitcast", value, dtype=dtype)

    # ---- loops
    def reduce(self, kind: ReductionKind, *values: Scalar, dtype: torch.dtype) -> Scalar:
        """Reduce over the reduction ranges."""
        assert self.level == "inner", "reduce stands in an inner stage"
        return self.emit(
            Operation("reduce", tuple(value.position for value in values), dtype, attribute=kind)
        )

    def part(self, value: Scalar, number: int, dtype: torch.dtype) -> Scalar:
        """One result of a reduction with several."""
        return self.emit(Operation("part", (value.position,), dtype, attribute=number))

    def scan(self, value: Scalar, kind: ScanKind) -> Scalar:
        """Running combination."""
        assert self.level == "inner", "scan stands in an inner stage"
        return self.emit(Operation("scan", (value.position,), value.dtype, attribute=kind))

    # ---- replay and end
    def replay(
        self,
        operations: Sequence[tuple[int, Operation]],
        mapping: Mapping[Symbol, Size],
        values: dict[int, Scalar],
        symbols: dict[Symbol, Size],
    ) -> None:
        """Record operations of another body with its symbols substituted.

        `values` maps that body's positions to values here, `symbols` its indirect symbols to ours;
        both are extended.
        """
        for position, operation in operations:
            values[position] = self._replayed(operation, mapping, values, symbols)

    def _replayed(
        self,
        operation: Operation,
        mapping: Mapping[Symbol, Size],
        values: dict[int, Scalar],
        symbols: dict[Symbol, Size],
    ) -> Scalar:
        index = operation.index
        if isinstance(index, Expression):
            index = substitute(index, {**mapping, **symbols} if symbols else mapping)
        match operation.name:
            case "load":
                assert operation.buffer is not None
                assert index is not None
                dtype = storage_dtype(operation)
                if operation.masked:
                    with self.masked(values[operation.operands[-1]]):
                        return self.load(operation.buffer, index, dtype)
                return self.load(operation.buffer, index, dtype)
            case "store":
                assert operation.buffer is not None
                assert index is not None
                value = values[operation.operands[0]]
                mode = cast("StoreMode", operation.attribute)
                self.store(operation.buffer, index, value, operation.dtype, mode)
                return value
            case "indirect":
                attribute = operation.attribute
                assert isinstance(attribute, Indirect)
                size = substitute(attribute.size, mapping)
                value = values[operation.operands[0]]
                if operation.masked:
                    with self.masked(values[operation.operands[-1]]):
                        symbol = self.indirect(
                            value, size, wrap=attribute.wrap, check=attribute.check
                        )
                else:
                    symbol = self.indirect(value, size, wrap=attribute.wrap, check=attribute.check)
                symbols[attribute.symbol] = symbol
                return value
            case "index_expression":
                assert index is not None
                return self.index_expression(index, operation.dtype)
            case "round_to":
                assert isinstance(operation.attribute, str)
                return self.round_to(values[operation.operands[0]], half_dtype(operation.attribute))
            case _:
                operands = tuple(values[operand].position for operand in operation.operands)
                return self.emit(replace(operation, operands=operands))

    def finish(self) -> LoopBody:
        """The recorded body without dead operations and empty stages."""
        operations = self._operations
        needed: set[int] = set()
        for position in range(len(operations) - 1, -1, -1):
            operation = operations[position]
            checked = (
                operation.name == "indirect"
                and getattr(operation.attribute, "check", None) is not None
            )
            if operation.name in EFFECTS or checked or position in needed:
                needed.add(position)
                needed.update(operation.operands)
        renumbered: dict[int, int] = {}
        stages: list[Stage] = []
        for stage in self._stages:
            kept = [position for position in stage.positions if position in needed]
            if not kept:
                continue
            start = len(renumbered)
            for position in kept:
                renumbered[position] = len(renumbered)
            body = tuple(
                operation
                if not operation.operands
                else replace(
                    operation, operands=tuple(renumbered[operand] for operand in operation.operands)
                )
                for operation in (operations[position] for position in kept)
            )
            stages.append(Stage(stage.level, start, body))
        return LoopBody(self.ranges, self.reduction_ranges, tuple(stages))


def storage_dtype(operation: Operation) -> torch.dtype:
    """The storage type of the buffer that a load reads or a store writes."""
    if operation.name == "load" and isinstance(operation.attribute, str):
        return half_dtype(operation.attribute)
    return operation.dtype


def _storage(dtype: torch.dtype) -> str | None:
    return half_name(dtype) if dtype in HALF_DTYPES else None


@lru_cache(maxsize=1024)
def _rounded(text: str, dtype: torch.dtype) -> float:
    """A constant on a half type's grid."""
    value = constant_value(text)
    assert isinstance(value, float)
    return float(torch.tensor(value, dtype=torch.float32).to(dtype))


def _exact(value: Constant) -> Attribute:
    """A constant as text, so that 0.0, -0.0 and NaN, 1 and True are told apart in look-ups."""
    return repr(value)


def constant_value(text: str) -> Constant:
    """The number that a constant's text stands for."""
    match text:
        case "True":
            return True
        case "False":
            return False
        case _:
            pass
    if "j" in text:
        return complex(text)
    try:
        return int(text)
    except ValueError:
        return float(text)
