"""The table of shape rules, and what an operator's schema says of it.

A rule is a plain function `rule(sizes, *args, **kwargs)` with the operator's own arguments, where
each tensor is a `TensorMeta` and each symbolic size an `Expression`. It returns the metadata of
the result: a `TensorMeta`, a number, None, or a tuple of these. `sizes` answers questions about
sizes (see `primtorch.symbolic.Sizes`). Bad arguments raise what eager raises. Invariant: one rule
per overload; the table is filled while the rule modules are imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from primtorch import _torch
from primtorch.errors import RegistrationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._ops import OpOverload

RULES: dict[OpOverload, Callable[..., Any]] = {}

SYMBOLIC_RULES: dict[OpOverload, Callable[..., Any]] = {}
"""Rules for symbolic sizes alone: with plain sizes the operator's meta kernel is asked, which checks its arguments."""


def overload(name: str) -> OpOverload | None:
    """The ATen overload "packet.overload" or "packet" (default); None if this torch lacks it."""
    packet_name, _, overload_name = name.partition(".")
    packet = getattr(torch.ops.aten, packet_name, None)
    return getattr(packet, overload_name or "default", None)


_OPTIONS = frozenset(("dtype", "layout", "device", "pin_memory"))


@lru_cache(None)
def functional_form(operator: OpOverload) -> OpOverload | None:
    """The overload that computes what a mutating one writes, or None where ATen has none.

    That of a factory with `out=` takes the dtype and the device, which are then that tensor's.
    """
    namespace, _, name = operator._schema.name.partition("::")
    packets: Any = getattr(torch.ops, namespace)
    writes = [
        argument.alias_info is not None and argument.alias_info.is_write
        for argument in operator._schema.arguments
    ]
    in_place = not any(
        written and argument.is_out
        for written, argument in zip(writes, operator._schema.arguments, strict=True)
    )
    if in_place:
        wanted = [(a.name, str(a.type)) for a in operator._schema.arguments]
        stem = name.removesuffix("_")
        candidates = [stem, f"{stem}_functional"]
    else:
        wanted = [(a.name, str(a.type)) for a in operator._schema.arguments if not a.is_out]
        candidates = [name]
    for candidate in candidates:
        packet = getattr(packets, candidate, None)
        if packet is None:
            continue
        preferred = [operator._overloadname, "default", *packet.overloads()]
        for overload_name in preferred:
            found = getattr(packet, overload_name, None)
            if not isinstance(found, torch._ops.OpOverload) or found._schema.is_mutable:
                continue
            if [(a.name, str(a.type)) for a in found._schema.arguments] == wanted:
                return found
    return None if in_place else _factory_form(getattr(packets, name), wanted)


def _factory_form(packet: Any, wanted: list[tuple[str, str]]) -> OpOverload | None:
    """The overload that makes a tensor of the arguments `wanted`, and of options."""
    for overload_name in packet.overloads():
        found: OpOverload = getattr(packet, overload_name)
        named = [(a.name, str(a.type)) for a in found._schema.arguments]
        plain = [one for one in named if one in wanted or one[0] not in _OPTIONS]
        if plain == wanted and len(named) > len(plain) and not found._schema.is_mutable:
            return found
    return None


def register(rule: Callable[..., Any], *names: str) -> None:
    """Make `rule` the shape rule of the named ATen overloads.

    Raises RegistrationError if one of them has a rule already. Names that this version of torch
    doesn't know are passed over.
    """
    for name in names:
        op = overload(name)
        if op is None:
            continue
        if op in RULES:
            raise RegistrationError(f"{op} has a shape rule already; remove one of the two")
        RULES[op] = rule


def symbolic_rule(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a rule that is asked only where sizes are symbolic; see `SYMBOLIC_RULES`.

    Raises RegistrationError if one of the overloads has a rule already.
    """

    def decorate(rule: Callable[..., Any]) -> Callable[..., Any]:
        for op in filter(None, map(overload, names)):
            if op in RULES or op in SYMBOLIC_RULES:
                raise RegistrationError(f"{op} has a shape rule already; remove one of the two")
            SYMBOLIC_RULES[op] = rule
        return rule

    return decorate


def shape_rule(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate the shape rule of the named ATen overloads."""

    def decorate(rule: Callable[..., Any]) -> Callable[..., Any]:
        register(rule, *names)
        return rule

    return decorate


@dataclass(frozen=True, slots=True)
class Schema:
    """What the schema of an operator says about memory.

    Attributes:
        returned: for each result, the argument (position or name) that it is, when it is mutated.
        viewed: the first argument of which results are views, or None.
        is_mutable: whether some argument is written.
        composite: whether ATen itself decomposes it whatever the device.
        outs: names of the arguments that are only written.
    """

    returned: tuple[int | str | None, ...]
    viewed: int | None
    is_mutable: bool
    composite: bool
    outs: frozenset[str]


@lru_cache(None)
def schema_of(op: OpOverload) -> Schema:
    """The memory behaviour that the schema declares."""
    arguments = op._schema.arguments
    returned: list[int | str | None] = []
    viewed: int | None = None
    for result in op._schema.returns:
        position: int | str | None = None
        if result.alias_info is not None:
            for index, argument in enumerate(arguments):
                info = argument.alias_info
                if info is None or not (info.before_set & result.alias_info.before_set):
                    continue
                if result.alias_info.is_write:
                    position = argument.name if argument.kwarg_only else index
                elif viewed is None:
                    viewed = index
                break
        returned.append(position)
    return Schema(
        tuple(returned),
        viewed,
        op._schema.is_mutable,
        _torch.has_kernel(op.name(), "CompositeImplicitAutograd"),
        frozenset(argument.name for argument in arguments if argument.is_out),
    )
