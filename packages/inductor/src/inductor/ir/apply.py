"""Calls the method of a `ScalarOps` that an `Operation` names, with the operands' values.

The one place that knows how an operation's fields become a method's arguments, shared by the code
generators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

from inductor.ir.operations import (
    OPERATIONS,
    Indirect,
    Operation,
    ReductionKind,
    ScalarOps,
    ScanKind,
    StoreMode,
)
from inductor.ir.recorder import constant_value, storage_dtype

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")


def apply_operation(ops: ScalarOps[T], operation: Operation, values: Mapping[int, T]) -> T:
    """The value of `operation` where its operands have `values`.

    Raises:
        KeyError: an operand has no value, or the operation is unknown.
    """
    operands = tuple(values[operand] for operand in operation.operands)
    dtype = operation.dtype
    attribute = operation.attribute
    mask = operands[-1] if operation.masked else None
    rest = operands[:-1] if operation.masked else operands
    match operation.name:
        case "constant":
            return ops.constant(constant_value(str(attribute)), dtype)
        case "index_expression":
            assert operation.index is not None
            return ops.index_expression(operation.index, dtype, rest)
        case "argument":
            return ops.argument(str(attribute), dtype)
        case "load":
            assert operation.buffer is not None
            assert operation.index is not None
            return ops.load(operation.buffer, operation.index, storage_dtype(operation), rest, mask)
        case "store":
            assert operation.buffer is not None
            assert operation.index is not None
            mode = cast("StoreMode", attribute)
            return ops.store(
                operation.buffer, operation.index, rest[0], mode, dtype, rest[1:], mask
            )
        case "accumulate":
            assert operation.buffer is not None
            assert operation.index is not None
            kind = cast("ReductionKind", attribute)
            return ops.accumulate(operation.buffer, operation.index, rest[0], kind, dtype)
        case "indirect":
            return ops.indirect(rest[0], cast("Indirect", attribute), mask)
        case "round_to":
            return ops.round_to(rest[0], str(attribute), dtype)
        case "reduce":
            return ops.reduce(cast("ReductionKind", attribute), rest, dtype)
        case "part":
            return ops.part(rest[0], cast("int", attribute), dtype)
        case "scan":
            return ops.scan(rest[0], cast("ScanKind", attribute), dtype)
        case name:
            assert name in OPERATIONS, f"unknown scalar operation {name}"
            return getattr(ops, name)(*rest, dtype)
