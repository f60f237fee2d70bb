"""Collects buffers and nodes while a graph is lowered, and decides what is stored.

The one rule for storing (`settle`): a computed value stays a function of coordinates, to be
recorded into its consumer, unless it is an output, has several consumers and isn't cheap to
recompute, or has grown too large. What is stored and consumed by one kernel costs no memory
traffic: the scheduler forwards it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from inductor.analysis.cost import smallest
from inductor.ir.index import contiguous_stride, linear_index, product
from inductor.ir.machine import PROCESSOR
from inductor.ir.nodes import Buffer, LoopNode, OperatorCall, Origin, View, WithNumbers
from inductor.ir.operations import HALF_DTYPES
from inductor.ir.recorder import Recorder, Scalar
from inductor.lowering.values import Coordinates, Value
from primtorch.symbolic import bounds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from inductor.ir.machine import DeviceProperties
    from inductor.ir.nodes import LoopKind, Node
    from inductor.ir.operations import ReductionKind, Size, StoreMode

CHEAP_OPERATIONS = 2
CHEAP_LOADS = 1
FREE_OPERATIONS = 12
LARGEST_COMPUTATION = 120
MOST_LOADS = 16
IMAGE_RANKS = (4, 5)
FEWER_PICKED = 8
"""By how much fewer elements are picked than there are where that is done row by row."""
ROW_ALIGNMENT = 16
SHORTEST_PADDED_ROW = 512
PRODUCTS = frozenset(
    {
        torch.ops.aten.mm.default,
        torch.ops.aten.bmm.default,
        torch.ops.aten.addmm.default,
        torch.ops.aten.baddbmm.default,
    }
)
"""Their results may have any row stride: the library writes into the buffer it is given."""


@dataclass(frozen=True, slots=True)
class TensorFact:
    """Shape, strides, dtype and device that eager's result of a node has."""

    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    dtype: torch.dtype
    device: torch.device
    offset: Size = 0


def _is_number(argument: Any) -> bool:
    if isinstance(argument, list | tuple):
        return any(map(_is_number, argument))
    return isinstance(argument, Value) and argument.number


