"""GPU kernels that need a second pass: too few rows to fill the card, or columns summed over rows.

Comes in: the steps of a schedule. Goes out: the same steps where each GPU kernel that can't finish in one grid has
become two: the first writes partial results to a buffer of its own, the second combines them in a fixed order (so that
results repeat, which atomic additions don't) and runs what followed. Where the second is small it is run by the last
program of the first (`endings`). Kernels of other devices pass through.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from inductor.ir.index import (
    contiguous_stride,
    delinearize,
    inner_symbols,
    linear_index,
    outer_symbols,
    product,
)
from inductor.ir.kernel import Kernel
from inductor.ir.machine import H200
from inductor.ir.nodes import Buffer, LoopBody, Stage
from inductor.ir.operations import combines
from inductor.ir.recorder import Recorder, Scalar
from inductor.schedule.blocks import choose_blocks
from inductor.schedule.endings import end_in_one_launch
from inductor.schedule.kernels import make_kernel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inductor.ir.kernel import Step
    from inductor.ir.machine import DeviceProperties
    from inductor.ir.nodes import Graph
    from inductor.ir.operations import Operation, ReductionKind, Size
    from primtorch.symbolic import Symbol

__all__ = ["split_kernels"]

_INDEX, _BOOL = torch.int64, torch.bool
_SHORTEST_PART = 512
_ENOUGH_PROGRAMS = 6
"""Fewer than this for each multiprocessor leave memory idle: a program of a reduction has few loads in flight."""
_MOST_PROGRAMS = 16
"""The same of columns that are summed, as many as still have `_PROGRAM_BYTES` each: their loads of a row are short.

Measured on an H200: 16384 x 4096 took 53.4 us by 512 programs, 47.6 by 1024, 47.0 by 2048 of 65 kB each; 65536 x 1024
54.1, 53.0 and 46.5; 4096 x 8192 33.8, 28.9 by 1024 of 65 kB and 32.3 by 2048; 65536 x 256, where 1024 have 33 kB, 21.0
for 18.8 by 512.
"""
_PROGRAM_BYTES = 1 << 16
_RESIDENT_PROGRAMS = 8
"""As many as run at once, where there would be more than `_MOST_PROGRAMS`.

262144 x 512 took 77.5 us by 1024 and 84.7 by 2048, 16384 x 16384 136.4 and 140.1.
"""
_FEW_BYTES = 128_000
"""What one multiprocessor reads in the time that the programs of a divided reduction take to count themselves.

