"""Sizes and integers that stay symbolic (`dynamic=`): their symbols, sources, placeholders, and arithmetic.

Decides which dimension of which input gets a symbol, and turns a symbolic integer that reaches a node into
arithmetic over size placeholders. Invariant: an expression has one node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from dynamo.graph.recorder import Recorder
    from dynamo.source import Source

__all__ = ["Sizes"]


class Sizes:
    """The symbolic part of one capture."""

    def __init__(self, environment: Any, policy: Any) -> None:
        self.environment = environment
        self.policy = policy

    def shape_of(self, source: Source, tensor: torch.Tensor) -> tuple[Any, tuple[int, ...]]:
        """Symbolic sizes for an input (None if all static), and which dimensions are symbolic."""
        raise NotImplementedError

    def scalar(self, source: Source, value: int) -> Any:
        """A symbol for an integer input, or None if it is specialised."""
        raise NotImplementedError

    def node_of(self, recorder: Recorder, value: Any) -> torch.fx.Node:
        """The node that computes a symbolic number."""
        raise NotImplementedError

    def text_of(self, emitter: Any, value: Any) -> str:
        """Python text that computes a symbolic number in an entry."""
        raise NotImplementedError
