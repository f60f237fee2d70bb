"""Groups of loop nodes that run as one kernel, and whether a node can join one.

A group has a space: outer extents and reduction extents. Each member knows its own loop variables
as expressions over the group's, and the level it runs at. `joined` answers whether and how a node
fits; it never decides whether that is worth it (`fusion` does).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from inductor.analysis import Accesses, accesses_of
from inductor.analysis.affine import coefficient
from inductor.analysis.lists import listed
from inductor.ir.index import inner_symbols, outer_symbols, product
from inductor.ir.machine import H200
from inductor.schedule.blocks import LONGEST_ROW, largest
from inductor.schedule.space import (
    Mapping,
    align_by_access,
    common_refinement,
    refine_mapping,
)
from primtorch.symbolic import Symbol, free_symbols, substitute

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inductor.ir.nodes import LoopNode
    from inductor.ir.operations import Size

SHORTEST_COLUMN = 256
"""Columns this long are summed by many programs, each a part of them."""

Level = Literal["outer", "inner"]
Role = Literal["pointwise", "reduction", "scan", "accumulate", "scatter"]


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """What scheduling asks of a loop node again and again."""

    node: LoopNode
    accesses: Accesses
    outer: tuple[Symbol, ...]
    inner: tuple[Symbol, ...]
    accumulates: bool
    """A plain reduction whose result is stored as it is: can run as `accumulate`."""
    lists: bool
    """A sum that is walked by lists: its sweep stays its own."""


def inspect(node: LoopNode) -> NodeInfo:
    """Collect what is asked of a node."""
    body = node.body
    return NodeInfo(
        node,
        accesses_of(body),
        outer_symbols(body.ranges),
        inner_symbols(body.reduction_ranges),
        _accumulates(node),
        listed(body) is not None,
    )


def _accumulates(node: LoopNode) -> bool:
    if node.kind != "reduction" or len(node.body.stages) != 2:
        return False
    inner, outer = node.body.stages
    reduces = [operation for operation in inner.operations if operation.name == "reduce"]
    if len(reduces) != 1 or reduces[0].attribute not in ("sum", "max", "min"):
        return False
    return (
        len(outer.operations) == 1
        and outer.operations[0].name == "store"
        and outer.operations[0].dtype == reduces[0].dtype
    )


@dataclass(frozen=True, slots=True)
class Member:
    """A node in a group: its variables over the group's, its role, its level (a reduction: inner)."""

    info: NodeInfo
    mapping: Mapping
    role: Role
    level: Level


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a group stores a buffer: the index over the group's variables and the level."""

    index: Size
    level: Level


@dataclass(slots=True)
class Group:
    """Members in order, the space they share, what they access."""

    number: int
    outer: tuple[Size, ...]
    inner: tuple[Size, ...]
    members: list[Member]
    stores: dict[str, Stored] = field(default_factory=dict)
    loads: set[str] = field(default_factory=set)
    barred: set[str] = field(default_factory=set)
    """Buffers written here that no member may read: complete only after the kernel."""
    closed: bool = False
    on_gpu: bool = False
    units: int = H200.units
    """Multiprocessors of the card."""

    @property
    def outer_variables(self) -> tuple[Symbol, ...]:
        """The group's outer variables."""
        return outer_symbols(self.outer)

    @property
    def inner_variables(self) -> tuple[Symbol, ...]:
        """The group's reduction variables."""
        return inner_symbols(self.inner)


@dataclass(frozen=True, slots=True)
class Fit:
    """How a node joins: the group's space afterwards, its own mapping, how old members change."""

    outer: tuple[Size, ...]
    inner: tuple[Size, ...]
    member: Member
    change: Mapping | None
    """The old group variables over the new ones; None if nothing changes."""
    level: Level | None = None
    """The level that all old members take; None if it stays."""


