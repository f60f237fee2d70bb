"""`torch.distributed` in a captured program: collectives, process groups, distributed tensors.

A collective becomes its functional operator and the wait for it; one that writes its argument, the operator, the wait
and a copy. A process group is the same object in every call of an entry. What a distributed tensor does besides
operators (`redistribute`, `to_local`, ...) is one call in the graph. Invariant: the collectives of a graph are those of
the program, in its order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynamo.errors import BreakReason, GraphBreak
from dynamo.graph.tensor_classes import is_traced
from dynamo.graph.wrappers import record_whole
from dynamo.guards import Guard, GuardKind
from dynamo.values import operators
from dynamo.values.states import NAMED_RULES
from dynamo.values.wrap import is_constant

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynamo.machine.interpreter import Machine

__all__: list[str] = []

_TENSOR_API = "torch.distributed.tensor._api"


def named(module: str, *names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a rule by module and qualified name: importing these modules takes half a second."""

    def register(handler: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            NAMED_RULES[module, name] = handler
        return handler

    return register


# -- distributed tensors -------------------------------------------------------------------------------


def _as_one_call(name: str) -> None:
    @named(_TENSOR_API, f"DTensor.{name}")
    def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        from torch.distributed.tensor import DTensor  # the program has imported it

        return record_whole(
            machine.session.recorder,
            getattr(DTensor, name),
            tuple(_fixed(machine, value) for value in args),
            {key: _fixed(machine, value) for key, value in kwargs.items()},
        )


for _name in ("from_local", "to_local", "redistribute", "full_tensor"):
    _as_one_call(_name)


def _fixed(machine: Machine, value: Any) -> Any:
    """An argument that is the same in every call of the entry."""
    if is_traced(value) or is_constant(value):
        return value
    if type(value) in (list, tuple):
        return type(value)([_fixed(machine, item) for item in operators.iterate(machine, value)])
    session = machine.session
    source = session.source_of(value)
    if source is not None and not session.is_created(value):
        session.guards.setdefault(
            (GuardKind.PREDICATE, source, id(value)),
            Guard(
                source,
                GuardKind.PREDICATE,
                (lambda found: type(found) is type(value) and found == value, f"it is {value!r}"),
                session.source_line,
            ),
        )
    elif not type(value).__module__.startswith("torch.distributed"):
        raise GraphBreak(
            BreakReason.UNSUPPORTED_CALL,
            f"a {type(value).__qualname__} is an argument of a distributed tensor's method",
        )
    return value
