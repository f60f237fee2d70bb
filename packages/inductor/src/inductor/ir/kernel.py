"""What is run: kernels (fused loop nodes with every decision made), the memory plan, the program.

`inductor.schedule` makes these, code generators and the executor consume them and decide nothing.
All of it is plain comparable data; `inductor.ir.text` prints it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from inductor.ir.counters import Counters
from inductor.ir.machine import H200
from inductor.ir.nodes import Graph, LoopBody, OperatorCall, View

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from inductor.ir.machine import DeviceProperties
    from inductor.ir.operations import Size


@dataclass(frozen=True, slots=True)
class KernelArgument:
    """A buffer that a kernel touches.

    Passed as a pointer to its first element, in the kernel's argument order.
    """

    buffer: str
    dtype: torch.dtype
    access: Literal["read", "write", "update"]


@dataclass(frozen=True, slots=True)
class LocalBuffer:
    """A thread-private row: `length` elements, indexed by reduction variables only.

    Its elements live from the inner stage that stores them to the last stage that loads them within
    one outer iteration. A code generator that holds the whole row in registers needs no memory for
    it.
    """

    name: str
    dtype: torch.dtype
    length: Size


@dataclass(frozen=True, slots=True)
class Vector:
    """The loop variable whose neighbours are computed together.

    `level` "inner": reduction variable `dimension`; "outer": outer variable `dimension` (then, in a
    kernel with reduction ranges, a block of `block` neighbouring outer points is carried through
    all stages together: the reduction loop runs outside of the vector loop, accumulators are rows
    of `block` values).
    """

    level: Literal["outer", "inner"]
    dimension: int
    block: int = 1


@dataclass(frozen=True, slots=True)
class Tile:
    """Two outer variables walked in square tiles.

    For accesses of which some are contiguous in one, some in the other.
    """

    dimensions: tuple[int, int]
    size: int


@dataclass(frozen=True, slots=True)
class Streamed:
    """A result that a processor writes past its caches.

    Fields:
        buffer: the result.
        least: its bytes from which on; 0: it is known to be so large.
        alone: only where one thread does the whole kernel.
    """

    buffer: str
    least: int = 0
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Decisions:
    """How a kernel's loops run.

    Fields:
        parallel: number of leading outer loops that are collapsed and divided among threads; 0 is
            serial.
        vector: what is vectorised; None is scalar.
        tile: tiled transposition, or None.
        reduction_split: the leading reduction loop is divided among threads, partial results
            combined in order; only when the kernel has one inner stage ending in reductions and
            outer trip count 1.
        work: estimated scalar work (weighted operation count) of the whole kernel, for a run-time
            threading threshold.
        bytes: bytes moved.
        wide_index: some buffer has 2**31 elements or more (or may have).
        streamed: results that a processor writes past its caches.
        places: at how many places in turn a processor's only loop reads on.
    """

    parallel: int
    vector: Vector | None
    tile: Tile | None
    reduction_split: bool
    work: Size
    bytes: Size
    wide_index: bool
    streamed: tuple[Streamed, ...] = ()
    places: int = 1


@dataclass(frozen=True)
class Kernel:
    """One generated function: fused loop nodes.

    `body` is the whole program (see `docs/loop_ir.md`); `arguments` are its buffers in order of
    first use, `sizes` the size symbols it needs (int64 parameters), `scalars` the graph's scalar
    inputs it reads. `reuses` pairs a written argument with the read one whose storage it takes
    over. `nodes` names the loop nodes it was fused from. `ending` is what a GPU's last program goes on with.
    """

    name: str
    body: LoopBody
    arguments: tuple[KernelArgument, ...]
    sizes: tuple[Size, ...]
    scalars: tuple[tuple[str, torch.dtype], ...]
    locals: tuple[LocalBuffer, ...]
    reuses: tuple[tuple[str, str], ...]
    decisions: Decisions
    device: torch.device
    nodes: tuple[str, ...]
    ending: Ending | None = None

    @property
    def reads(self) -> frozenset[str]:
        """Buffers read, without those of its own."""
        found = self.body.reads - {row.name for row in self.locals}
        if self.ending is not None:
            found |= self.ending.kernel.reads | {self.ending.counters}
        return found

    @property
    def writes(self) -> frozenset[str]:
        """Buffers written, without those of its own."""
        found = self.body.writes - {row.name for row in self.locals}
        return found if self.ending is None else found | self.ending.kernel.writes


@dataclass(frozen=True, slots=True)
class Ending:
    """What the program that ends last goes on with, where a second launch would begin.

    Fields:
        kernel: reads what the programs have left; its points are `groups` tiles of equal size.
        counters: a buffer of 32-bit integers, zero before the kernel and zero again after it.
        groups: program `p` belongs to group `p % groups`, each of which has a counter; the last of a group runs the
            group's tile of `kernel`.
    """

    kernel: Kernel
    counters: str
    groups: int


Step = Kernel | OperatorCall


@dataclass(frozen=True, slots=True)
class Place:
    """Where a buffer lives.

    "input"/"constant": given. "output": a tensor of its own, allocated by the kernel that writes it
    first. "arena": `offset` bytes into the call's arena. "operator": the tensor that an operator call
    returns. "reuse": the storage of buffer `of`, whose last reader is the writer of this one (element
    by element, so writing in place is right) or comes before it. Of an input: this is its new value.
    "inside": `offset` bytes into the result `of`, which is allocated before; an operator writes it there.
    All but the arena's live until their last use.
    """

    kind: Literal["input", "constant", "output", "arena", "operator", "reuse", "inside"]
    offset: Size = 0
    of: str | None = None


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Places of all buffers, size of the arena in bytes, and after which step a buffer is dead.

    `release[k]` names the buffers whose last use is step k: inputs (drop the reference so that the
    caller's memory is free) and tensors of their own that don't leave the graph. `allocate[k]` names
    the "output" ones first written by step k. `arena_until` is the last step that needs the arena.
    """

    places: Mapping[str, Place]
    arena_bytes: Size
    allocate: tuple[tuple[str, ...], ...]
    release: tuple[tuple[str, ...], ...]
    arena_until: int | None = None


@dataclass(frozen=True, slots=True)
class FusionNote:
    """Why two neighbouring nodes stand in one kernel or not."""

    first: str
    second: str
    fused: bool
    reason: str
    saved_bytes: int


@dataclass(frozen=True)
class Schedule:
    """The steps in order of execution, and the reasons behind them."""

    steps: tuple[Step, ...]
    notes: tuple[FusionNote, ...]


@dataclass(frozen=True)
class Program:
    """Everything that code generation and the executor need; `card` is what a GPU's kernels were chosen for."""

    graph: Graph
    schedule: Schedule
    memory: MemoryPlan
    card: DeviceProperties = H200

    @property
    def library_calls(self) -> tuple[OperatorCall, ...]:
        """The operators that a library runs, in order; a stream's counters are none."""
        return tuple(
            step
            for step in self.schedule.steps
            if isinstance(step, OperatorCall) and not isinstance(step.operator, Counters)
        )

    @cached_property
    def read_buffers(self) -> frozenset[str]:
        """Buffers that a kernel touches, a call reads or the caller gets.

        Some operators return nothing where nobody looks, and the size of such a result may hang on inputs that the
        graph lacks.
        """
        found = {value.buffer for value in self.graph.outputs if isinstance(value, View)}
        for step in self.schedule.steps:
            if isinstance(step, Kernel):
                found |= {argument.buffer for argument in step.arguments}
            else:
                found |= step.reads
        return frozenset(found)