def new_group(
    number: int, info: NodeInfo, *, for_gpu: bool = False, units: int = H200.units
) -> Group:
    """A group of one node; `for_gpu` takes any device for a GPU, `units` are its multiprocessors."""
    node = info.node
    identity: Mapping = {symbol: symbol for symbol in (*info.outer, *info.inner)}
    level: Level = "inner" if node.body.reduction_ranges else "outer"
    member = Member(info, identity, node.kind, level)
    group = Group(number, node.body.ranges, node.body.reduction_ranges, [])
    group.on_gpu = for_gpu or node.device.type != "cpu"
    group.units = units
    group.closed = node.kind == "scatter" or not info.accesses.plain
    _add(group, member)
    return group


def _add(group: Group, member: Member) -> None:
    group.members.append(member)
    group.loads.update(member.info.accesses.loads)
    for buffer, indices in member.info.accesses.stores.items():
        if len(indices) != 1 or member.role in ("accumulate", "scatter") or buffer in group.stores:
            group.barred.add(buffer)
        index = substitute(indices[0], member.mapping)
        level: Level = "outer" if member.role == "reduction" else member.level
        group.stores[buffer] = Stored(index, level)


def apply(group: Group, fit: Fit) -> None:
    """Let the node of a `Fit` join."""
    if fit.change is not None or fit.level is not None:
        members = group.members
        group.members = []
        group.stores = {}
        group.loads = set()
        group.barred = set()
        group.outer, group.inner = fit.outer, fit.inner
        for member in members:
            mapping = member.mapping
            if fit.change is not None:
                mapping = {
                    symbol: substitute(value, fit.change) for symbol, value in mapping.items()
                }
            _add(group, Member(member.info, mapping, member.role, fit.level or member.level))
    group.outer, group.inner = fit.outer, fit.inner
    _add(group, fit.member)


# ---- fitting
def joined(group: Group, info: NodeInfo) -> Fit | str:
    """How a node fits, or why it doesn't."""
    if group.closed:
        return "the other is a scatter"
    if info.node.kind == "scatter" or not info.accesses.plain:
        return "a scatter's points aren't independent"
    first_info = group.members[0].info
    first = first_info.node
    if first.device != info.node.device:
        return "on different devices"
    if not group.barred.isdisjoint(info.accesses.loads):
        return "its operand is complete only after the kernel"
    if info.lists or (first_info.lists and info.node.body.reduction_ranges):
        return "sums by lists keep their sweep"
    reason = "the loops have different extents"
    for fit in _fits(group, info):
        if first_info.lists and (fit.member.level != "outer" or fit.change is not None):
            continue
        problem = _conflict(group, info, fit)
        if problem is None:
            return fit
        reason = problem
    return reason


def _fits(group: Group, info: NodeInfo) -> Sequence[Fit]:
    node = info.node
    found: list[Fit] = []
    if not node.body.reduction_ranges:
        _fit_pointwise(group, info, found)
    elif group.inner:
        _fit_reductions(group, info, found)
    else:
        _fit_reduction_on_points(group, info, found)
    return found


def _guides(group: Group, info: NodeInfo) -> list[tuple[Size, Size]]:
    """(their index, our index) of elements that both touch: the group's stores, then its loads."""
    guides: list[tuple[Size, Size]] = []
    for buffer, indices in info.accesses.loads.items():
        stored = group.stores.get(buffer)
        if stored is not None:
            guides.append((stored.index, indices[0]))
    if guides:
        return guides
    for member in group.members:
        for buffer, indices in info.accesses.loads.items():
            theirs = member.info.accesses.loads.get(buffer)
            if theirs is not None:
                guides.append((substitute(theirs[0], member.mapping), indices[0]))
    guides.sort(key=lambda pair: -len(free_symbols(pair[0])))
    return guides[:4]


def _match(
    group: Group,
    info: NodeInfo,
    symbols: Sequence[Symbol],
    extents: Sequence[Size],
    their_symbols: Sequence[Symbol],
    their_extents: Sequence[Size],
) -> list[Mapping]:
    """Ways to write our loops in theirs, the most plausible first."""
    found: list[Mapping] = []
    if tuple(extents) == tuple(their_extents):
        found.append(dict(zip(symbols, their_symbols, strict=True)))
    if len(extents) == len(their_extents) and len(extents) > 1:
        for theirs, ours in _guides(group, info):
            aligned = align_by_access(theirs, their_symbols, their_extents, ours, symbols, extents)
            if aligned is not None and aligned not in found:
                found.append(aligned)
    if len(extents) < len(their_extents):
        refined = refine_mapping(symbols, extents, their_symbols, their_extents)
        if refined is not None:
            found.append(refined)
    return found


