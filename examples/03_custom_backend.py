"""Capture only: a backend of one's own, with nothing but dynamo installed.

python examples/03_custom_backend.py
"""

import collections

import torch
from torch import Tensor

import dynamo


def counting(graph: torch.fx.GraphModule, _inputs: list[Tensor]) -> object:
    """Counts what is called, and runs the graph as it is."""
    calls = collections.Counter(
        getattr(node.target, "__name__", str(node.target))
        for node in graph.graph.nodes
        if node.op.startswith("call")
    )
    print(dict(calls))
    return graph.forward


def softplus(x: Tensor) -> Tensor:
    """Computes log(1 + exp(x))."""
    return torch.log1p(torch.exp(x))


def main() -> None:
    """Captures one function."""
    captured = dynamo.optimize(counting)(softplus)
    x = torch.linspace(-2, 2, 5)
    torch.testing.assert_close(captured(x), torch.nn.functional.softplus(x))


if __name__ == "__main__":
    main()
