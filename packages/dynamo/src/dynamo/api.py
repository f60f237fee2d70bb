"""The public face of capture."""

# ruff: noqa: ARG001 - the two rules at the end share a signature with all rules
from __future__ import annotations

import functools
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch

from dynamo._native import CompiledFunction, never_hook, unhooked
from dynamo.backends import lookup_backend
from dynamo.dispatch import Compiler, forget_all
from dynamo.errors import BreakReason, GraphBreak, UsageError
from dynamo.options import DynamoOptions
from dynamo.values.rules import rule

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynamo.guards import Guard
    from dynamo.shelved import Shelf, Span

__all__ = [
    "CaptureReport",
    "Exported",
    "allow_in_graph",
    "disable",
    "explain",
    "export",
    "graph_break",
    "is_compiling",
    "mark_dynamic",
    "mark_static",
    "optimize",
    "reset",
]


def optimize(
    backend: str | Callable[..., Any] = "eager",
    *,
    dynamic: bool | None = None,
    fullgraph: bool = False,
    options: DynamoOptions | None = None,
    observer: Callable[[str, str], None] | None = None,
    shelf: Shelf | None = None,
    span: Span | None = None,
) -> Callable[[Any], Any]:
    """A decorator that captures a function or module and compiles its graphs with `backend`.

    `backend` is a name or `callable(gm, example_inputs) -> callable`. `dynamic` None makes a size symbolic
    once it changed, True from the start, False never. `fullgraph` makes a graph break an error.
    `shelf` keeps entries from process to process. `span(step, about)` makes a context around each step.

    Raises:
        UsageError: unknown backend, or not a callable.
    """
    found = lookup_backend(backend)
    settings = options if options is not None else DynamoOptions()

    def decorate(target: Any) -> Any:
        compiler = Compiler(
            found,
            settings,
            fullgraph=fullgraph,
            dynamic=dynamic,
            observer=observer,
            shelf=shelf,
            span=span,
        )
        if isinstance(target, torch.nn.Module):
            return CompiledModule(target, compiler.compile(_calling_module()))
        if isinstance(target, types.MethodType):
            return types.MethodType(
                compiler.compile(_as_function(target.__func__)), target.__self__
            )
        return compiler.compile(_as_function(target))

    return decorate


def _as_function(target: Any) -> types.FunctionType:
    if isinstance(target, CompiledFunction):
        return target.__wrapped__
    if isinstance(target, types.FunctionType):
        return target
    if not callable(target):
        raise UsageError(f"{type(target).__name__} is not callable")

    def call(*args: Any, **kwargs: Any) -> Any:
        return target(*args, **kwargs)

    return cast("types.FunctionType", call)


def _calling_module() -> types.FunctionType:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self(*args, **kwargs)

    return cast("types.FunctionType", call)


class CompiledModule(torch.nn.Module):
    """A module whose calls are compiled; everything else is the original's."""

    def __init__(self, module: torch.nn.Module, compiled: CompiledFunction) -> None:
        super().__init__()
        object.__setattr__(self, "_original", module)
        object.__setattr__(self, "_compiled", compiled)
        for table in ("_parameters", "_buffers", "_modules"):
            object.__setattr__(self, table, getattr(module, table))
        object.__setattr__(self, "_non_persistent_buffers_set", module._non_persistent_buffers_set)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the compiled call of the original module."""
        return self._compiled(self._original, *args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The same."""
        return self._compiled(self._original, *args, **kwargs)

    def train(self, mode: bool = True) -> Any:
        """Set the original's mode too."""
        self._original.train(mode)
        object.__setattr__(self, "training", mode)
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_original"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._original, name, value)


@dataclass(frozen=True, slots=True)
class Exported:
    """One whole graph of a call and the guards under which it stands for it."""

    graph_module: Any
    guards: tuple[Guard, ...]


@dataclass(frozen=True, slots=True)
class CaptureReport:
    """What capture made of one call: its graphs in order, and why it stopped between them."""

    graphs: tuple[Any, ...]
    breaks: tuple[str, ...]
    guards: tuple[Guard, ...]
    sources: tuple[str, ...]  # the code that runs in place of each captured frame

    @property
    def graph_count(self) -> int:
        """How many graphs there are."""
        return len(self.graphs)


