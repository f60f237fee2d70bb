"""What a recorded graph computes from nothing but constants, where the value must be known while tracing.

ATen's composite code asks for some numbers (`torch.cov` compares a count that it put into a tensor with another), and
for tensors whose size hangs on data (the gradient of `index_fill` counts the distinct ones of its indices).
Comes in: a call that depends on data, its arguments as nodes. Goes out: its result, or None if an input of the graph,
a random number or too large a tensor is behind it. Invariant: nothing is computed that the graph would not compute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from aot_autograd.graph import Node

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST_ELEMENTS = 1 << 16
_MOST_CALLS = 256


class _UnknownError(LookupError):
    """Something behind the value is known only at run time."""


def known_result(operator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What `operator` gives for these nodes and numbers, if that is known; else None. Tensors are real ones."""
    memo: dict[Node, Any] = {}
    try:
        values = [_value(argument, memo) for argument in args]
        names = {name: _value(argument, memo) for name, argument in kwargs.items()}
    except _UnknownError:
        return None
    return operator(*values, **names)


def _value(value: Any, memo: dict[Node, Any]) -> Any:
    if isinstance(value, Node):
        if value not in memo:
            memo[value] = _computed(value, memo)
        return memo[value]
    if isinstance(value, (tuple, list)):
        return [_value(item, memo) for item in value]
    return value


def _computed(node: Node, memo: dict[Node, Any]) -> Any:
    if node.kind == "constant":
        result = node.operator
    elif node.kind == "call" and not node.impure and len(memo) < _MOST_CALLS:
        args = [_value(argument, memo) for argument in node.args]
        kwargs = {name: _value(argument, memo) for name, argument in node.kwargs.items()}
        result = node.operator(*args, **kwargs)
    else:
        raise _UnknownError
    if isinstance(result, torch.Tensor) and result.numel() > _MOST_ELEMENTS:
        raise _UnknownError
    return result
