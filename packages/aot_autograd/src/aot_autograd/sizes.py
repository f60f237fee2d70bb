"""Symbolic integers as graph nodes.

Comes in: integer expressions of `primtorch.symbolic`. Goes out: for each, a number or the node
that computes it from size placeholders by `operator.add/mul/floordiv/mod` and `torch.sym_max/min`.
Invariant: one node per expression; a symbol without a placeholder is an error, never a guess.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aot_autograd.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aot_autograd.graph import Node
    from primtorch.symbolic import Expression


class SizeNodes:
    """Memo from expression to node; `append(target, args, meta)` adds a call to the graph."""

    __slots__ = ("_append", "_known")

    def __init__(self, append: Callable[[Any, tuple[Any, ...], Any], Node]) -> None:
        self._append = append
        self._known: dict[Any, Node] = {}

    def bind(self, symbol: Expression, node: Node) -> None:
        """Say which placeholder (or other node) holds a symbol's value."""
        self._known.setdefault(symbol, node)

    def node(self, expression: int | Expression) -> int | Node:
        """The node of an expression, emitted when it is new."""
        if isinstance(expression, int):
            return expression
        known = self._known.get(expression)
        if known is None:
            known = self._emit(expression)
            self._known[expression] = known
        return known

    def _emit(self, expression: Expression) -> Node:
        raise TraceError(
            f"the size {expression} is used in the graph",
            "no input of the graph carries this size",
            "pass the size as an input of its own (docs/interfaces.md, placeholders)",
        )
