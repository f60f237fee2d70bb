"""One body, its buffers and the decisions on it as a `Kernel`.

The parameters follow from the body: buffers in the order of first use, size symbols, scalar inputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inductor.ir.kernel import Kernel, KernelArgument
from inductor.ir.nodes import Buffer
from inductor.ir.operations import EFFECTS, Indirect, combines
from inductor.schedule.decide import decide
from primtorch.symbolic import Symbol, free_symbols

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from inductor.ir.kernel import LocalBuffer
    from inductor.ir.nodes import LoopBody
    from inductor.ir.operations import Size


def make_kernel(
    name: str,
    body: LoopBody,
    buffers: Mapping[str, Buffer],
    *,
    locals_: tuple[LocalBuffer, ...],
    device: torch.device,
    nodes: tuple[str, ...],
) -> Kernel:
    """The kernel that runs `body` over `buffers`."""
    local = {row.name for row in locals_}
    known = dict(buffers)
    for row in locals_:
        known[row.name] = Buffer(row.name, (row.length,), (1,), row.dtype, device)
    return Kernel(
        name=name,
        body=body,
        arguments=_arguments(body, buffers, local),
        sizes=_sizes(body),
        scalars=_scalars(body),
        locals=locals_,
        reuses=(),
        decisions=decide(body, known),
        device=device,
        nodes=nodes,
    )


def _arguments(
    body: LoopBody, buffers: Mapping[str, Buffer], local: set[str]
) -> tuple[KernelArgument, ...]:
    loaded: set[str] = set()
    order: dict[str, None] = {}
    written: set[str] = set()
    for _, operation, _ in body.operations():
        buffer = operation.buffer
        if buffer is None or buffer in local:
            continue
        order[buffer] = None
        if operation.name in EFFECTS:
            written.add(buffer)
            if combines(operation):
                loaded.add(buffer)
        else:
            loaded.add(buffer)
    return tuple(
        KernelArgument(
            buffer,
            buffers[buffer].dtype,
            "update"
            if buffer in loaded and buffer in written
            else "write"
            if buffer in written
            else "read",
        )
        for buffer in order
    )


def _sizes(body: LoopBody) -> tuple[Size, ...]:
    """Size symbols: all symbols that are neither loop variables nor indirect indices."""
    found: dict[Symbol, None] = {}
    bound: set[Symbol] = set()
    values: list[Size] = [*body.ranges, *body.reduction_ranges]
    for _, operation, _ in body.operations():
        if operation.index is not None:
            values.append(operation.index)
        if isinstance(operation.attribute, Indirect):
            bound.add(operation.attribute.symbol)
            values.append(operation.attribute.size)
    for value in values:
        for symbol in sorted(free_symbols(value), key=lambda s: s.name):
            if symbol not in bound and not _is_loop_variable(symbol):
                found[symbol] = None
    return tuple(found)


def _is_loop_variable(symbol: Symbol) -> bool:
    return symbol.name[0] in "ir" and symbol.name[1:].isdigit()


def _scalars(body: LoopBody) -> tuple[tuple[str, torch.dtype], ...]:
    found: dict[tuple[str, torch.dtype], None] = {}
    for _, operation, _ in body.operations():
        if operation.name == "argument":
            found[str(operation.attribute), operation.dtype] = None
    return tuple(found)