def _report(
    target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], **settings: Any
) -> CaptureReport:
    breaks: list[str] = []

    def observe(stage: str, text: str) -> None:
        if stage == "break":
            breaks.append(text)

    compiler = Compiler(
        lookup_backend("eager"), DynamoOptions(strict=True), observer=observe, **settings
    )
    if isinstance(target, torch.nn.Module):
        compiler.compile(_calling_module())(target, *args, **kwargs)
    else:
        compiler.compile(_as_function(target))(*args, **kwargs)
    captured = compiler.captured
    return CaptureReport(
        tuple(found.graph for found in captured if found.graph is not None),
        tuple(breaks),
        tuple(guard for found in captured for guard in found.entry.program.guards),
        tuple(found.source for found in captured),
    )


def explain(target: Any) -> Callable[..., CaptureReport]:
    """`explain(f)(*args)` runs one call and reports how it was captured."""
    return lambda *args, **kwargs: _report(target, args, kwargs)


def export(target: Any) -> Callable[..., Exported]:
    """`export(f)(*args)` gives the call's one graph and its guards.

    Raises:
        CaptureError: the call needs more than one graph.
        UsageError: the call has no tensor operation.
    """

    def run(*args: Any, **kwargs: Any) -> Exported:
        report = _report(target, args, kwargs, fullgraph=True)
        if not report.graphs:
            raise UsageError("the call has no tensor operation: there is no graph to export")
        return Exported(report.graphs[0], report.guards)

    return run


def is_compiling() -> bool:
    """False outside; while a function is captured the answer is True."""
    return False


def graph_break() -> None:
    """End the graph here; without effect outside of capture."""


def reset() -> None:
    """Forget everything that was compiled; the next calls are captured anew."""
    forget_all()


def mark_dynamic(
    tensor: torch.Tensor,
    index: int | tuple[int, ...],
    *,
    min: int | None = None,
    max: int | None = None,
) -> None:
    """Make sizes of an input symbolic from the first capture, optionally within limits.

    Raises:
        UsageError: no such dimension, or the size is outside the limits.
    """
    for dimension in index if isinstance(index, tuple | list) else (index,):
        if not -tensor.dim() <= dimension < tensor.dim():
            raise UsageError(f"dimension {dimension} of a tensor with {tensor.dim()} dimensions")
        place = dimension % tensor.dim()
        size = tensor.shape[place]
        if (min is not None and size < min) or (max is not None and size > max):
            raise UsageError(f"size {size} of dimension {place} is outside [{min}, {max}]")
        marks: Any = tensor.__dict__
        marks.setdefault("_dynamo_dynamic_indices", set()).add(place)
        marks.setdefault("_dynamo_ranges", {})[place] = (min, max)


def mark_static(tensor: torch.Tensor, index: int | tuple[int, ...] | None = None) -> None:
    """Keep sizes of an input specialised even after they changed; all sizes by default."""
    if index is None:
        index = tuple(range(tensor.dim()))
    for dimension in index if isinstance(index, tuple | list) else (index,):
        marks: Any = tensor.__dict__
        marks.setdefault("_dynamo_static_indices", set()).add(dimension % tensor.dim())


def disable(function: Any = None, *, recursive: bool = True, reason: str | None = None) -> Any:
    """Never capture `function`; calls of it are graph breaks. Usable with and without arguments.

    What `function` calls isn't captured either, unless `recursive` is False. `reason` is shown
    where the break is reported.
    """
    if function is None:
        return functools.partial(disable, recursive=recursive, reason=reason)
    if isinstance(function, torch.nn.Module):
        function.forward = disable(function.forward, recursive=recursive)
        return function
    if not recursive:
        never_hook(getattr(function, "__func__", function).__code__)

    @functools.wraps(function)
    def disabled(*args: Any, **kwargs: Any) -> Any:
        if recursive:
            return unhooked(function, *args, **kwargs)
        return function(*args, **kwargs)

    disabled.__dict__["_dynamo_disable"] = True
    disabled.__dict__["_dynamo_disable_recursive"] = recursive
    disabled.__dict__["_dynamo_disable_reason"] = reason
    return disabled


def allow_in_graph(function: Any) -> Any:
    """Calls of `function` become one node each; its body isn't captured."""
    function.__dict__["_dynamo_allow_in_graph"] = True
    return function


@rule(is_compiling)
def _is_compiling(machine: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return True


@rule(graph_break)
def _graph_break(machine: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    raise GraphBreak(BreakReason.REQUESTED, "graph_break() is called")
