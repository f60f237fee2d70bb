"""Writes a group's members as one body: the order of sweeps, what is forwarded, kept, recomputed.

Between members of one sweep values are forwarded in registers. What a later sweep needs again is
recomputed if that is cheap, kept in a thread-private row if the row is short, and read back from
memory otherwise. What nobody outside reads is not stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, assert_never, cast

from inductor.analysis.cost import operation_weight
from inductor.ir.index import contiguous_stride, linear_index, product
from inductor.ir.kernel import LocalBuffer
from inductor.ir.operations import value_dtype
from inductor.ir.recorder import Recorder, Scalar
from primtorch.symbolic import Symbol, free_symbols, substitute

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    import torch

    from inductor.ir.nodes import Buffer, LoopBody
    from inductor.ir.operations import Operation, ReductionKind, Size, StoreMode
    from inductor.schedule.groups import Group, Member

CHEAP_WEIGHT = 6
CHEAP_LOADS = 2
LONGEST_LOCAL_BYTES = 256 * 1024

Policy = Literal["store", "hold", "local", "recompute"]


@dataclass(frozen=True, slots=True)
class Merged:
    """A group's body and its thread-private rows."""

    body: LoopBody
    locals: tuple[LocalBuffer, ...]


@dataclass(slots=True)
class _Plan:
    """Which sweep (or outer slot) each member runs in, and what happens to each stored buffer."""

    slots: list[int]
    producer: dict[str, int]
    policy: dict[str, Policy]
    last: int


class _KernelRecorder(Recorder):
    """A recorder that treats stores as the plan says."""

    def __init__(self, group: Group, plan: _Plan, buffers: Mapping[str, Buffer]) -> None:
        super().__init__(group.outer, group.inner, hoist=bool(group.inner))
        self._policy = plan.policy
        self._buffers = buffers
        self.local_index = linear_index(self.inner, contiguous_stride(group.inner))

    def store(
        self, buffer: str, index: Size, value: Scalar, dtype: torch.dtype, mode: StoreMode = "set"
    ) -> None:
        policy = self._policy.get(buffer, "store")
        match policy:
            case "store":
                super().store(buffer, index, value, dtype, mode)
            case "hold" | "recompute":
                self.hold(buffer, index, value)
            case "local":
                super().store(local_name(buffer), self.local_index, value, value_dtype(dtype))
                self.hold(buffer, index, value)
            case _:
                assert_never(policy)

    def recall(self, buffer: str, index: Size) -> None:
        """In a later sweep: read a thread-private row back."""
        dtype = value_dtype(self._buffers[buffer].dtype)
        self.hold(buffer, index, self.load(local_name(buffer), self.local_index, dtype))


def local_name(buffer: str) -> str:
    """The thread-private row that stands for a buffer."""
    return f"local_{buffer}"


def merge(group: Group, buffers: Mapping[str, Buffer], escaping: AbstractSet[str]) -> Merged:
    """One body for a group; `escaping` are the buffers that others read."""
    plan = _plan(group, buffers, escaping)
    recorder = _KernelRecorder(group, plan, buffers)
    values: list[dict[int, Scalar]] = [{} for _ in group.members]
    symbols: list[dict[Symbol, Size]] = [{} for _ in group.members]
    for slot in range(plan.last + 1):
        recorder.stage("outer")
        for number, member in enumerate(group.members):
            if (member.role == "reduction" and plan.slots[number] == slot - 1) or (
                member.level == "outer" and plan.slots[number] == slot
            ):
                _replay_stages(recorder, member, "outer", values[number], symbols[number])
        if not group.inner:
            continue
        sweep = [
            number
            for number, member in enumerate(group.members)
            if member.level == "inner" and plan.slots[number] == slot
        ]
        if sweep:
            recorder.stage("inner")
            done: set[str] = set()
            for number in sweep:
                _recall(recorder, group, plan, number, slot, done)
                _replay_inner(recorder, group.members[number], values[number], symbols[number])
    locals_ = tuple(
        LocalBuffer(local_name(name), value_dtype(buffers[name].dtype), product(group.inner))
        for name, policy in plan.policy.items()
        if policy == "local"
    )
    body = recorder.finish()
    used = body.reads | body.writes
    return Merged(body, tuple(local for local in locals_ if local.name in used))


