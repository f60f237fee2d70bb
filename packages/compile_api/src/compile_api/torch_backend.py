"""Our stages below torch's own capture: `torch.compile(model, backend="compile_api")`.

In: the graph that torch captured. Out: a callable that compiles when it is first called, for the
inputs it is called with, and once more for inputs of other shapes or types. torch's capture may hand
the same graph inputs of several sizes (its symbolic sizes arrive here as plain ints); each set of
shapes has its own compiled form, so that no size is ever assumed.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from compile_api import wiring
from compile_api.options import resolve
from compile_api.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.fx import GraphModule

__all__ = ["compile_graph"]


def _kind(value: object) -> object:
    """Gives what a compiled form depends on of one input."""
    if isinstance(value, torch.Tensor):
        return (
            type(value),
            value.dtype,
            value.device,
            tuple(value.shape),
            value.stride() if value.layout is torch.strided else value.layout,
            value.requires_grad,
        )
    return (type(value), value)


class _PerShape:
    """Compiles a graph once for each kind of inputs; safe from many threads."""

    def __init__(self, graph: GraphModule, backend: wiring.Backend) -> None:
        self._graph = graph
        self._backend = backend
        self._compiled: dict[object, Callable[..., Any]] = {}
        self._lock = threading.Lock()

    def __call__(self, *inputs: Any) -> Any:
        key = (torch.is_grad_enabled(), *map(_kind, inputs))
        compiled = self._compiled.get(key)
        if compiled is None:
            with self._lock:
                compiled = self._compiled.get(key)
                if compiled is None:
                    compiled = self._backend(self._graph, list(inputs))
                    self._compiled[key] = compiled
        return compiled(list(inputs)) if getattr(compiled, "boxed", False) else compiled(*inputs)


def compile_graph(
    graph: GraphModule,
    _example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compiles a graph of torch's capture with aot_autograd, primtorch's table and inductor.

    Args:
        graph: as torch hands it to a backend.
        _example_inputs: torch's stand-ins; not used, the first call has the real inputs.
        mode: as for `compile_api.compile`.
        options: as for `compile_api.compile`.
    """
    return _PerShape(graph, wiring.inductor(resolve(mode, options), Watch()))