def _with_numbers(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The operator, or one that reads from memory the numbers that are computed there."""
    places = tuple(place for place, argument in enumerate(args) if _is_number(argument))
    names = tuple(name for name, argument in kwargs.items() if _is_number(argument))
    return WithNumbers(operator, places, names) if places or names else operator


class Builder:
    """The state of one lowering; see the module."""

    def __init__(
        self,
        *,
        round_halves: bool = True,
        for_gpu: bool = False,
        processor: DeviceProperties = PROCESSOR,
    ) -> None:
        self.round_halves = round_halves
        self._for_gpu = for_gpu
        self.processor = processor
        """What the CPU's operators are chosen for; see `inductor.lowering.linear`."""
        self.copies: dict[Value, Value] = {}
        """What was copied into the layout that an operator wants; see `inductor.lowering.layouts`."""
        self.cleared: set[str] = set()
        """Buffers whose rows' ends, there only for alignment, hold zeros."""
        self.ordered = False
        """Whether what hangs on the order of threads is left to the library."""
        self.depthwise = False
        """Whether a convolution of the graph has a filter of its own for each channel."""
        self.leaves = False
        """Whether the graph's caller gets what the current operator makes, and nothing else reads it."""
        self.buffers: dict[str, Buffer] = {}
        self.nodes: list[Node] = []
        self.fact: Any = None
        """What the current FX node yields: a `TensorFact`, or a tuple of facts and numbers."""
        self.origin: Origin | None = None
        self.operator: Any = None

    def argument_fact(self, position: int) -> TensorFact:
        """What the graph promises of the current operator's argument `position`."""
        raise NotImplementedError

    def on_gpu(self, device: torch.device) -> bool:
        """Whether layouts are chosen as for a GPU."""
        return device.type != "cpu" or self._for_gpu

    def padded(self, columns: Size, dtype: torch.dtype, device: torch.device) -> Size:
        """The number of columns that rows are given room for: on a GPU half types fill 16 bytes.

        Measured in docs/performance.md; short rows are left alone.
        """
        if not self.on_gpu(device) or dtype.itemsize != 2 or not isinstance(columns, int):
            return columns
        step = ROW_ALIGNMENT // dtype.itemsize
        return columns if columns < SHORTEST_PADDED_ROW else -(-columns // step) * step

    # ---- names
    def buffer(
        self,
        shape: Sequence[Size],
        stride: Sequence[Size],
        dtype: torch.dtype,
        device: torch.device,
        name: str | None = None,
    ) -> Buffer:
        """A new buffer."""
        buffer = Buffer(name or self._fresh(), tuple(shape), tuple(stride), dtype, device)
        self.buffers[buffer.name] = buffer
        return buffer

    def _fresh(self) -> str:
        number = len(self.buffers)
        while f"b{number}" in self.buffers:
            number += 1
        return f"b{number}"

    def _add(self, node: Node) -> None:
        self.nodes.append(node)

    def _origins(self) -> tuple[Origin, ...]:
        return (self.origin,) if self.origin is not None else ()

    # ---- storing
    def settle(self, value: Value, uses: int, *, output: bool) -> None:
        """Store a node's value now if the rule says so."""
        if value.stored or value.is_view:
            return
        cheap = value.operations <= CHEAP_OPERATIONS and value.loads <= CHEAP_LOADS
        if self.on_gpu(value.device) and value.traffic is not None and has_columns(value):
            # Sums over columns end their kernels, so several kernels read this in any case, and
            # arithmetic is free where memory is the limit.
            within = value.operations <= FREE_OPERATIONS
            cheap = cheap or (within and value.traffic <= value.dtype.itemsize)
        large = value.operations > LARGEST_COMPUTATION or value.loads > MOST_LOADS
        if output or large or (uses > 1 and not cheap):
            self.realize(value, leaves=output)

    def realize(self, value: Value, *, leaves: bool = False) -> View:
        """Where a value is stored; stores it first if need be.

        `leaves` keeps eager's layout, because the caller of the graph sees it.
        """
        if value.view is not None:
            return value.view
        if value.base is not None and value.window is not None and value.whole:
            view = value.window(self.realize(value.base))
            if view is not None:
                value.view = view
                value.function = None
                return view
        layout, shape = layout_for(value.shape, value.stride), value.shape
        if shape and not leaves:
            wide = self.padded(shape[-1], value.dtype, value.device)
            aligned = aligned_rows(shape, layout, wide)
            if aligned != layout:
                layout, shape = aligned, (*shape[:-1], wide)
        buffer = self.buffer(shape, layout, value.dtype, value.device)
        view = View(buffer.name, value.shape, layout, 0, value.dtype)
        self.store(value, view)
        value.view = view
        value.function = None
        return view

    def store(self, value: Value, view: View) -> None:
        """A pointwise node that writes a value into a window."""
        order = loop_order(view.shape, view.stride)
        recorder = Recorder([view.shape[axis] for axis in order])
        recorder.stage("outer")
        coordinates = spread(recorder.outer, order, len(view.shape))
        scalar = recorder.to_dtype(value.load(recorder, coordinates), view.dtype)
        index = linear_index(coordinates, view.stride, view.offset)
        recorder.store(view.buffer, index, scalar, view.dtype)
        self.loop("pointwise", recorder, value.device, value.origin)

    def loop(
        self,
        kind: LoopKind,
        recorder: Recorder,
        device: torch.device,
        origin: Origin | None = None,
    ) -> None:
        """Add what a recorder holds as a node: of `origin`, else of what is being lowered."""
        origins = self._origins() if origin is None else (origin,)
        self._add(LoopNode(f"n{len(self.nodes)}", kind, recorder.finish(), device, origins))

    # ---- whole operators
    def call(
        self,
        kind: str,
        operator: Any,
        args: Any,
        kwargs: Any,
        reason: str,
        *,
        aligned: bool = True,
    ) -> Any:
        """Run an operator as it is; the result has the structure of the current fact.

        A product's rows are `aligned`, unless they are to lie as the fact says.
        """
        assert kind in ("vendor", "fallback")
        operator = _with_numbers(operator, args, kwargs)
        arguments = tuple(self._stored(argument) for argument in args)
        keywords = {key: self._stored(argument) for key, argument in kwargs.items()}
        outputs: list[str | None] = []
        fact = self.fact
        if aligned and operator in PRODUCTS and isinstance(fact, TensorFact):
            wide = self.padded(fact.shape[-1], fact.dtype, fact.device)
            fact = replace(fact, stride=aligned_rows(fact.shape, fact.stride, wide))
        result = self._results(fact, outputs)
        self._add(
            OperatorCall(
                f"n{len(self.nodes)}",
                "vendor" if kind == "vendor" else "fallback",
                operator,
                arguments,
                keywords,
                tuple(outputs),
                reason,
                self._origins(),
            )
        )
        return result

    def _stored(self, argument: Any) -> Any:
        if isinstance(argument, Value):
            return self.realize(argument)
        if isinstance(argument, list | tuple):
            return tuple(self._stored(item) for item in argument)
        return argument

    def _results(self, fact: Any, outputs: list[str | None]) -> Any:
        if isinstance(fact, TensorFact):
            buffer = self.buffer(fact.shape, fact.stride, fact.dtype, fact.device)
            outputs.append(buffer.name)
            return self.stored(buffer)
        if isinstance(fact, list | tuple):
            return tuple(self._results(item, outputs) for item in fact)
        outputs.append(None)
        return fact

    def stored(self, buffer: Buffer) -> Value:
        """A whole buffer as a value."""
        return Value(buffer.shape, buffer.dtype, buffer.device, buffer.view, stride=buffer.stride)

    # ---- loops that lowerings ask for
    def pointwise(
        self,
        function: Callable[[Recorder, Coordinates], Scalar],
        *,
        shape: Sequence[Size],
        dtype: torch.dtype,
        device: torch.device,
        operations: int,
        loads: int,
        stride: Sequence[Size] | None = None,
        traffic: int | None = None,
    ) -> Value:
        """A computed value."""
        return Value(
            tuple(shape),
            dtype,
            device,
            None,
            function,
            operations,
            loads,
            traffic,
            None if stride is None else tuple(stride),
        )

    def reduction(
        self,
        value: Value,
        dimensions: Sequence[int],
        finish: Callable[[Recorder, Callable[..., Scalar]], Sequence[Scalar]],
        results: Sequence[Buffer],
        *,
        load: Callable[[Recorder, Coordinates], Scalar] | None = None,
        in_order: bool = False,
    ) -> None:
        """A reduction node over `dimensions` of `value`.

        `finish(recorder, reduce)` calls `reduce(kind, dtype)` once and returns what to store into
        `results`, whose shapes have extent 1 in the reduced dimensions (strides say where).
        """
        rank = len(value.shape)
        reduced = set(dimensions)
        if load is None and all(axis in reduced for axis in range(rank)):
            self._pick_first(value)
        hint = layout_for(value.shape, value.stride)
        order = loop_order(value.shape, hint)
        outer = [axis for axis in order if axis not in reduced]
        inner = [axis for axis in order if axis in reduced]
        if in_order:
            inner.sort()
        recorder = Recorder(
            [value.shape[axis] for axis in outer], [value.shape[axis] for axis in inner]
        )
        coordinates: list[Size] = [0] * rank
        for axis, symbol in zip(outer, recorder.outer, strict=True):
            coordinates[axis] = symbol
        place = tuple(coordinates)
        for axis, symbol in zip(inner, recorder.inner, strict=True):
            coordinates[axis] = symbol
        recorder.stage("inner" if inner else "outer")
        element = (load or value.load)(recorder, tuple(coordinates))

        def reduce(kind: ReductionKind, dtype: torch.dtype, accumulate: torch.dtype) -> Scalar:
            scalar = recorder.to_dtype(element, accumulate)
            return recorder.reduce(kind, scalar, dtype=dtype)

        scalars = finish(recorder, reduce)
        recorder.stage("outer")
        columns = bool(outer) and bool(inner) and order[-1] not in reduced
        later: list[tuple[Buffer, Buffer]] = []
        for buffer, scalar in zip(results, scalars, strict=True):
            target = buffer
            if columns and buffer.dtype in HALF_DTYPES:
                # Unrounded sums of columns can be gathered along with row-wise work.
                target = self.buffer(buffer.shape, buffer.stride, scalar.dtype, buffer.device)
                later.append((target, buffer))
            narrowed = recorder.to_dtype(scalar, target.dtype)
            recorder.store(target.name, linear_index(place, target.stride), narrowed, target.dtype)
        self.loop("reduction", recorder, value.device)
        for wide, buffer in later:
            self.store(self.stored(wide), buffer.view)

    def _pick_first(self, value: Value) -> None:
        """On a GPU, store a value that picks few elements of what a loop computes before it is summed up.

        The picking then happens row by row where the rows are in registers, as the loss at each row's target.
        """
        if value.function is None or not self.on_gpu(value.device):
            return
        made = {name for node in self.nodes if isinstance(node, LoopNode) for name in node.writes}
        recorder = Recorder(value.shape)
        value.load(recorder, recorder.outer)
        recorded = recorder.recorded()
        for operation in recorded:
            if operation.name != "load" or operation.buffer not in made:
                continue
            if all(recorded[operand].name != "indirect" for operand in operation.operands):
                continue
            from_table = smallest(product(self.buffers[operation.buffer].shape))
            if 0 < smallest(product(value.shape)) * FEWER_PICKED <= from_table:
                self.realize(value)
                return

    def scatter(
        self,
        target: Buffer,
        shape: Sequence[Size],
        place: Callable[[Recorder, Coordinates], Coordinates],
        source: Callable[[Recorder, Coordinates], Scalar],
        mode: StoreMode,
    ) -> None:
        """For each point of `shape` write (or add) `source` at coordinates `place` of `target`."""
        order = loop_order(shape, contiguous_stride(shape))
        recorder = Recorder([shape[axis] for axis in order])
        recorder.stage("outer")
        coordinates = spread(recorder.outer, order, len(shape))
        where = place(recorder, coordinates)
        scalar = recorder.to_dtype(source(recorder, coordinates), target.dtype)
        index = linear_index(where, target.stride)
        recorder.store(target.name, index, scalar, target.dtype, mode)
        self.loop("scatter", recorder, target.device)

    def write_window(
        self, target: Buffer, value: Value, stride: Sequence[Size], offset: Size
    ) -> None:
        """Write a value into `target` where strides lead; they may run over other dimensions than its own."""
        order = loop_order(value.shape, stride)
        recorder = Recorder([value.shape[axis] for axis in order])
        recorder.stage("outer")
        coordinates = spread(recorder.outer, order, len(value.shape))
        scalar = recorder.to_dtype(value.load(recorder, coordinates), target.dtype)
        index = linear_index(coordinates, tuple(stride)) + offset
        recorder.store(target.name, index, scalar, target.dtype, "set")
        self.loop("scatter", recorder, target.device)

    def copy(self, value: Value, stride: Sequence[Size] | None = None) -> Buffer:
        """A new buffer that holds a value."""
        layout = layout_for(value.shape, value.stride) if stride is None else tuple(stride)
        buffer = self.buffer(value.shape, layout, value.dtype, value.device)
        self.store(value, buffer.view)
        return buffer


def spread(symbols: Sequence[Size], order: Sequence[int], rank: int) -> Coordinates:
    """Coordinates of a tensor of `rank` whose axes `order` are the loops; 0 elsewhere."""
    coordinates: list[Size] = [0] * rank
    for symbol, axis in zip(symbols, order, strict=True):
        coordinates[axis] = symbol
    return tuple(coordinates)


def _magnitude(step: Size) -> int:
    """A number to compare strides by: an expression counts by its smallest value, large."""
    if isinstance(step, int):
        return step
    low, high = bounds(step)
    return high if high is not None else max(low or 0, 1) * 1024


def loop_order(shape: Sequence[Size], stride: Sequence[Size]) -> list[int]:
    """Axes of extent other than 1, the largest stride first."""
    axes = [axis for axis, extent in enumerate(shape) if extent != 1]
    return sorted(axes, key=lambda axis: -_magnitude(stride[axis]))


def is_dense(shape: Sequence[Size], stride: Sequence[Size]) -> bool:
    """Whether strides address each of the elements once, without gaps."""
    expected: Size = 1
    for axis in reversed(loop_order(shape, stride)):
        if stride[axis] != expected:
            return False
        expected = expected * shape[axis]
    return True


def has_columns(value: Value) -> bool:
    """Whether a value is an image whose channels lie side by side: statistics of a channel are column sums."""
    stride = value.stride
    if stride is None or len(value.shape) not in IMAGE_RANKS:
        return False
    return stride[1] == 1 and value.shape[1] != 1 and stride[-1] != 1


def layout_for(shape: Sequence[Size], stride: Sequence[Size] | None) -> tuple[Size, ...]:
    """Eager's strides where they are dense, else row-major."""
    if stride is not None and is_dense(shape, stride):
        return tuple(stride)
    return contiguous_stride(shape)


def aligned_rows(shape: Sequence[Size], stride: Sequence[Size], wide: Size) -> tuple[Size, ...]:
    """A row-major layout with rows `wide` elements apart; other layouts as they are."""
    kept = tuple(stride)
    if not shape or shape[-1] == wide or kept != contiguous_stride(shape):
        return kept
    return contiguous_stride((*shape[:-1], wide))
