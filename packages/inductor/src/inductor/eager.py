"""Runs a graph with torch's own operators: what remains when our compiler fails on a graph.

In: the FX graph. Out: a callable of the same convention, with eager's values, layouts, exceptions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Interpreter

from inductor.lowering.lower import fact_of

if TYPE_CHECKING:
    from torch.fx import GraphModule


class EagerGraph:
    """A graph run node by node."""

    def __init__(self, gm: GraphModule) -> None:
        self.boxed = True
        self._interpreter = Interpreter(gm)
        output = next(node for node in gm.graph.nodes if node.op == "output")
        self.output_layouts = tuple(
            getattr(fact_of(item.meta["val"]), "stride", None)
            if isinstance(item, torch.fx.Node)
            else None
            for item in output.args[0]
        )

    def __call__(self, inputs: list[Any]) -> tuple[Any, ...]:
        """Run the graph; empties `inputs`."""
        arguments = tuple(inputs)
        inputs.clear()
        with torch.no_grad():
            return tuple(self._interpreter.run(*arguments))
