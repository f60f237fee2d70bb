"""Finds the graph that computes something else than eager does: `options={"verify": True}`.

In: a graph and its compiled form. Out: a callable that runs both on every call, the graph on copies
of the inputs and with the same random numbers, and raises `ResultDiffers` with the graph, the output
and the user's line. Invariant: the program gets the compiled results, and the inputs are changed once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from compile_api.errors import ResultDiffers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor
    from torch.fx import GraphModule

__all__ = ["verified"]

_TOLERANCE = {  # relative to the largest value of the expected tensor
    torch.float64: 1e-9,
    torch.float32: 1e-4,
    torch.bfloat16: 2e-2,
    torch.float16: 4e-3,
}


def _copy(value: object) -> object:
    """Copies a tensor with its strides; other inputs are immutable."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone(memory_format=torch.preserve_format)


def _difference(actual: object, expected: object) -> str | None:
    """Says how two results differ, or gives None."""
    if not isinstance(expected, torch.Tensor) or not isinstance(actual, torch.Tensor):
        return None if actual == expected else f"{actual!r} instead of {expected!r}"
    for name in ("dtype", "device", "shape"):
        here, there = getattr(actual, name), getattr(expected, name)
        if here != there:
            return f"{name} {here} instead of {there}"
    return _values(actual.detach(), expected)


def _values(actual: Tensor, expected: Tensor) -> str | None:
    tolerance = _TOLERANCE.get(expected.dtype)
    if tolerance is None or expected.numel() == 0:
        return None if torch.equal(actual, expected) else "other values"
    wide, truth = actual.double(), expected.double()
    special = ~truth.isfinite()
    if not torch.equal(wide[special].nan_to_num(), truth[special].nan_to_num()) or not torch.equal(
        wide.isnan(), truth.isnan()
    ):
        return "other infinities or nans"
    wide, truth = wide.masked_fill(special, 0), truth.masked_fill(special, 0)
    largest = (wide - truth).abs().max().item()
    scale = max(truth.abs().max().item(), 1e-30)
    if largest <= tolerance * max(scale, 1.0):
        return None
    return f"values off by {largest:.3g} (the largest value is {scale:.3g})"


def _line_of(graph: GraphModule, output: int) -> str:
    """Names the user's line of an output, where it is known."""
    results = graph.graph.output_node().args[0]
    if isinstance(results, tuple | list) and output < len(results):
        line = getattr(results[output], "meta", {}).get("source_line")
        if line is not None:
            return f", from {line[0]}:{line[1]} in {line[2]}"
    return ""


def verified(graph: GraphModule, compiled: Callable[..., Any], number: int) -> Callable[..., Any]:
    """Wraps a compiled graph so that each call is compared with the graph run eagerly.

    Args:
        graph: as captured.
        compiled: its compiled form, boxed or not.
        number: which graph of the program it is, for the message.

    Raises:
        ResultDiffers: (the wrapper) an output or a changed input is another than eager's.
    """
    boxed = getattr(compiled, "boxed", False)

    def call(args: list[Any]) -> Sequence[Any]:
        inputs = list(args)
        args.clear()
        copies = [_copy(value) for value in inputs]
        state = torch.get_rng_state()
        expected = graph(*copies)
        torch.set_rng_state(state)
        results: Sequence[Any] = compiled(list(inputs)) if boxed else compiled(*inputs)
        for index, (actual, wanted) in enumerate(zip(results, expected, strict=True)):
            found = _difference(actual, wanted)
            if found is not None:
                raise ResultDiffers(number, f"output {index}{_line_of(graph, index)}", found)
        for index, (actual, wanted) in enumerate(zip(inputs, copies, strict=True)):
            found = _difference(actual, wanted)
            if found is not None:
                raise ResultDiffers(number, f"input {index}, after the call", found)
        return results

    call.boxed = True  # type: ignore[attr-defined]  # a function may carry attributes
    return call
