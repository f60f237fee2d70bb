"""Our stages below torch's own capture: `torch.compile(model, backend="compile_api")`.

In: the graph that torch captured. Out: a callable. Where torch's sizes vary, the graph is compiled at once with
symbolic sizes of ours, and what was assumed of them is asked of torch's, so that torch guards it and captures
anew when it no longer holds (`torch_sizes`). What can't be translated so is compiled when it is first called, for
those inputs, and once more for inputs of other shapes or types: no size is ever assumed.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from compile_api import wiring
from compile_api.options import resolve
from compile_api.torch_sizes import translate
from compile_api.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.fx import GraphModule

    from compile_api.torch_sizes import Translation

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


class _Symbolic:
    """One compiled form for all sizes that torch's guards let through."""

    def __init__(
        self, translation: Translation, compiled: Callable[..., Any], other: Callable[..., Any]
    ) -> None:
        self._arranged = translation.arranged
        self._compiled = compiled
        self._boxed = bool(getattr(compiled, "boxed", False))
        self._other = other
        self._shared = _shared_memory(translation.inputs)

    def __call__(self, *inputs: Any) -> Any:
        arguments = self._arranged(inputs)
        if _shared_memory(arguments) != self._shared:  # torch doesn't guard it for a backend
            return self._other(*inputs)
        return self._compiled(arguments) if self._boxed else self._compiled(*arguments)


def _shared_memory(inputs: Sequence[Any]) -> list[int]:
    """For each tensor that isn't a parameter the first that lies in the same storage."""
    first: dict[int, int] = {}
    return [
        first.setdefault(value.untyped_storage().data_ptr(), position)
        for position, value in enumerate(inputs)
        if type(value) is torch.Tensor and value.layout is torch.strided and value.numel()
    ]


def compile_graph(
    graph: GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compiles a graph of torch's capture with aot_autograd, primtorch's table and inductor.

    Args:
        graph: as torch hands it to a backend.
        example_inputs: the inputs of the call that torch captures, symbolic sizes among them.
        mode: as for `compile_api.compile`.
        options: as for `compile_api.compile`.
    """
    backend = wiring.inductor(resolve(mode, options), Watch())
    each = _PerShape(graph, backend)
    translation = translate(graph, example_inputs)
    if translation is None:
        return each
    compiled = backend(translation.graph, translation.inputs)
    return _Symbolic(translation, compiled, each) if translation.ask() else each
