"""Where decompositions are written down: one function per ATen overload.

`@decomposes(aten.gelu.default)` stands above a plain function with the operator's own signature, written in terms of
simpler operators. The registry is filled while the modules of `primtorch.decompositions` are imported and is only
read afterwards, by `primtorch.tables`. Invariant: an overload has at most one function; a second one raises.
An overload that the installed torch lacks is named by a string and skipped, so one source serves several versions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch._ops import OpOverload

from primtorch.errors import RegistrationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Decomposition = Callable[..., Any]

__all__ = ["check_entry", "decomposes", "overload", "registered"]

Function = TypeVar("Function", bound="Callable[..., Any]")

_DECOMPOSITIONS: dict[OpOverload, Decomposition] = {}


def overload(name: str) -> OpOverload | None:
    """The overload called `name` ("aten.add.Tensor", "primtorch.draw_seed.default"), or None if torch has none."""
    namespace, base, *rest = name.split(".")
    try:
        found = getattr(
            getattr(getattr(torch.ops, namespace), base), rest[0] if rest else "default"
        )
    except AttributeError:
        return None
    return found if isinstance(found, OpOverload) else None


def check_entry(operator: object, function: object) -> None:
    """Raise RegistrationError unless `operator` is an overload and `function` can be called."""
    if not isinstance(operator, OpOverload):
        hint = ""
        if hasattr(operator, "overloads"):
            hint = f"; name one of its overloads: {', '.join(operator.overloads())}"
        raise RegistrationError(
            f"a decomposition table maps operator overloads such as torch.ops.aten.add.Tensor, not {operator!r}{hint}"
        )
    if not callable(function):
        raise RegistrationError(
            f"the decomposition of {operator} must be callable, not {function!r}"
        )


def decomposes(*overloads: OpOverload | str) -> Callable[[Function], Function]:
    """Register the decorated function as the decomposition of each of `overloads`.

    The function has the operator's signature, takes real or fake tensors, and returns what the operator returns.

    Raises:
        RegistrationError: for something that is no overload, or an overload that has a decomposition.
    """

    def register(function: Function) -> Function:
        for named in overloads:
            operator = overload(named) if isinstance(named, str) else named
            if operator is None:
                continue
            check_entry(operator, function)
            if operator in _DECOMPOSITIONS:
                raise RegistrationError(
                    f"{operator} is decomposed by {_DECOMPOSITIONS[operator].__module__}."
                    f"{_DECOMPOSITIONS[operator].__qualname__} already; to replace it for one compile pass "
                    f"decomposition_table(...).extended({{{operator}: function}})"
                )
            _DECOMPOSITIONS[operator] = function
        return function

    return register


def registered() -> Mapping[OpOverload, Decomposition]:
    """Every decomposition known so far, by overload (a live, read-only view is not promised: treat as read-only)."""
    return _DECOMPOSITIONS