The mean of 16,384 rows' losses, 197 kB for a single program, took 6.0 of the 48.1 us of a cross entropy on an H200;
that of 8,192 took 4.0, most of it the launch.
"""
_SPLITTABLE = {"sum", "prod", "max", "min", "any", "all", "welford"}
_PADDABLE = _SPLITTABLE - {"welford"}


def split_kernels(
    graph: Graph, steps: Sequence[Step], *, card: DeviceProperties = H200, everywhere: bool = False
) -> tuple[Graph, list[Step]]:
    """Two-pass GPU kernels where one is not enough; the graph gains the buffers of partial results.

    `card` is what they run on; `everywhere` takes the kernels of all devices for GPU kernels.
    """
    buffers = dict(graph.buffers)
    result: list[Step] = []
    divided: set[str] = set()
    waiting = list(reversed(steps))
    while waiting:
        step = waiting.pop()
        if not isinstance(step, Kernel) or (step.device.type == "cpu" and not everywhere):
            result.append(step)
            continue
        parts = None
        made = _columns(step, buffers, waiting, card)
        if made is None:
            parts = made = _parts(step, buffers, card)
        if parts is not None:
            divided.add(parts[0].name)
        result.extend(made or [step])
    return replace(graph, buffers=buffers), end_in_one_launch(
        result, buffers, divided, card, everywhere=everywhere
    )


def _new_buffer(
    buffers: dict[str, Buffer],
    stem: str,
    shape: tuple[Size, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> Buffer:
    name = f"{stem}_parts"
    while name in buffers:
        name += "_"
    buffers[name] = Buffer(name, shape, contiguous_stride(shape), dtype, device)
    return buffers[name]


# ---- columns summed over all rows ----------------------------------------
def _columns(
    kernel: Kernel, buffers: dict[str, Buffer], later: list[Step], card: DeviceProperties
) -> list[Kernel] | None:
    """A kernel with `accumulate`: each program keeps a row of partial results, a second kernel adds the rows.

    Kernels of `later` (last first) that only convert the sums join the second kernel and leave the list.
    """
    columns = [
        operation for _, operation, _ in kernel.body.operations() if operation.name == "accumulate"
    ]
    if not columns:
        return None
    blocks = choose_blocks(kernel, card)
    length = product(kernel.body.reduction_ranges)
    renamed: dict[str, str] = {}
    for column in columns:
        assert column.buffer is not None
        shape = (blocks.programs, length)
        parts = _new_buffer(buffers, column.buffer, shape, column.dtype, kernel.device)
        renamed[column.buffer] = parts.name
    stages = tuple(
        Stage(
            stage.level,
            stage.start,
            tuple(_retarget(operation, renamed) for operation in stage.operations),
        )
        for stage in kernel.body.stages
    )
    body = LoopBody(kernel.body.ranges, kernel.body.reduction_ranges, stages)
    first = make_kernel(
        kernel.name,
        body,
        buffers,
        locals_=kernel.locals,
        device=kernel.device,
        nodes=kernel.nodes,
    )
    return [first, _combine_rows(kernel, columns, renamed, buffers, later)]


def _retarget(operation: Operation, renamed: dict[str, str]) -> Operation:
    if operation.name != "accumulate" or operation.buffer is None:
        return operation
    return replace(operation, buffer=renamed[operation.buffer])


def _combine_rows(
    kernel: Kernel,
    columns: Sequence[Operation],
    renamed: dict[str, str],
    buffers: dict[str, Buffer],
    later: list[Step],
) -> Kernel:
    """Add up the rows of partial results of all columns of a kernel, then convert the sums."""
    programs, length = buffers[next(iter(renamed.values()))].shape
    recorder = Recorder((length,), (programs,))
    (place,), (program,) = recorder.outer, recorder.inner
    recorder.stage("inner")
    totals: list[Scalar] = []
    for column in columns:
        parts = buffers[renamed[str(column.buffer)]]
        value = recorder.load(parts.name, length * program + place, parts.dtype)
        totals.append(recorder.reduce(_kind(column), value, dtype=value.dtype))
    recorder.stage("outer")
    for column, total in zip(columns, totals, strict=True):
        target = buffers[str(column.buffer)]
        coordinates = delinearize(place, target.shape)
        index = linear_index(coordinates, target.stride)
        recorder.store(target.name, index, total, target.dtype)
    nodes = list(kernel.nodes)
    for step in reversed(later):
        if isinstance(step, Kernel) and _only_converts(step, set(renamed), length):
            later.remove(step)
            nodes += step.nodes
            mapping: dict[Symbol, Size] = dict(zip(_symbols(step.body)[0], (place,), strict=True))
            for stage in step.body.stages:
                recorder.replay(_numbered(stage), mapping, {}, {})
    return make_kernel(
        f"{kernel.name}_columns",
        recorder.finish(),
        buffers,
        locals_=(),
        device=kernel.device,
        nodes=tuple(nodes),
    )


def _only_converts(kernel: Kernel, sums: set[str], length: Size) -> bool:
    """Whether a kernel works element by element on column sums and nothing else."""
    body = kernel.body
    if body.ranges != (length,) or body.reduction_ranges or kernel.reuses or not body.reads <= sums:
        return False
    (symbol,) = _symbols(body)[0]
    return all(
        operation.index == symbol and not combines(operation)
        for _, operation, _ in body.operations()
        if operation.buffer is not None
    )


def _kind(operation: Operation) -> ReductionKind:
    return operation.attribute  # type: ignore[return-value]  # of reduce and accumulate it is the kind


# ---- long reductions with few outer points ----------------------------------------
@dataclass(frozen=True, slots=True)
class _Split:
    """`parts` pieces of `length` reduction points each; `padded` when they cover more than there are."""

    parts: int
    length: int
    padded: bool


def _choose_split(
    kernel: Kernel, kinds: set[str], card: DeviceProperties, *, may_pad: bool
) -> _Split | None:
    points, row = product(kernel.body.ranges), product(kernel.body.reduction_ranges)
    if (
        not isinstance(points, int)
        or not isinstance(row, int)
        or points == 0
        or not kinds <= _SPLITTABLE
    ):
        return None
    programs = -(-points // choose_blocks(kernel, card).outer)
    moved = kernel.decisions.bytes
    vector = kernel.decisions.vector
    columns = vector is not None and vector.level == "outer"
    enough = _ENOUGH_PROGRAMS * card.units
    if columns and isinstance(moved, int):
        wanted = moved // _PROGRAM_BYTES
        most = _MOST_PROGRAMS if wanted <= _MOST_PROGRAMS * card.units else _RESIDENT_PROGRAMS
        enough = max(enough, min(wanted, most * card.units))
    if programs >= enough or row < 2 * _SHORTEST_PART:
        return None
    if isinstance(moved, int) and moved <= programs * _FEW_BYTES:
        return None
    shortest = 64 if columns else _SHORTEST_PART
    wanted = min(-(-enough // programs), row // shortest)
    if wanted < 2:
        return None
    for parts in range(wanted, max(wanted // 2, 2) - 1, -1):
        if row % parts == 0:
            return _Split(parts, row // parts, padded=False)
    if not may_pad or not kinds <= _PADDABLE:
        return None
    return _Split(wanted, -(-row // wanted), padded=True)


def _parts(
    kernel: Kernel, buffers: dict[str, Buffer], card: DeviceProperties
) -> list[Kernel] | None:
    body = kernel.body
    sweeps = [stage for stage in body.stages if stage.level == "inner"]
    if len(sweeps) != 1 or kernel.locals:
        return None
    (sweep,) = sweeps
    names = {operation.name for operation in sweep.operations}
    reductions = [operation for operation in sweep.operations if operation.name == "reduce"]
    if names & {"accumulate", "scan"} or not reductions:
        return None
    before = [stage for stage in body.stages if stage.start < sweep.start]
    if any(
        operation.name in ("store", "indirect")
        for stage in before
        for operation in stage.operations
    ):
        return None
    split = _choose_split(
        kernel,
        {str(operation.attribute) for operation in reductions},
        card,
        may_pad="store" not in names,
    )
    if split is None:
        return None
    first, partial = _first_pass(kernel, sweep, before, split, buffers)
    return [first, _second_pass(kernel, sweep, split, partial, buffers)]


def _first_pass(
    kernel: Kernel, sweep: Stage, before: list[Stage], split: _Split, buffers: dict[str, Buffer]
) -> tuple[Kernel, dict[int, tuple[Buffer, ...]]]:
    """Reduce each part: outer loops are (part, the kernel's own)."""
    body = kernel.body
    recorder = Recorder((split.parts, *body.ranges), (split.length,))
    part, *outer = recorder.outer
    (inner,) = recorder.inner
    position = split.length * part + inner
    own = _symbols(body)
    mapping: dict[Symbol, Size] = dict(zip(own[0], outer, strict=True))
    mapping |= dict(zip(own[1], delinearize(position, body.reduction_ranges), strict=True))
    values: dict[int, Scalar] = {}
    for stage in before:
        recorder.stage("outer")
        recorder.replay(_numbered(stage), mapping, values, {})
    recorder.stage("inner")
    inside: Scalar | None = None
    if split.padded:
        total = recorder.index_expression(product(body.reduction_ranges), _INDEX)
        inside = recorder.op("lt", recorder.index_expression(position, _INDEX), total)
    work = [(p, o) for p, o in _numbered(sweep) if o.name not in ("reduce", "part")]
    if inside is None:
        recorder.replay(work, mapping, values, {})
    else:
        with recorder.masked(inside):
            recorder.replay(work, mapping, values, {})
    reduced: dict[int, Scalar] = {}
    for number, operation in _numbered(sweep):
        if operation.name == "reduce":
            operands = [values[operand] for operand in operation.operands]
            if inside is not None:
                operands = [_padded(recorder, inside, operands[0], _kind(operation))]
            reduced[number] = recorder.reduce(_kind(operation), *operands, dtype=operation.dtype)
    recorder.stage("outer")
    partial: dict[int, tuple[Buffer, ...]] = {}
    place = linear_index((part, *outer), contiguous_stride((split.parts, *body.ranges)))
    for number, value in reduced.items():
        pieces = [value]
        if recorder.operation(value).attribute == "welford":
            pieces = [recorder.part(value, k, value.dtype) for k in range(3)]
        made = []
        for piece in pieces:
            shape = (split.parts, *body.ranges)
            buffer = _new_buffer(
                buffers, f"{kernel.name}_{number}", shape, piece.dtype, kernel.device
            )
            recorder.store(buffer.name, place, piece, piece.dtype)
            made.append(buffer)
        partial[number] = tuple(made)
    first = make_kernel(
        f"{kernel.name}_parts",
        recorder.finish(),
        buffers,
        locals_=(),
        device=kernel.device,
        nodes=kernel.nodes,
    )
    return first, partial


def _padded(recorder: Recorder, inside: Scalar, value: Scalar, kind: str) -> Scalar:
    """The value, or what changes nothing where there is no element."""
    dtype = value.dtype
    neutral: bool | int | float
    match kind:
        case "sum" | "any":
            neutral = 0
        case "prod" | "all":
            neutral = 1
        case "max" | "min":
            lowest = kind == "max"
            if dtype.is_floating_point:
                neutral = float("-inf") if lowest else float("inf")
            elif dtype is _BOOL:
                neutral = not lowest
            else:
                limits = _limits(dtype)
                neutral = limits[0] if lowest else limits[1]
        case _:
            raise AssertionError(f"{kind} can't be padded")
    return recorder.op("where", inside, value, recorder.constant(neutral, dtype), dtype=dtype)


def _second_pass(
    kernel: Kernel,
    sweep: Stage,
    split: _Split,
    partial: dict[int, tuple[Buffer, ...]],
    buffers: dict[str, Buffer],
) -> Kernel:
    """Combine the parts, then do what followed the reduction."""
    body = kernel.body
    recorder = Recorder(body.ranges, (split.parts,))
    (part,) = recorder.inner
    own = _symbols(body)
    mapping: dict[Symbol, Size] = dict(zip(own[0], recorder.outer, strict=True))
    values: dict[int, Scalar] = {}
    symbols: dict[Symbol, Size] = {}
    for stage in body.stages:
        if stage.start < sweep.start:
            recorder.stage("outer")
            recorder.replay(_numbered(stage), mapping, values, symbols)
    recorder.stage("inner")
    place = linear_index((part, *recorder.outer), contiguous_stride((split.parts, *body.ranges)))
    for number, operation in _numbered(sweep):
        if operation.name != "reduce":
            continue
        pieces = [recorder.load(buffer.name, place, buffer.dtype) for buffer in partial[number]]
        kind = "welford_combine" if operation.attribute == "welford" else _kind(operation)
        values[number] = recorder.reduce(kind, *pieces, dtype=operation.dtype)
    for number, operation in _numbered(sweep):
        if operation.name == "part":
            assert isinstance(operation.attribute, int)
            values[number] = recorder.part(
                values[operation.operands[0]], operation.attribute, operation.dtype
            )
    for stage in body.stages:
        if stage.start > sweep.start:
            recorder.stage("outer")
            recorder.replay(_numbered(stage), mapping, values, symbols)
    return make_kernel(
        kernel.name,
        recorder.finish(),
        buffers,
        locals_=(),
        device=kernel.device,
        nodes=kernel.nodes,
    )


def _limits(dtype: torch.dtype) -> tuple[int, int]:
    information = torch.iinfo(dtype)
    return information.min, information.max


def _symbols(body: LoopBody) -> tuple[tuple[Symbol, ...], tuple[Symbol, ...]]:
    return outer_symbols(body.ranges), inner_symbols(body.reduction_ranges)


def _numbered(stage: Stage) -> list[tuple[int, Operation]]:
    return list(enumerate(stage.operations, stage.start))
