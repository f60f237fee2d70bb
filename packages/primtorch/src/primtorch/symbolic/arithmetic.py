"""Arithmetic on symbolic floats as graphs hold it: nothing is asked, nothing becomes a guard.

Torch's own symbolic float has a quotient rounded down that isn't Python's, and not all functions of `math`. Comes in:
numbers, one of them a `torch.SymFloat` of ours. Goes out: the result, symbolic. Who needs Python's exceptions asks
for their conditions before.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import torch

from primtorch.symbolic.real import REAL_FUNCTIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from primtorch.symbolic.node import RealNode

__all__ = ["REAL_ARITHMETIC", "real_function"]


def real_function(name: str, value: float | torch.SymFloat) -> Any:
    """A function of REAL_FUNCTIONS of a float, symbolic or not."""
    if isinstance(value, torch.SymFloat):
        return torch.SymFloat(getattr(value.node, f"sym_{name}")())
    return REAL_FUNCTIONS[name](value)


def _function(name: str) -> Callable[[Any], Any]:
    return lambda value: real_function(name, value)


def _operator(name: str) -> Callable[[Any, Any], Any]:
    def run(left: Any, right: Any) -> Any:
        one = left if isinstance(left, torch.SymFloat) else right
        return torch.SymFloat(getattr(_node(left, one.node), name)(_node(right, one.node)))

    return run


def _node(value: Any, like: RealNode) -> RealNode:
    if isinstance(value, torch.SymInt):
        value = torch.sym_float(value)
    node: RealNode = value.node if isinstance(value, torch.SymFloat) else like.wrap_float(value)
    return node


REAL_ARITHMETIC: dict[Callable[..., Any], Callable[..., Any]] = {
    operator.truediv: _operator("truediv"),
    operator.floordiv: _operator("floordiv"),
    operator.mod: _operator("mod"),
    operator.pow: _operator("pow"),
    math.sqrt: torch.sym_sqrt,
    **{getattr(math, name): _function(name) for name in REAL_FUNCTIONS},
}
"""What to compute in place of an operator or a function of `math` where a symbolic float takes part."""
