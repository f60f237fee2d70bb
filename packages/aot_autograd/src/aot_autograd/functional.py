"""Mutation and aliasing as values: storages with a generation, views as replayable chains.

Every recorded tensor holds a `Value`: the `Storage` it lies in, the chain of views that leads from
the storage's base to it, and the node that computed it. An in-place operator computes the new
value functionally and `write`s it: the new value is pushed back through the chain into the base by
the inverse of each view, and the storage's generation rises. A value whose generation is behind
is stale: `node_of` replays its chain on the current base. Invariant: a node's metadata equals the
metadata of the tensor it stands for, strides included, so that shape rules may look at the tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from aot_autograd.errors import UnsupportedOperator

if TYPE_CHECKING:
    from collections.abc import Callable

    from aot_autograd._torch import OpOverload
    from aot_autograd.graph import Node
    from aot_autograd.metadata import ViewChain, ViewStep
    from aot_autograd.recorder import Recorder
    from primtorch.fake import FakeTensor, TensorMeta

aten = torch.ops.aten


class Storage:
    """A base tensor's memory.

    Attributes:
        node: The node that holds the base's current value.
        first_node: The node that held it at first.
        meta: Metadata of the base.
        generation: Number of writes so far.
        input: Which input the base is, `-1 - k` for the k-th shared storage, or None.
        root: The fake tensor of the base, as C++ autograd sees it.
        layout: The views that in-place changes of the root's own layout have put on it.
        aliases: How many other tensors on this memory have been made.
        is_view: Whether the base is an input that is itself a view of something outside.
        serial: Storages are numbered in the order in which they are made.
        written_at: Order of the last write among all writes of the trace.
    """

    __slots__ = (
        "aliases",
        "first_node",
        "generation",
        "input",
        "is_view",
        "layout",
        "meta",
        "node",
        "root",
        "serial",
        "written_at",
    )

    def __init__(
        self, node: Node, meta: TensorMeta, serial: int, number: int | None = None
    ) -> None:
        self.node = node
        self.first_node = node
        self.meta = meta
        self.serial = serial
        self.generation = 0
        self.input = number
        self.layout: ViewChain = ()
        self.is_view = False
        self.aliases = 0
        self.root: FakeTensor | None = None
        self.written_at = 0


class Value:
    """What a recorded fake tensor stands for; `born` is how often its memory had been written when it was made.

    A view of a view is as old as that one: autograd knows both by their base.
    """

    __slots__ = ("born", "chain", "generation", "node", "storage")

    def __init__(self, storage: Storage, chain: ViewChain, node: Node) -> None:
        self.storage = storage
        self.chain = chain
        self.node = node
        self.generation = self.born = storage.generation


def value_of(tensor: FakeTensor) -> Value:
    """The record of a fake tensor."""
    return tensor.record


def _reshape_back(rec: Recorder, base: FakeTensor, new: FakeTensor, _step: ViewStep) -> FakeTensor:
    return rec.operate(aten.reshape.default, new, list(base.shape))


def _transpose(rec: Recorder, _base: FakeTensor, new: FakeTensor, step: ViewStep) -> FakeTensor:
    return rec.operate(step.operator, new, *step.arguments)


def _permute(rec: Recorder, base: FakeTensor, new: FakeTensor, step: ViewStep) -> FakeTensor:
    rank = base.dim()
    order = [dim % rank for dim in step.arguments[0]]
    return rec.operate(aten.permute.default, new, [order.index(dim) for dim in range(rank)])


def _scatter(operator: OpOverload) -> Callable[..., FakeTensor]:
    def inverse(rec: Recorder, base: FakeTensor, new: FakeTensor, step: ViewStep) -> FakeTensor:
        return rec.operate(operator, base, new, *step.arguments, **dict(step.keywords))

    return inverse


def _other_dtype(rec: Recorder, base: FakeTensor, new: FakeTensor, _step: ViewStep) -> FakeTensor:
    return rec.operate(aten.view.dtype, new, base.dtype)


def _as_complex(rec: Recorder, _base: FakeTensor, new: FakeTensor, _step: ViewStep) -> FakeTensor:
    return rec.operate(aten.view_as_complex.default, new)


def _as_real(rec: Recorder, _base: FakeTensor, new: FakeTensor, _step: ViewStep) -> FakeTensor:
    return rec.operate(aten.view_as_real.default, new)


def _conjugate(rec: Recorder, _base: FakeTensor, new: FakeTensor, _step: ViewStep) -> FakeTensor:
    return rec.operate(aten.conj_physical.default, new)


def _negate(rec: Recorder, _base: FakeTensor, new: FakeTensor, _step: ViewStep) -> FakeTensor:
    return rec.operate(aten.neg.default, new)


INVERSES: dict[OpOverload, Callable[[Recorder, FakeTensor, FakeTensor, ViewStep], FakeTensor]] = {
    aten.view.default: _reshape_back,
    aten._reshape_alias.default: _reshape_back,
    aten.squeeze.default: _reshape_back,
    aten.squeeze.dim: _reshape_back,
    aten.squeeze.dims: _reshape_back,
    aten.unsqueeze.default: _reshape_back,
    aten.t.default: _transpose,
    aten.transpose.int: _transpose,
    aten.permute.default: _permute,
    aten.slice.Tensor: _scatter(aten.slice_scatter.default),
    aten.select.int: _scatter(aten.select_scatter.default),
    aten.diagonal.default: _scatter(aten.diagonal_scatter.default),
    aten.as_strided.default: _scatter(aten.as_strided_scatter.default),
    aten.expand.default: _reshape_back,
    aten.unfold.default: _reshape_back,
    aten.view.dtype: _other_dtype,
    aten.view_as_real.default: _as_complex,
    aten.view_as_complex.default: _as_real,
    aten._conj.default: _conjugate,
    aten._neg_view.default: _negate,
}
"""For each view operator, how a new value of the view becomes a new value of its base."""

_BY_POSITION = frozenset((aten.expand.default, aten.unfold.default))
"""Views through which a write goes element by element."""


def _stride_of(pair: tuple[Any, Any]) -> Any:
    return pair[0]


def is_dense(meta: TensorMeta) -> bool:
    """Whether the elements fill a block of memory without gaps or overlap.

    With symbolic sizes: whether that can be read off the expressions (row-major up to the order of
    dimensions); a layout of which nothing is known counts as dense unless it repeats elements.
    """
    if not meta.is_static:
        return all(
            stride != 0 or size == 1 for stride, size in zip(meta.stride, meta.shape, strict=True)
        )
    expected: Any = 1
    pairs = sorted(
        (pair for pair in zip(meta.stride, meta.shape, strict=True) if pair[1] != 1),
        key=_stride_of,
    )
    for stride, size in pairs:
        if stride != expected:
            return False
        expected = expected * size
    return True


def is_known_dense(meta: TensorMeta) -> bool:
    """As `is_dense`, but with symbolic sizes only what can be read off the expressions is dense."""
    if meta.is_static:
        return is_dense(meta)
    pairs = [pair for pair in zip(meta.stride, meta.shape, strict=True) if pair[1] != 1]
    expected: Any = 1
    while pairs:
        found = next((pair for pair in pairs if pair[0] == expected), None)
        if found is None:
            return False
        pairs.remove(found)
        expected = expected * found[1]
    return True


def contiguous_stride(shape: tuple[Any, ...]) -> tuple[Any, ...]:
    """Row-major strides."""
    strides: list[Any] = []
    step: Any = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * (1 if size == 0 else size)
    return tuple(reversed(strides))


def same_layout(left: TensorMeta, right: TensorMeta) -> bool:
    """Equal strides wherever they matter (dimensions of size one have none that does)."""
    if left.stride == right.stride:
        return True
    return all(
        one == other or size == 1
        for one, other, size in zip(left.stride, right.stride, left.shape, strict=True)
    )


def _symbolic_order(meta: TensorMeta) -> list[int]:
    """Dimensions from the outermost to the innermost, if the expressions show a dense layout; else as they come."""
    order: list[int] = []
    rest = list(range(len(meta.shape)))
    expected: Any = 1
    while rest:
        steps = [dim for dim in reversed(rest) if meta.stride[dim] == expected]
        found = steps or [dim for dim in reversed(rest) if meta.shape[dim] == 1]
        if not found:
            return list(range(len(meta.shape)))
        rest.remove(found[0])
        order.insert(0, found[0])
        expected = expected * meta.shape[found[0]]
    return order


def with_layout(rec: Recorder, tensor: FakeTensor, wanted: TensorMeta) -> FakeTensor:
    """`tensor` with the strides of `wanted`, by a copy where they differ."""
    if tensor.meta.stride == wanted.stride:
        return tensor
    if not all(isinstance(stride, int) for stride in wanted.stride):
        order = _symbolic_order(wanted)
    elif is_dense(wanted):
        order = sorted(
            range(len(wanted.shape)),
            key=lambda dim: (wanted.stride[dim], wanted.shape[dim] != 1),
            reverse=True,
        )
    else:
        order = list(range(len(wanted.shape)))
    if order == list(range(len(order))):
        return rec.operate(aten.clone.default, tensor, memory_format=torch.contiguous_format)
    physical = rec.operate(aten.permute.default, tensor, order)
    dense = rec.operate(aten.clone.default, physical, memory_format=torch.contiguous_format)
    inverse = [order.index(dim) for dim in range(len(order))]
    return rec.operate(aten.permute.default, dense, inverse)


def node_of(rec: Recorder, tensor: FakeTensor) -> Node:
    """The node that holds the tensor's current value, replaying its views when it is stale."""
    value = value_of(tensor)
    storage = value.storage
    if value.generation != storage.generation:
        current = rec.fresh(storage.meta, storage.node)
        for step in value.chain:
            current = _replay(rec, current, step)
        value.node = value_of(current).node
        value.generation = storage.generation
    return value.node


