"""Which calls keep their order among themselves though no buffer leads from one to the other.

Comes in: an operator call. Goes out: what it shares with others: the random numbers that it takes in turn, what it
does outside of the graph, the other processes that take part in it. Invariant: a call with such an order is made
whether or not somebody reads its results, and calls that share one are made in the order of the graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from inductor.ir.counters import Counters

if TYPE_CHECKING:
    from inductor.ir.nodes import OperatorCall

    Order = Literal["draws", "effects", "processes"]

__all__ = ["acts", "orders_of"]

_SEEDED = "nondeterministic_seeded"


def orders_of(call: OperatorCall) -> frozenset[Order]:
    """The orders that a call keeps; empty for what can be left out, or made at any time."""
    operator = call.operator
    if isinstance(operator, Counters):
        return frozenset()
    schema = operator._schema
    found: set[Order] = set()
    if any(tag.name == _SEEDED for tag in operator.tags):
        found.add("draws")
    if schema.is_mutable or not schema.returns:
        found.add("effects")
    if "c10d" in schema.name.partition("::")[0]:
        found.add("processes")
    return frozenset(found)


def acts(call: OperatorCall) -> bool:
    """Whether a call does what no buffer shows.

    It writes an operand, is made for its effect, or other processes wait for it (it may read its operands until it is
    waited for).
    """
    return not orders_of(call) <= {"draws"}
