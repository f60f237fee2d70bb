"""`torch.func.vjp` and `jvp`: the function is interpreted on the primals and becomes a nested graph.

`jvp` is one region. `vjp` interprets the function in place for its value, and hands out a partial of
`apply_pullback`, each call of which is a region that has the function once more; what both compute alike a compiler
finds. Invariant: a function that changes something outside, or draws random numbers, is not interpreted twice.
"""

from __future__ import annotations

import collections
import functools
import types
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from dynamo.graph.calls import draws_numbers
from dynamo.values.functions import is_unchanged, outside_now
from dynamo.values.regions import refuse
from dynamo.values.rules import rule
from dynamo.values.transforms import begin, call_under, finish, leaves_of, like

if TYPE_CHECKING:
    from dynamo.machine.interpreter import Machine

__all__ = ["apply_pullback"]


def apply_pullback(function: Any, primals: tuple[Any, ...], *cotangents: Any) -> Any:
    """`torch.func.vjp(function, *primals)[1](*cotangents)`."""
    return torch.func.vjp(function, *primals)[1](*cotangents)


@rule(torch.func.jvp)
def _jvp(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = dict(zip(("func", "primals", "tangents"), args, strict=False)) | kwargs
    if given.get("strict") or given.get("has_aux") or not isinstance(given["primals"], tuple):
        refuse(machine, "this form of torch.func.jvp is not captured")
    primals, spec = leaves_of(machine, "jvp", given["primals"])
    tangents, tangent_spec = leaves_of(machine, "jvp", given["tangents"])
    if spec != tangent_spec:
        refuse(machine, "torch.func.jvp has tangents of another structure than its primals")
    copies = [like(leaf) for leaf in primals]
    body = begin(machine, [*primals, *tangents], [*copies, *map(like, tangents)])
    arguments = tuple(pytree.tree_unflatten(copies, spec))
    result = call_under(machine, "jvp", given["func"], arguments, {})
    found, result_spec = leaves_of(machine, "jvp", result)
    values, derivatives = finish(machine, body, "jvp", tuple(found), {"count": len(primals)})
    return (
        pytree.tree_unflatten(list(values), result_spec),
        pytree.tree_unflatten(list(derivatives), result_spec),
    )


@rule(torch.func.vjp)
def _vjp(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    from dynamo.values import calls

    function, *primals = args
    if set(kwargs) - {"has_aux"} or kwargs.get("has_aux"):
        refuse(machine, "torch.func.vjp with has_aux is not captured")
    session = machine.session
    before, nodes = outside_now(session), set(session.recorder.graph.nodes)
    reached = _reached((function, primals))
    written = set(session.recorder.mutated)
    result = calls.call(machine, function, tuple(primals), {})
    made = [node for node in session.recorder.graph.nodes if node not in nodes]
    unchanged = is_unchanged(before, outside_now(session)) and reached == _reached(
        (function, primals)
    )
    if not unchanged or session.recorder.mutated - written:
        refuse(machine, "a function under torch.func.vjp changes something outside")
    if any(draws_numbers(node, session.recorder.root) for node in made):
        refuse(machine, "a function under torch.func.vjp draws random numbers")
    pullback = functools.partial(apply_pullback, function, tuple(primals))
    return result, session.created(pullback)


def _reached(value: tuple[Any, ...]) -> dict[int, tuple[int, ...]]:
    """The containers and objects that a function can reach, each with what is in it, by identity."""
    found: dict[int, tuple[int, ...]] = {}
    pending = list(value)
    while pending:
        item = pending.pop()
        match item:
            case list() | tuple() | set() | frozenset() | collections.deque():
                parts = list(item)
            case dict():
                parts = [*item.keys(), *item.values()]
            case types.FunctionType():
                parts = [*(item.__closure__ or ()), *(item.__defaults__ or ())]
            case types.MethodType():
                parts = [item.__self__, item.__func__]
            case functools.partial():
                parts = [item.func, *item.args, *item.keywords.values()]
            case types.CellType():
                parts = [] if item == types.CellType() else [item.cell_contents]
            case torch.Tensor() | type() | types.ModuleType():
                continue
            case _:
                parts = list(getattr(item, "__dict__", {}).values())
        if id(item) not in found and (parts or isinstance(item, list | dict | set)):
            found[id(item)] = tuple(map(id, parts))
            pending += parts
    return found


@rule(apply_pullback)
def _pull_back(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    function, primals, *cotangents = args
    if kwargs:
        refuse(machine, "the result of torch.func.vjp is called with keywords")
    leaves, spec = leaves_of(machine, "vjp", primals)
    given = cotangents[0] if len(cotangents) == 1 else tuple(cotangents)
    weights, weight_spec = leaves_of(machine, "vjp", given)
    copies = [like(leaf, differentiated=True) for leaf in leaves]
    body = begin(machine, [*leaves, *weights], [*copies, *map(like, weights)])
    arguments = tuple(pytree.tree_unflatten(copies, spec))
    result = call_under(machine, "vjp", function, arguments, {})
    found, result_spec = leaves_of(machine, "vjp", result)
    if result_spec != weight_spec:
        refuse(machine, "the result of torch.func.vjp is called with another structure")
    grads = finish(machine, body, "vjp", tuple(found), {"count": len(leaves)})
    return tuple(pytree.tree_unflatten(list(grads), spec))
