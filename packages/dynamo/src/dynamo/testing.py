"""For tests of captured code: a counting backend, a comparison, and the entry point of the case runner."""

from __future__ import annotations

import collections
import functools
from typing import TYPE_CHECKING, Any

import torch

from dynamo.api import optimize
from dynamo.backends import lookup_backend
from dynamo.options import DynamoOptions

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CompileCounter", "compile_for_cases", "graph_count", "same"]


class CompileCounter:
    """A backend that runs graphs as they are and counts graphs (`frame_count`) and calls (`op_count`)."""

    symbolic = True

    def __init__(self) -> None:
        self.frame_count = 0
        self.op_count = 0
        self.graphs: list[Any] = []

    def __call__(self, gm: Any, example_inputs: list[Any]) -> Callable[..., Any]:
        """Count one graph."""
        del example_inputs
        self.frame_count += 1
        self.op_count += sum(node.op.startswith("call") for node in gm.graph.nodes)
        self.graphs.append(gm)
        forward: Callable[..., Any] = gm.forward
        return forward


def same(first: Any, second: Any, *, tolerance: float = 1e-5) -> bool:
    """Whether two results have the same structure, types and (nearly) the same values."""
    if isinstance(first, torch.Tensor):
        return (
            isinstance(second, torch.Tensor)
            and first.dtype is second.dtype
            and first.shape == second.shape
            and torch.allclose(first, second, rtol=tolerance, atol=tolerance, equal_nan=True)
        )
    if type(first) is not type(second):
        return False
    if isinstance(first, dict):
        return list(first) == list(second) and all(
            same(first[key], second[key], tolerance=tolerance) for key in first
        )
    if isinstance(first, list | tuple | collections.deque):
        return len(first) == len(second) and all(
            same(a, b, tolerance=tolerance) for a, b in zip(first, second, strict=True)
        )
    if hasattr(first, "__dict__") and not callable(first):
        return same(vars(first), vars(second), tolerance=tolerance)
    return bool(first == second or first != first)  # noqa: PLR0124 - a NaN is the same as a NaN


_COUNTS = {"graphs": 0}


def graph_count() -> int:
    """How many graphs `compile_for_cases` has handed to a backend in this process."""
    return _COUNTS["graphs"]


def compile_for_cases(
    function: Any,
    *,
    dynamic: bool | None = None,
    fullgraph: bool = False,
    backend: str = "eager",
) -> Any:
    """Compile with counting; faults of the compiler raise."""
    inner = lookup_backend(backend)

    @functools.wraps(inner)
    def counting(gm: Any, example_inputs: list[Any]) -> Any:
        _COUNTS["graphs"] += 1
        return inner(gm, example_inputs)

    counting.symbolic = getattr(inner, "symbolic", False)  # type: ignore[attr-defined]
    options = DynamoOptions(strict=True)
    return optimize(counting, dynamic=dynamic, fullgraph=fullgraph, options=options)(function)
