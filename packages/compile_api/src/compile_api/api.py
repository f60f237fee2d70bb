"""What a program calls: `compile` and its relatives.

In: a function, a method or a module, and what was chosen for it. Out: a callable of the same
signature that captures and compiles at its first calls. Invariant: everything a user may get wrong
here raises at the call of `compile`, not at the first call of what it returns.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

import dynamo
from compile_api import backends, logs, wiring
from compile_api import options as choices
from compile_api.errors import InvalidArgument, NotCallable, nearest
from compile_api.module import compile_module
from compile_api.timeline import trace_file
from compile_api.watch import Watch, ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "Arguments",
    "compile",
    "compile_watched",
    "disable",
    "graph_count",
    "is_compiling",
    "mark_dynamic",
    "reset",
    "set_stance",
]

_STANCES = ("default", "force_eager", "eager_on_recompile", "fail_on_recompile")


@dataclass(frozen=True, slots=True)
class Arguments:
    """The keyword arguments of `compile`, as they were given."""

    fullgraph: bool = False
    dynamic: bool | None = None
    backend: str | Callable[..., Any] = "inductor"
    mode: str | None = None
    options: Mapping[str, Any] | None = None
    disable: bool = False


def compile(  # noqa: A001 - torch.compile's name is the point
    model: Callable[..., Any] | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] = "inductor",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
) -> Any:
    """Compiles a function, a bound method or an `nn.Module`; also a decorator, bare or with arguments.

    Args:
        model: what to compile. Without it, a decorator is returned.
        fullgraph: raise at what can't be captured, instead of running that statement in Python.
        dynamic: sizes are symbolic from the start (True), never (False), or once they change (None).
        backend: a name of `list_backends()`, or a callable `(GraphModule, inputs) -> callable`.
        mode: a name of `list_mode_options()`: a set of options.
        options: by name, see `list_options()`. For a callable backend: handed on as they are.
        disable: return `model` as it is.

    Raises:
        NotCallable, UnknownBackend, UnknownMode, UnknownOption, InvalidOption,
        ConflictingArguments: see docs/errors.md.
    """
    arguments = Arguments(fullgraph, dynamic, backend, mode, options, disable)
    if model is None:
        _prepare(Watch(), arguments)  # what is wrong raises where the decorator is written
        return lambda function: compile_watched(function, Watch(), arguments)
    return compile_watched(model, Watch(), arguments)


def compile_watched(model: Callable[..., Any], watch: Watch, arguments: Arguments) -> Any:
    """Compiles under a given watch; `explain` brings one that records."""
    if not callable(model):
        raise NotCallable(model)
    compiler = _prepare(watch, arguments)
    if arguments.disable:
        return model
    if isinstance(model, nn.Module):
        return compile_module(model, compiler, arguments)
    return compiler(model)


def _prepare(watch: Watch, arguments: Arguments) -> Callable[[Callable[..., Any]], Any]:
    """Judges the arguments; returns what compiles one function."""
    if arguments.dynamic not in (None, True, False):
        raise InvalidArgument(f"dynamic must be None, True or False, got {arguments.dynamic!r}")
    if arguments.fullgraph not in (True, False):
        raise InvalidArgument(f"fullgraph must be True or False, got {arguments.fullgraph!r}")
    if callable(arguments.backend):
        settings = choices.resolve(None, None)
        extra = {"mode": arguments.mode, "options": arguments.options}
        given = {name: value for name, value in extra.items() if value is not None}
        backend = wiring.foreign(arguments.backend, settings, watch, given)
    else:
        settings = choices.resolve(arguments.mode, arguments.options)
        if settings.facade.trace:
            watch.timeline = trace_file(settings.facade.trace)
        backend = backends.lookup_backend(arguments.backend, settings, watch)
    return functools.partial(
        wiring.capture,
        backend=backend,
        settings=settings,
        watch=watch,
        dynamic=arguments.dynamic,
        fullgraph=arguments.fullgraph,
    )


def reset() -> None:
    """Forgets everything compiled by this process; the next calls compile anew."""
    dynamo.reset()
    ledger.clear()


def graph_count() -> int:
    """Tells how many graphs were compiled since the process started or the last `reset`."""
    return ledger.count


def is_compiling() -> bool:
    """Tells a function whether it is being captured; False when it runs eagerly."""
    return dynamo.is_compiling()


def disable(function: Any = None, *, recursive: bool = True, reason: str | None = None) -> Any:
    """Keeps a function, as a decorator too, out of every capture: it always runs in Python.

    Args:
        function: what to keep out.
        recursive: keep out what it calls as well.
        reason: shown where the graph break is reported.
    """
    return dynamo.disable(function, recursive=recursive, reason=reason)


def set_stance(stance: str) -> Any:
    """Says what compiled functions do from now on, in all threads; also a context manager.

    Args:
        stance: "default", "force_eager" (nothing compiled is used), "eager_on_recompile" (a call for
            which nothing compiled fits runs eagerly) or "fail_on_recompile" (such a call raises).

    Raises:
        InvalidArgument: no stance has that name; the nearest is given.
    """
    if stance not in _STANCES:
        best = nearest(stance, _STANCES)
        hint = f"\n  did you mean: {best!r}?" if best is not None else ""
        valid = ", ".join(_STANCES)
        raise InvalidArgument(f"there is no stance {stance!r}{hint}\n  valid are: {valid}")
    return dynamo.set_stance(stance)


def mark_dynamic(
    tensor: Any,
    dimension: int | tuple[int, ...],
    *,
    min: int | None = None,
    max: int | None = None,
) -> None:
    """Says that a size of this tensor will change: it is symbolic from the first compilation.

    Args:
        tensor: an argument of the call to come.
        dimension: one dimension, or several.
        min: smallest size that will occur.
        max: largest size that will occur.
    """
    dynamo.mark_dynamic(tensor, dimension, min=min, max=max)


logs.configure()
