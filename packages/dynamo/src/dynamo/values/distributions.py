# ruff: noqa: ARG001 - one signature for all rules
"""`torch.distributions`: what its functions note, and checks of matrices that choose between two answers by data.

The checks look at a matrix further only where it is symmetric: here both answers are computed, and one of them is
chosen. What is made of the answer, an exception where an argument is not valid, is a branch of which one side raises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dynamo._torch import note_divergence
from dynamo.source import ItemSource
from dynamo.values.rules import UNRULED, rule
from dynamo.values.shadows import Lazy
from dynamo.values.states import NAMED_RULES

if TYPE_CHECKING:
    from dynamo.machine.interpreter import Machine


@rule(torch.distributions.kl_divergence)
def _divergence(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """torch notes which function it has found for two classes: done before, it is found in every call."""
    kinds: Any = tuple(map(type, (*args, *kwargs.values())))
    if len(kinds) == 2:
        noted, key = note_divergence(*kinds)
        shadow = machine.session.shadows.get(id(noted))
        if (
            shadow is not None and key not in shadow.copy
        ):  # read before: by the divergence around this one
            found = Lazy(noted[key], ItemSource(shadow.source, key))
            shadow.copy[key] = found
            shadow.snapshot += [key, found]
    return UNRULED


def _symmetric(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    (value,) = (*args[1:], *kwargs.values())
    if value.shape[-2] != value.shape[-1]:
        return torch.full(value.shape[:-2], False, dtype=torch.bool, device=value.device)
    return torch.isclose(value, value.mT, atol=1e-6).all(-2).all(-1)


def _semidefinite(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _further(machine, args, kwargs, lambda value: torch.linalg.eigvalsh(value).ge(0).all(-1))


def _definite(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _further(machine, args, kwargs, lambda value: torch.linalg.cholesky_ex(value).info.eq(0))


def _further(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any], check: Any) -> Any:
    (value,) = (*args[1:], *kwargs.values())
    symmetric = _symmetric(machine, args, kwargs)
    if value.shape[-2] != value.shape[-1]:
        return symmetric
    return torch.where(symmetric.all(), check(value), symmetric)


for _name, _rule in (
    ("_Symmetric", _symmetric),
    ("_PositiveSemidefinite", _semidefinite),
    ("_PositiveDefinite", _definite),
):
    NAMED_RULES["torch.distributions.constraints", f"{_name}.check"] = _rule