def _fit_pointwise(group: Group, info: NodeInfo, found: list[Fit]) -> None:
    extents = info.node.body.ranges
    outer, inner = group.outer_variables, group.inner_variables
    everywhere, all_extents = (*outer, *inner), (*group.outer, *group.inner)
    for mapping in _match(group, info, info.outer, extents, everywhere, all_extents):
        level: Level = "inner" if inner else "outer"
        member = Member(info, mapping, "pointwise", level)
        found.append(Fit(group.outer, group.inner, member, None))
    if inner:
        for mapping in _match(group, info, info.outer, extents, outer, group.outer):
            member = Member(info, mapping, "pointwise", "outer")
            found.append(Fit(group.outer, group.inner, member, None))
    if not found and len(extents) > len(all_extents):
        change = refine_mapping(everywhere, all_extents, outer_symbols(extents), extents)
        if change is not None:
            _fit_finer(group, info, found)
    if not found and inner and group.on_gpu:
        _fit_common(group, info, found)


def _fit_common(group: Group, info: NodeInfo, found: list[Fit]) -> None:
    """Neither's loops refine the other's, as channels by groups and rows of a group do: refine both.

    On a GPU, where the second walk finds the rows in the cache; a processor's second kernel is as fast over what it
    streams, and walks one loop less (a group norm of 8 x 64 x 56 x 56 takes 0.63 ms in two kernels, 0.73 in one).
    Shorter and longer rows are left to two kernels on a GPU, too: they were not measured.
    """
    extents = info.node.body.ranges
    old, old_extents = (
        (*group.outer_variables, *group.inner_variables),
        (*group.outer, *group.inner),
    )
    row = largest(product(group.inner))
    if row is None or not LONGEST_ROW < row <= 2 * LONGEST_ROW:
        return
    common = common_refinement(extents, old_extents)
    split = None if common is None else _split_point(common, group.outer)
    if common is None or split is None or split == len(common):
        return
    outer, inner = common[:split], common[split:]
    new = (*outer_symbols(outer), *inner_symbols(inner))
    change = refine_mapping(old, old_extents, new, common)
    mapping = refine_mapping(info.outer, extents, new, common)
    if change is not None and mapping is not None:
        found.append(Fit(outer, inner, Member(info, mapping, "pointwise", "inner"), change))


def _fit_finer(group: Group, info: NodeInfo, found: list[Fit]) -> None:
    """The node's loops are a refinement of the group's: refine the group."""
    extents = info.node.body.ranges
    split = _split_point(extents, group.outer)
    if split is None:
        return
    outer, inner = extents[:split], extents[split:]
    if bool(inner) != bool(group.inner):
        return
    new = (*outer_symbols(outer), *inner_symbols(inner))
    old = (*group.outer_variables, *group.inner_variables)
    change = refine_mapping(old, (*group.outer, *group.inner), new, extents)
    if change is None:
        return
    mapping: Mapping = dict(zip(info.outer, new, strict=True))
    level: Level = "inner" if inner else "outer"
    found.append(Fit(outer, inner, Member(info, mapping, "pointwise", level), change))


def _split_point(extents: Sequence[Size], outer: Sequence[Size]) -> int | None:
    """How many leading `extents` make up the product of `outer`."""
    if not outer:
        return 0
    target: Size = 1
    for extent in outer:
        target = target * extent
    running: Size = 1
    for position, extent in enumerate(extents):
        running = running * extent
        if running == target:
            return position + 1
    return None