def _replay(rec: Recorder, current: FakeTensor, step: ViewStep) -> FakeTensor:
    return rec.operate(step.operator, current, *step.arguments, **dict(step.keywords))


def _refuse_overlap(meta: TensorMeta) -> None:
    """Leave to eager a write to a tensor with elements on top of each other: it mostly raises."""
    if 0 in meta.shape or not may_overlap(meta):
        return
    raise UnsupportedOperator(
        "an in-place change of a tensor that overlaps itself",
        "several of its elements are one place in memory",
        "clone() the tensor before the change",
    )


def may_overlap(meta: TensorMeta) -> bool:
    """Whether elements can lie on top of each other; with symbolic sizes, whether they repeat."""
    reach: Any = 0
    pairs = [pair for pair in zip(meta.stride, meta.shape, strict=True) if pair[1] != 1]
    if not meta.is_static:
        return any(stride == 0 for stride, _ in pairs)
    if any(size == 0 for _, size in pairs):
        return False
    for stride, size in sorted(pairs, key=_stride_of):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def _write_by_position(rec: Recorder, value: Value, new: FakeTensor) -> FakeTensor:
    """The base after a write through views that have no inverse of their own.

    The views are applied to the positions of the base's elements; what comes out says where each
    element of the new value belongs.
    """
    base = rec.fresh(value.storage.meta, value.storage.node)
    index = rec.operate(aten.arange.default, base.numel(), device=base.meta.device)
    where = rec.operate(aten.view.default, index, list(base.shape))
    for step in value.chain:
        where = _replay(rec, where, step)
    flat = rec.operate(aten.reshape.default, base, [-1])
    where = rec.operate(aten.reshape.default, where, [-1])
    source = rec.operate(aten.reshape.default, new, [-1])
    written = rec.operate(aten.index_put.default, flat, [where], source)
    return rec.operate(aten.reshape.default, written, list(base.shape))


