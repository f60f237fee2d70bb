"""Which elements a body loads and stores: index expressions by buffer.

In: a body. Out: for each buffer the distinct indices, in the body's own loop variables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from inductor.ir.operations import EFFECTS

if TYPE_CHECKING:
    from inductor.ir.nodes import LoopBody
    from inductor.ir.operations import Size


@dataclass(frozen=True, slots=True)
class Accesses:
    """Indices by buffer; `plain` is False for a buffer that is added to rather than set."""

    loads: dict[str, tuple[Size, ...]]
    stores: dict[str, tuple[Size, ...]]
    plain: bool


def accesses_of(body: LoopBody) -> Accesses:
    """All accesses of a body."""
    loads: dict[str, dict[Size, None]] = {}
    stores: dict[str, dict[Size, None]] = {}
    plain = True
    for stage in body.stages:
        for operation in stage.operations:
            if operation.buffer is None or operation.index is None:
                continue
            if operation.name == "load":
                loads.setdefault(operation.buffer, {})[operation.index] = None
            elif operation.name in EFFECTS:
                stores.setdefault(operation.buffer, {})[operation.index] = None
                plain = plain and operation.attribute == "set" and operation.name == "store"
    return Accesses(
        {name: tuple(indices) for name, indices in loads.items()},
        {name: tuple(indices) for name, indices in stores.items()},
        plain,
    )
