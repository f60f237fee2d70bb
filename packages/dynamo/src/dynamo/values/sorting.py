"""`sorted` and `list.sort` of objects whose comparisons are the program's.

Python's own sort runs, over stand-ins whose `<` is interpreted: the same comparisons in the same order as in eager.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from dynamo.values import iteration, operators
from dynamo.values.attributes import special
from dynamo.values.native import call_native
from dynamo.values.rules import rule

if TYPE_CHECKING:
    from dynamo.machine.interpreter import Machine

__all__ = ["own_order"]


class _Compared:
    """An item, or its key, whose `<` the interpreter runs."""

    __slots__ = ("machine", "value")

    def __init__(self, machine: Machine, value: Any) -> None:
        self.machine = machine
        self.value = value

    def __lt__(self, other: _Compared) -> bool:
        machine = self.machine
        less = operators.compare(machine, operator.lt, self.value, other.value)
        return operators.truth(machine, less)


def own_order(machine: Machine, items: list[Any], kwargs: dict[str, Any]) -> list[Any] | None:
    """The items in order; None where C code may compare them."""
    from dynamo.values import calls

    key = kwargs.get("key")
    keys = items if key is None else [calls.call(machine, key, (item,), {}) for item in items]
    if key is None and not any(_is_own(item) for item in items):
        return None
    reverse = operators.truth(machine, kwargs.get("reverse", False))
    compared = [_Compared(machine, item) for item in keys]
    order = sorted(range(len(items)), key=compared.__getitem__, reverse=reverse)
    return [items[i] for i in order]


def _is_own(item: Any) -> bool:
    kind = type(item)
    if kind is tuple or kind is list:
        return any(map(_is_own, item))
    return special(kind, "__lt__") is not None and kind.__module__ != "enum"


@rule(sorted)
def _sorted(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or set(kwargs) - {"key", "reverse"}:
        return call_native(machine, sorted, args, kwargs)
    items = [machine.session.resolve(item) for item in iteration.iterate(machine, args[0])]
    found = own_order(machine, items, kwargs)
    return call_native(machine, sorted, (items,), kwargs) if found is None else found