def _fit_reductions(group: Group, info: NodeInfo, found: list[Fit]) -> None:
    body = info.node.body
    outer, inner = group.outer_variables, group.inner_variables
    role = info.node.kind
    for first in _match(group, info, info.outer, body.ranges, outer, group.outer):
        for second in _match(group, info, info.inner, body.reduction_ranges, inner, group.inner):
            ordered = role != "scan" and not _positional(info)
            if ordered or tuple(second.values()) == tuple(inner):
                member = Member(info, {**first, **second}, role, "inner")
                found.append(Fit(group.outer, group.inner, member, None))
    if info.accumulates and not found and _row_fits(group, group.inner, _sums(group)):
        for first in _match(group, info, info.outer, body.ranges, inner, group.inner):
            for second in _match(
                group, info, info.inner, body.reduction_ranges, outer, group.outer
            ):
                member = Member(info, {**first, **second}, "accumulate", "inner")
                found.append(Fit(group.outer, group.inner, member, None))


def _sums(group: Group) -> int:
    """How many columns' sums are accumulated along the group's rows."""
    return sum(member.role == "accumulate" for member in group.members)


def _row_fits(group: Group, row: Sequence[Size], others: int = 0) -> bool:
    """Whether columns can be summed along these rows: a GPU program carries all such sums in registers."""
    if not group.on_gpu:
        return True
    longest = largest(product(row))
    return longest is not None and longest * (others + 1) <= LONGEST_ROW


def _positional(info: NodeInfo) -> bool:
    """Whether the order of the reduction variables matters: positions of extremes."""
    return any(
        operation.name == "reduce" and operation.attribute in ("argmax", "argmin")
        for stage in info.node.body.stages
        for operation in stage.operations
    )


def _fit_reduction_on_points(group: Group, info: NodeInfo, found: list[Fit]) -> None:
    """A reduction joins a group that has none: the group's loops are divided between its levels."""
    body = info.node.body
    ours = (*info.outer, *info.inner)
    extents = (*body.ranges, *body.reduction_ranges)
    theirs = group.outer_variables
    target = group.outer
    change: Mapping | None = None
    mappings = _match(group, info, ours, extents, theirs, target)
    if not mappings and common_refinement(extents, target) == extents:
        finer = outer_symbols(extents)
        change = refine_mapping(theirs, target, finer, extents)
        if change is not None:
            theirs, target = finer, extents
            mappings = [dict(zip(ours, finer, strict=True))]
    if not mappings and info.accumulates:
        # Column sums: their rows may be several of the group's loops, which come first there.
        swapped = refine_mapping(
            (*info.inner, *info.outer), (*body.reduction_ranges, *body.ranges), theirs, target
        )
        if swapped is not None:
            mappings = [swapped]
    for mapping in mappings:
        fit = _divided(group, info, mapping, theirs, target, change)
        if fit is not None:
            found.append(fit)
    for mapping in _match(group, info, info.outer, body.ranges, group.outer_variables, group.outer):
        inner = inner_symbols(body.reduction_ranges)
        whole = {**mapping, **dict(zip(info.inner, inner, strict=True))}
        member = Member(info, whole, info.node.kind, "inner")
        found.append(Fit(group.outer, body.reduction_ranges, member, None))


def _divided(
    group: Group,
    info: NodeInfo,
    mapping: Mapping,
    theirs: Sequence[Symbol],
    extents: Sequence[Size],
    change: Mapping | None,
) -> Fit | None:
    """Outer and reduction loops of the new space, from where the reduction's variables went."""
    extent_of = dict(zip(theirs, extents, strict=True))
    positions = {symbol: position for position, symbol in enumerate(theirs)}
    kept = _covered_symbols(mapping, info.outer, positions)
    summed = _covered_symbols(mapping, info.inner, positions)
    if kept is None or summed is None:
        return None
    role: Role = info.node.kind
    first, second = kept, summed
    columns = [positions[symbol] for symbol in kept]
    rows = [positions[symbol] for symbol in summed]
    row = tuple(extent_of[symbol] for symbol in kept)
    if info.accumulates and columns and min(columns) > max(rows) and _row_fits(group, row):
        # Rows stay outside: a column sum runs along with the row-wise work.
        first = sorted(summed, key=positions.__getitem__)
        second = sorted(kept, key=positions.__getitem__)
        role = "accumulate"
    outer = tuple(extent_of[symbol] for symbol in first)
    inner = tuple(extent_of[symbol] for symbol in second)
    fresh = (*outer_symbols(outer), *inner_symbols(inner))
    renamed: Mapping = dict(zip((*first, *second), fresh, strict=True))
    own = {symbol: substitute(value, renamed) for symbol, value in mapping.items()}
    moved = (
        renamed
        if change is None
        else {symbol: substitute(value, renamed) for symbol, value in change.items()}
    )
    return Fit(outer, inner, Member(info, own, role, "inner"), moved, "inner")


