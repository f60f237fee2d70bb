"""Running a graph with torch's own operators: the last resort, and the judge of what an error should say.

Comes in: the functional FX graph. Goes out: a boxed callable of the same convention as a compiled graph. Invariant:
node by node the operators that eager would run, so values, layouts and exceptions are eager's, wrapped by nothing.
"""

from __future__ import annotations

import logging
from functools import reduce
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.node import map_arg

from inductor.errors import PromiseError

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

__all__ = ["ReferenceCallable"]

_LOG = logging.getLogger("inductor")


class ReferenceCallable:
    """A graph as a boxed callable that runs its nodes one by one, dropping each value after its last use."""

    boxed = True

    def __init__(self, graph: GraphModule, *, strict: bool = False) -> None:
        self._module = graph
        self._strict = strict
        self._steps: list[tuple[Node, tuple[Node, ...]]] = []
        last: dict[Node, Node] = {}
        for node in graph.graph.nodes:
            last[node] = node
            for used in node.all_input_nodes:
                last[used] = node
        dead: dict[Node, list[Node]] = {}
        for node, reader in last.items():
            dead.setdefault(reader, []).append(node)
        self._steps = [(node, tuple(dead.get(node, ()))) for node in graph.graph.nodes]

    def take_over(self, reason: object) -> None:
        """Hear that the compiled program is given up, as an operator broke a promise; it is told once.

        Raises:
            PromiseError: under `strict`.
        """
        error = reason if isinstance(reason, PromiseError) else PromiseError(reason)
        if self._strict:
            raise error
        _LOG.warning(
            "a compiled graph is given up, torch's own operators run it from now on: %s", error
        )

    def __call__(self, inputs: list[Any]) -> tuple[Any, ...]:
        """Run the graph; empties `inputs`."""
        values = list(reversed(inputs))
        inputs.clear()
        environment: dict[Node, Any] = {}
        with torch.no_grad():
            for node, dead in self._steps:
                if node.op == "output":
                    return tuple(map_arg(node.args[0], environment.__getitem__))
                environment[node] = (
                    values.pop() if node.op == "placeholder" else self._run(node, environment)
                )
                for name in dead:
                    del environment[name]
        return ()

    def _run(self, node: Node, environment: dict[Node, Any]) -> Any:
        if node.op == "get_attr":
            return reduce(getattr, str(node.target).split("."), self._module)
        args = map_arg(node.args, environment.__getitem__)
        kwargs = map_arg(node.kwargs, environment.__getitem__)
        if node.op == "call_method":
            first, *rest = args
            return getattr(first, str(node.target))(*rest, **kwargs)
        target: Any = node.target
        return target(*args, **kwargs)
