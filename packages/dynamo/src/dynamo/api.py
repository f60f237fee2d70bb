"""The public face of capture."""

# ruff: noqa: ARG001 - the two rules at the end share a signature with all rules
from __future__ import annotations

import contextlib
import copy
import functools
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, cast

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
    "error_on_graph_break",
    "explain",
    "export",
    "graph_break",
    "is_compiling",
    "mark_dynamic",
    "mark_static",
    "mark_unbacked",
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
        UsageError: unknown backend, not a callable, or an argument of another type.
    """
    found = lookup_backend(backend)
    settings = options if options is not None else DynamoOptions()
    if dynamic not in (None, True, False):
        raise UsageError(f"dynamic is None, True or False, not {dynamic!r}")
    if fullgraph not in (True, False):
        raise UsageError(f"fullgraph is True or False, not {fullgraph!r}")
    if not isinstance(settings, DynamoOptions):
        raise UsageError(f"options is a DynamoOptions, not {type(settings).__name__}")

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
            return CompiledModule(target, compiler.compile(_calling_module()), decorate)
        if isinstance(target, types.MethodType):
            return types.MethodType(
                compiler.compile(_as_function(target.__func__)), target.__self__
            )
        return compiler.compile(_as_function(target))

    return decorate


def _as_function(target: Any) -> types.FunctionType:
    if isinstance(target, CompiledFunction):
        return target.__wrapped__
    if isinstance(target, types.FunctionType) and not _is_transform(target):
        return target
    if not callable(target):
        raise UsageError(f"{type(target).__name__} is not callable")

    def call(*args: Any, **kwargs: Any) -> Any:
        return target(*args, **kwargs)

    return cast("types.FunctionType", call)


def _is_transform(function: types.FunctionType) -> bool:
    """Whether a transform of `torch.func` returned the function: what it does is known, how is not captured."""
    return str(function.__globals__.get("__name__")).startswith("torch._functorch.")


def _calling_module() -> types.FunctionType:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self(*args, **kwargs)

    return cast("types.FunctionType", call)


class CompiledModule(torch.nn.Module):
    """A module whose calls are compiled; everything else is the original's."""

    def __init__(
        self,
        module: torch.nn.Module,
        compiled: CompiledFunction,
        again: Callable[[torch.nn.Module], Any],
    ) -> None:
        super().__init__()
        object.__setattr__(self, "_original", module)
        object.__setattr__(self, "_again", again)
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

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy of the module, compiled in the same way."""
        return self._again(copy.deepcopy(self._original, memo))

    def __reduce__(self) -> Any:
        """The module itself: what compiled it stays behind."""
        return _itself, (self._original,)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_original"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._original, name, value)


def _itself(module: torch.nn.Module) -> torch.nn.Module:
    return module


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


class error_on_graph_break(contextlib.ContextDecorator):  # noqa: N801 - used like a function
    """A region of a captured program in which a graph break raises, or doesn't, whatever `fullgraph` is.

    `with error_on_graph_break(False):` allows breaks under `fullgraph=True`; with True each is a
    `CaptureError`. Regions nest. A context manager and a decorator; without effect outside of capture.
    """

    def __init__(self, enabled: bool) -> None:
        if enabled not in (True, False):
            raise UsageError(f"breaks are errors or not: True or False, not {enabled!r}")
        self.enabled = enabled
        self.former: bool | None = None

    def __enter__(self) -> Self:
        self.former = _say_of_breaks(self.enabled)
        return self

    def __exit__(self, *error: object) -> None:
        _say_of_breaks(self.former)


def _say_of_breaks(enabled: bool | None) -> bool | None:
    """While capturing: what is said of breaks from here on; gives what was said before."""
    return None


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
        UsageError: not a tensor, no such dimension, limits that are none, or a size outside of them.
    """
    limits = [limit for limit in (min, max) if limit is not None]
    if not all(type(limit) is int and limit >= 0 for limit in limits) or limits != sorted(limits):
        raise UsageError(f"min and max are sizes, min the smaller: not {min!r} and {max!r}")
    for place in _dimensions(tensor, index):
        size = tensor.shape[place]
        if (min is not None and size < min) or (max is not None and size > max):
            raise UsageError(f"size {size} of dimension {place} is outside [{min}, {max}]")
        marks: Any = tensor.__dict__
        marks.setdefault("_dynamo_dynamic_indices", set()).add(place)
        marks.setdefault("_dynamo_ranges", {})[place] = (min, max)


def mark_static(tensor: torch.Tensor, index: int | tuple[int, ...] | None = None) -> None:
    """Keep sizes of an input specialised even after they changed; all sizes by default.

    Raises:
        UsageError: not a tensor, or no such dimension.
    """
    for place in _dimensions(tensor, index):
        marks: Any = tensor.__dict__
        marks.setdefault("_dynamo_static_indices", set()).add(place)


def mark_unbacked(tensor: torch.Tensor, index: int | tuple[int, ...]) -> None:
    """Make sizes of an input symbolic without any assumption: 0 and 1 are sizes like others.

    Nothing is asked of such a size while capturing: a statement that branches on it is a graph break.

    Raises:
        UsageError: not a tensor, or no such dimension.
    """
    for place in _dimensions(tensor, index):
        marks: Any = tensor.__dict__
        marks.setdefault("_dynamo_unbacked_indices", set()).add(place)


def _dimensions(tensor: torch.Tensor, index: Any) -> list[int]:
    """The dimensions that a mark names, from the front."""
    if not isinstance(tensor, torch.Tensor):
        raise UsageError(f"sizes of tensors are marked, not of {type(tensor).__name__}")
    if index is None:
        return list(range(tensor.dim()))
    found = []
    for dimension in index if isinstance(index, tuple | list) else (index,):
        if type(dimension) is not int:
            raise UsageError(f"a dimension is an int or a tuple of ints, not {dimension!r}")
        if not -tensor.dim() <= dimension < tensor.dim():
            raise UsageError(f"dimension {dimension} of a tensor with {tensor.dim()} dimensions")
        found.append(dimension % tensor.dim())
    return found


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


@rule(_say_of_breaks)
def _breaks_raise(machine: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    former, machine.breaks_raise = machine.breaks_raise, args[0]
    return former


@rule(graph_break)
def _graph_break(machine: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    raise GraphBreak(BreakReason.REQUESTED, "graph_break() is called")
