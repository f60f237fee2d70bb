"""Checks what wire 3 promises of a graph (docs/interfaces.md): functional, only operators.

Raises `WireError` naming the node and the user's line.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import torch
from torch._ops import OpOverload

from inductor.errors import WireError
from primtorch.symbolic import REAL_FUNCTIONS

if TYPE_CHECKING:
    from torch.fx import GraphModule

WIRE_VERSION = 1

INTEGER_OPERATORS = frozenset(
    {
        operator.add,
        operator.sub,
        operator.mul,
        operator.floordiv,
        operator.mod,
        operator.neg,
        torch.sym_max,
        torch.sym_min,
    }
)
"""What may compute sizes inside a graph."""

_EXTRA = frozenset(
    {
        operator.getitem,
        operator.truediv,
        operator.pow,
        operator.eq,
        operator.ne,
        operator.lt,
        operator.le,
        operator.gt,
        operator.ge,
        torch.sym_float,
        torch.sym_int,
        torch.sym_not,
        torch.sym_sqrt,
        operator.abs,
        *REAL_FUNCTIONS.values(),
    }
)


def check_wire(gm: GraphModule) -> None:
    """Refuse what isn't promised.

    Raises:
        WireError: another wire version, a node that is no operator, an operator that mutates, an
            output that is no tuple.
    """
    version = gm.meta.get("wire", WIRE_VERSION)
    if version != WIRE_VERSION:
        raise WireError("graph", f"it has wire version {version}, this package reads 1")
    outputs = 0
    for node in gm.graph.nodes:
        line = node.meta.get("source_line")
        match node.op:
            case "placeholder" | "get_attr":
                continue
            case "output":
                outputs += 1
                if not isinstance(node.args[0], (tuple, list)):
                    raise WireError(str(node), "the output is no tuple", line)
            case "call_function":
                target = node.target
                if target in INTEGER_OPERATORS or target in _EXTRA:
                    continue
                if not isinstance(target, OpOverload):
                    raise WireError(str(node), f"{target} is no operator overload", line)
                if target._schema.is_mutable:
                    raise WireError(str(node), f"{target} mutates its operands", line)
            case other:
                raise WireError(str(node), f"{other} nodes aren't part of a functional graph", line)
    if outputs != 1:
        raise WireError("graph", f"it has {outputs} outputs")
