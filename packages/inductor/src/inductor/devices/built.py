"""The three ways in which a call program starts a kernel.

`BuiltKernel`: a function in memory. `LoadedKernel`: a handle of a card's driver. `CalledKernel`: a Python callable that
gets tensors; a device that another distribution adds gives these, and a kernel that no compiler takes becomes one, run
by torch's own operators. Invariant: all three read and write the same buffers in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from inductor.ir.index import storage_length
from inductor.ir.interpret import run_body
from primtorch.symbolic import Symbol, evaluate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from inductor.codegen.cpp import CppKernel
    from inductor.codegen.triton import TritonSource
    from inductor.ir import Buffer, Kernel, Size
    from inductor.runtime.gpu_driver import DeviceFunction
    from inductor.runtime.triton_build import TritonBinary

__all__ = ["Built", "BuiltKernel", "CalledKernel", "LoadedKernel", "flat_length", "run_by_torch"]


@dataclass(frozen=True, slots=True)
class BuiltKernel:
    """A kernel of the schedule with its printed text, its address and its name in libraries."""

    kernel: Kernel
    source: CppKernel
    address: int
    symbol: str = ""


@dataclass(frozen=True, slots=True)
class LoadedKernel:
    """A kernel of the schedule, its Triton text, its device code and its handle on the card."""

    kernel: Kernel
    source: TritonSource
    binary: TritonBinary
    function: DeviceFunction


@dataclass(frozen=True, slots=True)
class CalledKernel:
    """A kernel of the schedule and what runs it.

    `run(tensors, sizes, scalars)`: one flat tensor for each of the kernel's arguments, element 0 first, in whose memory
    it writes; the values of the kernel's size symbols; those of its scalar inputs.
    """

    kernel: Kernel
    run: Callable[[Sequence[torch.Tensor], Sequence[int], Sequence[Any]], None]


Built = BuiltKernel | LoadedKernel | CalledKernel


def flat_length(buffer: Buffer) -> Size:
    """Elements from a buffer's first to its last in memory."""
    return storage_length(buffer.shape, buffer.stride)


def _unchanging(kind: str, dtype: torch.dtype) -> float:
    """What a sum, a maximum or a minimum stays the same with."""
    if kind == "sum":
        return 0
    if dtype is torch.bool:
        return kind == "min"
    if dtype.is_floating_point:
        return -torch.inf if kind == "max" else torch.inf
    limits = torch.iinfo(dtype)
    return limits.min if kind == "max" else limits.max


def run_by_torch(kernel: Kernel) -> CalledKernel:
    """The kernel run by torch's operators, over whole ranges at once: right and slow."""
    names = tuple(argument.buffer for argument in kernel.arguments)
    # On a card each program leaves a row of partial sums: here the first holds all, the others what changes nothing.
    sums = {
        str(operation.buffer): str(operation.attribute)
        for _, operation, _ in kernel.body.operations()
        if operation.name == "accumulate" and kernel.device.type != "cpu"
    }
    symbols = tuple(size for size in kernel.sizes if isinstance(size, Symbol))
    inputs = tuple(name for name, _ in kernel.scalars)

    def run(tensors: Sequence[torch.Tensor], sizes: Sequence[int], scalars: Sequence[Any]) -> None:
        known = dict(zip(symbols, sizes, strict=True))
        storages = dict(zip(names, tensors, strict=True))
        lengths = {row.name: evaluate(row.length, known) for row in kernel.locals}
        place = tensors[0].device if tensors else kernel.device
        for row in kernel.locals:
            storages[row.name] = torch.empty(0, dtype=row.dtype, device=place)
        given = dict(zip(inputs, scalars, strict=True))
        with torch.no_grad():
            for name, kind in sums.items():
                storages[name].fill_(_unchanging(kind, storages[name].dtype))
            run_body(kernel.body, storages, known, given, lengths)
            if kernel.ending is not None:
                run_body(kernel.ending.kernel.body, storages, known, given, {})

    return CalledKernel(kernel, run)
