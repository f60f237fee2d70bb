"""GPU kernels that are finished in one launch: the program that ends last goes on with what the next kernel was to do.

Comes in: the steps of a schedule and which of them are the two halves of a divided reduction. Goes out: the same steps,
where a small reduction of what the kernel before has left is that kernel's ending. Invariant: the ending reads the
partial results in the order that the second kernel would have read them in, whichever program ends last, so that
results repeat; it is small enough for one program: what one reads while a second launch begins.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from inductor.ir.counters import COUNTERS, Counters
from inductor.ir.index import product
from inductor.ir.kernel import Ending, Kernel, KernelArgument
from inductor.ir.nodes import Buffer, OperatorCall
from inductor.ir.operations import combines
from inductor.schedule.blocks import choose_blocks, ending_outer

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from inductor.ir.kernel import Step
    from inductor.ir.machine import DeviceProperties

__all__ = ["end_in_one_launch"]

_MOST_BYTES = 200_000
"""What one multiprocessor reads in the time that a second launch takes to begin; 0 leaves all kernels two launches."""
_MOST_TURNS = 4
"""Of an ending's loop: each waits for memory once."""
_MOST_PROGRAMS = 8
"""For each multiprocessor, of a kernel whose programs all count: of many short ones each waits for its count.

Measured on an H200: the mean of 8192 rows' losses took 14.0 us in two launches, 22.7 counted by each row's program and
15.6 by four rows'; of 4096 long rows 78.7 and 80.0.
"""
_MOST_POINTS = 64
"""Of an ending that is one program's."""
_REASON = "programs of a kernel count themselves: the last one finishes a reduction without a second launch"


def end_in_one_launch(
    steps: Sequence[Step],
    buffers: dict[str, Buffer],
    divided: Collection[str],
    card: DeviceProperties,
    *,
    everywhere: bool = False,
) -> list[Step]:
    """The steps with the second of two kernels inside the first, where that is faster; adds the buffer of counters.

    `everywhere` takes the kernels of all devices for GPU kernels; `divided` names first halves of divided reductions,
    whose second half's points are groups of programs.
    """
    result: list[Step] = []
    counters = "counters"
    while counters in buffers:
        counters += "_"
    device: torch.device | None = None
    for step in steps:
        before = result[-1] if result else None
        made = None
        if (
            isinstance(step, Kernel)
            and isinstance(before, Kernel)
            and device in (None, step.device)
            and (everywhere or step.device.type != "cpu")
        ):
            made = _joined(before, step, counters, before.name in divided, card)
        if made is None:
            result.append(step)
            continue
        result[-1] = made
        device = made.device
    if device is not None:
        buffers[counters] = Buffer(counters, (COUNTERS,), (1,), torch.int32, device)
        call = OperatorCall(
            name=counters,
            kind="vendor",
            operator=Counters(device),
            args=(),
            kwargs={},
            outputs=(counters,),
            reason=_REASON,
        )
        result.insert(0, call)
    return result


def _joined(
    first: Kernel, second: Kernel, counters: str, divided: bool, card: DeviceProperties
) -> Kernel | None:
    """Both as one kernel, or None where two launches are better or the ending is none of one program."""
    if not _may_end(first, second):
        return None
    moved = second.decisions.bytes
    outer_points = product(first.body.ranges)
    points = product(second.body.ranges)
    row = product(second.body.reduction_ranges)
    assert isinstance(outer_points, int)
    assert isinstance(moved, int)
    assert isinstance(points, int)
    assert isinstance(row, int)
    for groups in _groups(first, points, divided, card):
        if moved > _MOST_BYTES * groups:
            continue
        ending = Ending(second, counters, groups)
        joined = replace(
            first,
            name=second.name,
            arguments=_arguments(first, second, counters),
            sizes=tuple(dict.fromkeys((*first.sizes, *second.sizes))),
            scalars=tuple(dict.fromkeys((*first.scalars, *second.scalars))),
            nodes=tuple(dict.fromkeys((*first.nodes, *second.nodes))),
            ending=ending,
        )
        blocks = choose_blocks(joined, card)
        programs = blocks.programs or -(-outer_points // blocks.outer)
        if programs > _MOST_PROGRAMS * card.units * groups:
            continue
        whole = groups * blocks.outer == points or groups == 1
        if whole and -(-row // blocks.ending) <= _MOST_TURNS and ending_outer(joined, blocks):
            return joined
    return None


def _groups(first: Kernel, points: int, divided: bool, card: DeviceProperties) -> list[int]:
    """How many groups of programs there may be; the most first."""
    found = []
    outer = choose_blocks(first, card).outer
    if divided and points % outer == 0 and 1 < points // outer <= COUNTERS:
        found.append(points // outer)
    if points <= _MOST_POINTS:
        found.append(1)
    return found


def _may_end(first: Kernel, second: Kernel) -> bool:
    """Whether a kernel's sizes are known, it reduces, and it needs of the first what only a last program knows."""
    sizes = (
        product(first.body.ranges),
        product(first.body.reduction_ranges),
        product(second.body.ranges),
        product(second.body.reduction_ranges),
        second.decisions.bytes,
    )
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return False
    if not (first.body.reduction_ranges and second.body.reduction_ranges):
        return False
    if first.device != second.device or first.ending is not None or second.locals:
        return False
    if first.decisions.wide_index or second.decisions.wide_index:
        return False
    alone = not any(
        operation.name in ("accumulate", "scan")
        or (operation.name == "store" and combines(operation))
        for _, operation, _ in second.body.operations()
    )
    return (
        alone
        and bool(first.writes & second.reads)
        and not second.writes & (first.reads | first.writes)
    )


def _arguments(first: Kernel, second: Kernel, counters: str) -> tuple[KernelArgument, ...]:
    known = {argument.buffer for argument in first.arguments}
    more = [argument for argument in second.arguments if argument.buffer not in known]
    return (*first.arguments, *more, KernelArgument(counters, torch.int32, "read"))