def _plan(group: Group, buffers: Mapping[str, Buffer], escaping: AbstractSet[str]) -> _Plan:
    slots: list[int] = []
    available: dict[str, int] = {}
    producer: dict[str, int] = {}
    again: set[str] = set()
    last = 0
    for number, member in enumerate(group.members):
        slot = max(
            (available[buffer] for buffer in member.info.accesses.loads if buffer in available),
            default=0,
        )
        slots.append(slot)
        for buffer in member.info.accesses.loads:
            origin = producer.get(buffer)
            if origin is None or slots[origin] >= slot:
                continue
            source = group.members[origin]
            if source.level == "inner" and source.role != "reduction":
                again.add(buffer)
        after = slot + 1 if member.role == "reduction" else slot
        last = max(last, after)
        for buffer in member.info.accesses.stores:
            available[buffer] = after
            producer[buffer] = number
    policy: dict[str, Policy] = {}
    for buffer, number in producer.items():
        if buffer in escaping or buffer in group.barred:
            continue
        policy[buffer] = "hold"
        if buffer in again:
            policy[buffer] = _keep(group, group.members[number], buffers[buffer], policy)
    return _Plan(slots, producer, policy, last)


def _keep(group: Group, member: Member, buffer: Buffer, policy: Mapping[str, Policy]) -> Policy:
    """How a value of one sweep reaches a later one."""
    if member.role == "pointwise":
        weight, moved = _inner_cost(group, member)
        loads = member.info.accesses.loads
        simple = all(
            policy.get(name, "store") != "hold" or _row_only(group, name) for name in loads
        )
        if weight <= CHEAP_WEIGHT and moved <= CHEAP_LOADS and simple:
            return "recompute"
    length = product(group.inner)
    if isinstance(length, int) and length * buffer.dtype.itemsize <= LONGEST_LOCAL_BYTES:
        return "local"
    return "store"


def _inner_cost(group: Group, member: Member) -> tuple[int, int]:
    """Work and loads of a pointwise member at each point of a sweep; what is hoisted is free."""
    inner = frozenset(group.inner_variables)
    weight = moved = 0
    varies: list[bool] = []
    for stage in member.info.node.body.stages:
        for operation in stage.operations:
            index = operation.index
            own = index is not None and not inner.isdisjoint(
                free_symbols(substitute(index, member.mapping))
            )
            varies.append(own or any(varies[operand] for operand in operation.operands))
            if operation.name == "load":
                moved += own
            elif varies[-1] and operation.name != "store":
                weight += operation_weight(operation.name)
    return weight, moved


def _row_only(group: Group, buffer: str) -> bool:
    stored = group.stores.get(buffer)
    return stored is None or stored.level == "outer"


def _recall(
    recorder: _KernelRecorder, group: Group, plan: _Plan, number: int, slot: int, done: set[str]
) -> None:
    """Make what a member reads from earlier sweeps available in this one."""
    for buffer in group.members[number].info.accesses.loads:
        origin = plan.producer.get(buffer)
        if origin is None or buffer in done or plan.slots[origin] >= slot:
            continue
        policy = plan.policy.get(buffer, "store")
        if policy == "local":
            done.add(buffer)
            recorder.recall(buffer, group.stores[buffer].index)
        elif policy == "recompute":
            done.add(buffer)
            _recall(recorder, group, plan, origin, slot, done)
            _replay_inner(recorder, group.members[origin], {}, {})


def _replay_inner(
    recorder: Recorder, member: Member, values: dict[int, Scalar], symbols: dict[Symbol, Size]
) -> None:
    if member.role == "accumulate":
        _replay_accumulate(recorder, member, values, symbols)
        return
    level = "inner" if member.info.node.body.reduction_ranges else "outer"
    _replay_stages(recorder, member, level, values, symbols)


def _replay_stages(
    recorder: Recorder,
    member: Member,
    level: str,
    values: dict[int, Scalar],
    symbols: dict[Symbol, Size],
) -> None:
    for stage in member.info.node.body.stages:
        if stage.level == level:
            recorder.replay(
                _numbered(stage.start, stage.operations), member.mapping, values, symbols
            )


def _numbered(start: int, operations: Sequence[Operation]) -> list[tuple[int, Operation]]:
    return [(start + offset, operation) for offset, operation in enumerate(operations)]


def _replay_accumulate(
    recorder: Recorder, member: Member, values: dict[int, Scalar], symbols: dict[Symbol, Size]
) -> None:
    """A column reduction in row-wise loops: combines over all outer points."""
    inner, outer = member.info.node.body.stages
    kept = [
        (position, operation)
        for position, operation in _numbered(inner.start, inner.operations)
        if operation.name != "reduce"
    ]
    recorder.replay(kept, member.mapping, values, symbols)
    reduce = next(operation for operation in inner.operations if operation.name == "reduce")
    store = outer.operations[0]
    assert store.buffer is not None
    assert store.index is not None
    assert reduce.attribute in ("sum", "max", "min")
    recorder.accumulate(
        store.buffer,
        substitute(store.index, member.mapping),
        values[reduce.operands[0]],
        store.dtype,
        cast("ReductionKind", reduce.attribute),
    )
