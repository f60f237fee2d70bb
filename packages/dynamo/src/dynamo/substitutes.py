"""What the user tells capture about a function: its result is a constant, or other code stands for it.

Comes in: functions. Goes out: marks that the interpreter reads, and rules beside those for torch's own
functions. Invariant: outside of capture a marked function is what it was.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch

from dynamo.errors import BreakReason, GraphBreak, UsageError
from dynamo.source import ConstantSource
from dynamo.values import calls
from dynamo.values.rules import RULES
from dynamo.values.wrap import is_constant
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    import types
    from collections.abc import Callable

    from dynamo.machine.interpreter import Machine
    from dynamo.values.session import Session

__all__ = ["assume_constant_result", "call_constant", "substitute_in_graph"]


def assume_constant_result(function: Any) -> Any:
    """Call `function` once, when it is captured, and take its result for that of every later call.

    Its arguments must be constants or objects from outside the compiled function.
    """
    marked = getattr(function, "__func__", function)
    if not hasattr(marked, "__dict__"):
        raise UsageError(f"{type(function).__name__} cannot be marked; wrap it in a function")
    marked._dynamo_marked_constant = True  # torch's own mark, which is honoured too
    return function


def substitute_in_graph(
    original: Any, *, can_constant_fold_through: bool = False, skip_signature_check: bool = False
) -> Callable[[types.FunctionType], types.FunctionType]:
    """A decorator: capture interprets the decorated function in place of calls of `original`.

    For functions that are no Python, or that capture can't follow. `can_constant_fold_through` says that the
    result depends on the arguments alone; it changes nothing here, for constants are computed by interpreting.

    Raises:
        UsageError: `original` is not callable, or the signatures differ.
    """
    del can_constant_fold_through
    if not callable(original):
        raise UsageError(f"{type(original).__name__} is not callable")

    def decorate(substitute: types.FunctionType) -> types.FunctionType:
        if not skip_signature_check:
            _check_signatures(original, substitute)

        def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            machine.session.assumptions.refuse(
                f"{substitute.__qualname__} stands in for a function that is not captured"
            )
            return calls.call(machine, substitute, args, kwargs)

        RULES[original] = run
        return substitute

    return decorate


def _check_signatures(original: Any, substitute: types.FunctionType) -> None:
    try:
        wanted = inspect.signature(original)
    except (TypeError, ValueError):  # C code that doesn't tell
        return
    given = inspect.signature(substitute)

    def shape(signature: inspect.Signature) -> list[tuple[str, Any, bool]]:
        return [
            (name, parameter.kind, parameter.default is inspect.Parameter.empty)
            for name, parameter in signature.parameters.items()
        ]

    if shape(wanted) != shape(given):
        raise UsageError(
            f"the substitute {substitute.__qualname__}{given} has another signature than "
            f"{getattr(original, '__qualname__', original)}{wanted}\n"
            "  try: give it the same parameters, or pass skip_signature_check=True"
        )


def call_constant(
    machine: Machine, function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The result of a function that is marked, which is called now."""
    session = machine.session
    real_args = [_real(session, function, value) for value in args]
    real_kwargs = {name: _real(session, function, value) for name, value in kwargs.items()}
    with torch._C.DisableTorchFunction():
        result = function(*real_args, **real_kwargs)
    session.guard_function_code(function)
    session.assumptions.refuse(f"{function.__qualname__} is assumed to give a constant")
    return session.wrap(result, ConstantSource(result, f"{function.__qualname__}(...)"))


def _real(session: Session, function: types.FunctionType, value: Any) -> Any:
    """The object outside that a value stands for."""
    if isinstance(value, FakeTensor):
        found = session.reals.get(id(value))
        if found is not None:
            return found
    elif id(value) in session.shadows_by_copy:
        return session.shadows_by_copy[id(value)].original
    elif is_constant(value) or session.source_of(value) is not None:
        return value
    raise GraphBreak(
        BreakReason.UNSUPPORTED_CALL,
        f"{function.__qualname__} is assumed constant, but an argument was made while capturing",
    )
