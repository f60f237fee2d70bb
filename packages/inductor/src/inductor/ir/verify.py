"""Checks the rules of the loop IR; every stage of the pipeline runs them in tests.

Raises `VerificationError` naming the node, the operation and ten lines around it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inductor.errors import VerificationError
from inductor.ir.index import inner_symbols, outer_symbols
from inductor.ir.nodes import LoopBody, LoopNode, View
from inductor.ir.operations import OPERATIONS, VALUE_DTYPES, Indirect, Operation
from inductor.ir.text import operation_text
from primtorch.symbolic import free_symbols

if TYPE_CHECKING:
    from collections.abc import Mapping

    from inductor.ir.nodes import Buffer, Graph


def _window(body: LoopBody, center: int) -> str:
    lines = [
        ("> " if position == center else "  ") + operation_text(position, operation)
        for position, operation, _ in body.operations()
        if abs(position - center) <= 5
    ]
    return "\n".join(lines)


def verify_body(
    name: str, body: LoopBody, buffers: Mapping[str, Buffer], stage: str = "lowering"
) -> None:
    """Positions, visibility, arity, dtypes and symbols of one body."""
    visible: set[int] = set()
    inner_only: set[int] = set()
    dtypes: dict[int, Operation] = {}
    loop = {*outer_symbols(body.ranges)}
    inner = {*inner_symbols(body.reduction_ranges)}
    indirects: set[object] = set()
    position = 0
    for current in body.stages:
        if current.start != position:
            raise VerificationError(
                stage, name, f"stage starts at {current.start}, expected {position}"
            )
        if current.level == "inner" and not body.reduction_ranges:
            raise VerificationError(
                stage, name, "an inner stage in a body without reduction ranges"
            )
        inner_only.clear()
        for operation in current.operations:
            problem = _problem(operation, visible | inner_only, dtypes, buffers)
            if problem is None and operation.index is not None:
                level = loop | inner if current.level == "inner" else loop
                stray = [
                    symbol
                    for symbol in free_symbols(operation.index)
                    if symbol.name[0] in "irj"
                    and symbol.name[1:].isdigit()
                    and symbol not in level
                    and symbol not in indirects
                ]
                if stray:
                    problem = f"index uses {stray[0].name}, which doesn't exist at this level"
            if problem is not None:
                raise VerificationError(stage, name, problem, _window(body, position))
            if isinstance(operation.attribute, Indirect):
                indirects.add(operation.attribute.symbol)
            lasting = current.level == "outer" or operation.name in ("reduce", "part")
            (visible if lasting else inner_only).add(position)
            dtypes[position] = operation
            position += 1


def _problem(
    operation: Operation,
    visible: set[int],
    earlier: Mapping[int, Operation],
    buffers: Mapping[str, Buffer],
) -> str | None:
    signature = OPERATIONS.get(operation.name)
    if signature is None:
        return f"unknown operation {operation.name}"
    if signature.operands >= 0 and len(operation.operands) != signature.operands:
        return (
            f"{operation.name} takes {signature.operands} operands, has {len(operation.operands)}"
        )
    for operand in operation.operands:
        if operand not in visible:
            return f"operand v{operand} isn't visible here"
    if operation.name not in ("store", "accumulate") and operation.dtype not in VALUE_DTYPES:
        return f"{operation.dtype} is no value dtype"
    if operation.buffer is not None and operation.buffer not in buffers:
        return f"unknown buffer {operation.buffer}"
    if operation.masked and str(earlier[operation.operands[-1]].dtype) != "torch.bool":
        return "the mask isn't bool"
    if signature.family == "binary" and operation.name != "make_complex":
        left, right = (earlier[operand].dtype for operand in operation.operands)
        if left != right:
            return f"operands of {operation.name} have dtypes {left} and {right}"
    return None


def verify_graph(graph: Graph, stage: str = "lowering") -> None:
    """The invariants of `Graph` and of each body in it."""
    written = {entry.name for entry in graph.inputs if entry.kind == "tensor"} | set(
        graph.constants
    )
    inputs = frozenset(written)
    for node in graph.nodes:
        if isinstance(node, LoopNode):
            verify_body(node.name, node.body, graph.buffers, stage)
        updates = node.reads & node.writes if isinstance(node, LoopNode) else frozenset()
        for name in sorted(node.reads - updates):
            if name not in graph.buffers:
                raise VerificationError(stage, node.name, f"reads unknown buffer {name}")
            if name not in written:
                raise VerificationError(stage, node.name, f"reads {name} before anything wrote it")
        for name in sorted(node.writes):
            if name in inputs:
                raise VerificationError(stage, node.name, f"writes input {name}")
        written |= node.writes
    for value in graph.outputs:
        if isinstance(value, View) and value.buffer not in written:
            raise VerificationError(stage, "output", f"{value.buffer} is never written")
