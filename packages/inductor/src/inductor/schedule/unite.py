"""Makes one group of two when a node came to consume both.

A producer of a shared operand starts a group of its own before anybody knows who will read it; the
reader may have gone with another group. Then the two become one, if all members fit together and no
path leads from one to the other through a third.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inductor.ir.kernel import FusionNote
from inductor.schedule.groups import Group, apply, joined, new_group

if TYPE_CHECKING:
    from inductor.schedule.fusion import Fusion
    from inductor.schedule.groups import Member


def unite(fusion: Fusion, first: int, second: int, most_members: int) -> bool:
    """Move the members of group `first` into group `second`; whether that was possible."""
    ours, theirs = fusion.items[first], fusion.items[second]
    if not isinstance(ours, Group) or not isinstance(theirs, Group):
        return False
    if len(ours.members) + len(theirs.members) > most_members or ours.closed or theirs.closed:
        return False
    if _path_between(fusion, first, second):
        return False
    united = _together(fusion, ours, theirs, second)
    names = ours.members[-1].info.node.name, theirs.members[-1].info.node.name
    if united is None:
        fusion.notes.append(
            FusionNote(*names, fused=False, reason="the groups don't fit together", saved_bytes=0)
        )
        return False
    fusion.notes.append(
        FusionNote(*names, fused=True, reason="one node consumes both", saved_bytes=0)
    )
    fusion.items[second] = united
    fusion.items[first] = None
    _rename(fusion, first, second)
    return True


def _path_between(fusion: Fusion, first: int, second: int) -> bool:
    """Whether a third group lies between the two."""
    one, two = 1 << first, 1 << second
    ancestors = fusion.ancestors
    for start, end_mask in ((one, ancestors[second]), (two, ancestors[first])):
        between = end_mask & ~(one | two)
        while between:
            lowest = between & -between
            if ancestors[lowest.bit_length() - 1] & start:
                return True
            between ^= lowest
    return False


def _together(fusion: Fusion, ours: Group, theirs: Group, number: int) -> Group | None:
    """All members in one new group, in the order of the graph."""
    members: list[Member] = sorted(
        (*ours.members, *theirs.members), key=lambda member: int(member.info.node.name[1:])
    )
    group = new_group(number, members[0].info, for_gpu=fusion.for_gpu, units=fusion.units)
    for member in members[1:]:
        if any(
            buffer in group.stores and len(fusion.writers[buffer]) > 1
            for buffer in member.info.accesses.loads
        ):
            return None
        fit = joined(group, member.info)
        if isinstance(fit, str):
            return None
        apply(group, fit)
    return group


def _rename(fusion: Fusion, first: int, second: int) -> None:
    """Everything that named group `first` names `second`."""
    for table in (fusion.writers, fusion.readers):
        for buffer, numbers in table.items():
            if first in numbers:
                changed = [second if number == first else number for number in numbers]
                table[buffer] = list(dict.fromkeys(changed))
    one, two = 1 << first, 1 << second
    merged = (fusion.ancestors[first] | fusion.ancestors[second]) & ~(one | two)
    fusion.ancestors[first] = 0
    fusion.ancestors[second] = merged
    for number, mask in enumerate(fusion.ancestors):
        if mask & (one | two):
            fusion.ancestors[number] = (mask & ~one) | two | merged
    for extents, number in fusion.small.items():
        if number == first:
            fusion.small[extents] = second
