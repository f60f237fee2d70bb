"""What the rules of mutations and random operators may ask of the recording context.

They are called by it and call it back; this protocol stands between, so that neither imports the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from aot_autograd._torch import OpOverload
    from aot_autograd.errors import SourceLine
    from aot_autograd.graph import Node
    from aot_autograd.seeds import Seeds
    from primtorch.fake import FakeTensor, TensorMeta


class Recorder(Protocol):
    """Records operators on fake tensors."""

    writes: int
    table: Mapping[OpOverload, Any]
    source_line: SourceLine | None
    seeds: Seeds
    fallback_random: bool

    def operate(self, operator: OpOverload, *args: Any, **kwargs: Any) -> FakeTensor:
        """Record one pure operator (decomposed like any other) and return its result."""

    def fresh(self, meta: TensorMeta, node: Node) -> FakeTensor:
        """A fake tensor with a storage of its own whose value is `node`."""

    def handle(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do what the operator does, as if a fake tensor had called it."""

    def record(
        self,
        operator: OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        impure: bool = False,
    ) -> Any:
        """Append the call itself and return its results as fresh fakes."""

    def constant(self, tensor: torch.Tensor) -> FakeTensor:
        """A fake tensor that starts with the value of a real one."""

    def decomposed(
        self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """What the operator's decomposition gives, as tensors of their own; NotImplemented without."""