def _covered_symbols(
    mapping: Mapping, symbols: Sequence[Symbol], known: dict[Symbol, int]
) -> list[Symbol] | None:
    """The group's variables that `symbols` are made of, outermost first; None where one isn't the group's."""
    found: list[Symbol] = []
    for symbol in symbols:
        parts = free_symbols(mapping[symbol])
        if not parts <= known.keys() or (
            not isinstance(mapping[symbol], Symbol) and len(parts) < 2
        ):
            return None
        found.extend(sorted(parts, key=known.__getitem__))
    return found


def _conflict(group: Group, info: NodeInfo, fit: Fit) -> str | None:
    """Why the fit would read what isn't there yet, or None."""
    level = fit.member.level
    inner = frozenset(inner_symbols(fit.inner))
    for buffer, indices in info.accesses.loads.items():
        stored = group.stores.get(buffer)
        if stored is None:
            continue
        theirs = stored.index if fit.change is None else substitute(stored.index, fit.change)
        for index in indices:
            if substitute(index, fit.member.mapping) != theirs:
                return f"reads {buffer} at another place than it is stored"
        stored_level = fit.level or stored.level
        if stored_level == "inner" and level == "outer":
            return f"{buffer} is stored inside the rows"
        if stored_level == "outer" and not inner.isdisjoint(free_symbols(theirs)):
            return f"{buffer} isn't complete"
    if level == "inner" and group.on_gpu and _waits_for_many(group, info, fit):
        return "the whole card works on the reduction before anybody can go on"
    for buffer in info.accesses.stores:
        if buffer in group.loads or (buffer in group.stores and fit.member.role != "pointwise"):
            return f"writes {buffer}, which the other reads"
    return None


def _waits_for_many(group: Group, info: NodeInfo, fit: Fit) -> bool:
    """Whether the node would sweep rows or columns again whose reduction is divided among programs.

    Too few programs would be left to read them: a kernel of its own has as many as there are elements.
    """
    finished = {
        buffer
        for member in group.members
        if member.role == "reduction"
        for buffer in member.info.accesses.stores
    }
    if finished.isdisjoint(info.accesses.loads):
        return False
    points, length = product(fit.outer), product(fit.inner)
    if not isinstance(points, int) or not isinstance(length, int):
        return False
    if _are_columns(group):
        return length >= SHORTEST_COLUMN
    return length > LONGEST_ROW and points < 2 * group.units


def _are_columns(group: Group) -> bool:
    """Whether neighbours in memory belong to different reductions."""
    return any(
        _across(indices[0], member.mapping, group.outer_variables, group.inner_variables)
        for member in group.members
        if member.role == "reduction"
        for indices in member.info.accesses.loads.values()
    )


def _across(
    index: Size, mapping: Mapping, outer: Sequence[Symbol], inner: Sequence[Symbol]
) -> bool:
    """Whether neighbours in memory differ in an outer variable and not in the last reduced one."""
    if not outer or not inner:
        return False
    index = substitute(index, mapping)
    return coefficient(index, inner[-1]) not in (0, 1) and any(
        coefficient(index, symbol) == 1 for symbol in outer
    )


def sums_columns(info: NodeInfo) -> bool:
    """Whether a node could be accumulated row by row instead of column by column."""
    return info.accumulates and any(
        _across(indices[0], {}, info.outer, info.inner) for indices in info.accesses.loads.values()
    )