def write(rec: Recorder, tensor: FakeTensor, new: FakeTensor, *, uniform: bool = False) -> None:
    """Make `new` the value of `tensor` and of everything that shares its storage.

    `new` has the dtype and the shape of `tensor`. `uniform`: all of its elements are equal, so
    that it does not matter which of several that are one place in memory is written last.
    """
    value = value_of(tensor)
    storage = value.storage
    rec.writes += 1
    # The source may be a stale view of memory that was written since.
    new_node = node_of(rec, new)
    if not uniform:
        _refuse_overlap(tensor.meta)
    if any(step.operator in _BY_POSITION for step in value.chain):
        pushed = _write_by_position(rec, value, new)
        storage.node = value_of(with_layout(rec, pushed, storage.meta)).node
    elif value.chain:
        bases = [rec.fresh(storage.meta, storage.node)]
        for step in value.chain[:-1]:
            bases.append(_replay(rec, bases[-1], step))
        pushed = new
        for step, base in zip(reversed(value.chain), reversed(bases), strict=True):
            inverse = INVERSES.get(step.operator)
            if inverse is None:
                raise UnsupportedOperator(
                    f"writing through a view made by {step.operator}",
                    "this view has no inverse that a functional graph can express",
                    "write to the base tensor, or to a clone",
                )
            pushed = inverse(rec, base, pushed, step)
        pushed = with_layout(rec, pushed, storage.meta)
        storage.node = value_of(pushed).node
    else:
        new = with_layout(rec, new, storage.meta)
        new_node = storage.node = value_of(new).node
    storage.generation += 1
    storage.written_at = rec.writes
    if same_layout(new.meta, tensor.meta):
        value.node = new_node
        value.generation = storage.generation
