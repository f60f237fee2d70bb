"""Which function lowers which operator, and which operators are deliberately the library's.

Filled at import by the modules of this package; a duplicate raises. A lowering takes the `Builder`
and the operator's own arguments (tensors as `Value`s, symbolic integers as expressions) and returns
a `Value`, or a tuple of them. It may raise `UnsupportedOperationError`: the operator is then
called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch._ops import OpOverload

Lowering = Callable[..., Any]

LOWERINGS: dict[OpOverload, Lowering] = {}
"""Lowered to loops, or to views."""

VIEWS: set[OpOverload] = set()
"""Those of `LOWERINGS` that only make a window: they need no memory of their own."""

VENDOR: dict[OpOverload, str] = {}
"""Deliberately the library's, with the reason."""


def lowers(*operators: OpOverload | None, view: bool = False) -> Callable[[Lowering], Lowering]:
    """Register a lowering; overloads that this torch version lacks are given as None."""

    def register(function: Lowering) -> Lowering:
        for operator in operators:
            if operator is None:
                continue
            assert operator not in LOWERINGS, f"{operator} has two lowerings"
            LOWERINGS[operator] = function
            if view:
                VIEWS.add(operator)
        return function

    return register


def vendor(reason: str, *operators: OpOverload | None) -> None:
    """Declare operators as the library's."""
    for operator in operators:
        if operator is not None:
            assert operator not in LOWERINGS, f"{operator} has a lowering"
            VENDOR[operator] = reason
