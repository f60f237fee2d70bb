# ruff: noqa: ARG001 - one signature for all rules
"""Draws from generators of the program: `random`, and the generators of numpy.

The entry draws before the rest of the call (`emit.drawn`), which is the same for the program: nothing else of a call
touches a generator. Where something might (code of the program that runs in the graph, a region that runs twice, an
operator whose error the program would see with the generator as it was), or where more than two draws of a call decide
branches, the draw is a graph break. Invariant: capture draws nothing.
"""

from __future__ import annotations

import _random
import random
import types
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dynamo.emit.drawn import DrawFound, begin
from dynamo.errors import BreakReason, GraphBreak
from dynamo.values import operators
from dynamo.values.rules import UNRULED, rule
from dynamo.values.wrap import is_constant

if TYPE_CHECKING:
    from dynamo.machine.interpreter import Machine

_MOST = 64  # draws ahead of a call
_CHOICES = 4  # elements of a sequence to choose from: one version each
_OURS = frozenset({"aten", "prims", "prim", "primtorch"})


def _break(why: str = "") -> GraphBreak:
    reason = "numbers are drawn from a generator of the program"
    return GraphBreak(BreakReason.OUTSIDE_EFFECT, f"{reason}{why and ', ' + why}")


@rule(begin)
def _begin(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    draws, _, *values = args
    machine.session.drawn = list(zip(draws, values, strict=True))


def draw(
    machine: Machine, method: Any, generator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """What `method` of a generator from outside gives.

    Raises:
        DrawFound: it is to be drawn before the call.
        GraphBreak: it cannot be.
    """
    found = _draw_of(method, args, kwargs)
    session = machine.session
    if session.drawn:
        known, value = session.drawn.pop(0)
        if known != found:
            raise _break("other ones than when it was drawn")
        return value
    why = _obstacle(machine)
    if why:
        raise _break(why)
    raise DrawFound(found, generator)


def _draw_of(method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    values = (*args, *kwargs.values())
    if not all(_is_plain(value) for value in values):
        raise _break("from a range that varies")
    return method, tuple(args), tuple(kwargs.items())


def _is_plain(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return value is None or type(value) in (int, float, bool, str) or _is_scalar_type(value)


def _is_scalar_type(value: Any) -> bool:
    return isinstance(value, np.dtype) or (
        isinstance(value, type) and issubclass(value, np.generic)
    )


def _obstacle(machine: Machine) -> str:
    """Why the next draw is not made before the call; empty if it is."""
    recorder = machine.session.recorder
    drawing, sizes = machine.drawing, recorder.sizes
    if drawing is None or sizes is None or sizes.dynamic is False:
        return "which the backend takes as constants only"
    code = machine.session.function.__code__
    if code in drawing.refused:
        return "and too many of them decide branches"
    draws = drawing.draws.get(code, ())
    if len(draws) >= _MOST:
        return f"more than {_MOST} of them"
    if recorder.watched or recorder.expected:
        return "behind what may raise"
    if machine.session.state_writes:
        return "in a state of torch that the call has changed"
    for node in recorder.graph.nodes:
        if node.op == "call_function" and not _is_torchs(node.target):
            return "behind code of the program"
    return ""


def _is_torchs(target: Any) -> bool:
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace in _OURS
    module = getattr(target, "__module__", None)
    if module is None:
        return isinstance(target, types.BuiltinFunctionType | types.MethodDescriptorType)
    if module.startswith("dynamo"):  # the mark of a region that is being read
        return False
    return module.partition(".")[0] in (
        "torch",
        "primtorch",
        "_operator",
        "operator",
        "math",
        "builtins",
    )


# -- random --------------------------------------------------------------------------------------------


def _of_random(name: str, *, native: bool) -> None:
    method: Any = getattr(_random.Random if native else random.Random, name)

    @rule(method)
    def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        generator, *rest = args
        if type(generator) is not random.Random:
            if native:
                raise _break()
            return UNRULED
        if machine.session.is_created(generator):
            if not native:
                return UNRULED
            given = operators.plain_numbers(tuple(rest))
            if not all(map(is_constant, given)):
                raise GraphBreak(BreakReason.OUTSIDE_EFFECT, "a generator is seeded by the system")
            return method(generator, *given)
        return draw(machine, method, generator, tuple(rest), kwargs)


for _name in ("random", "getrandbits"):
    _of_random(_name, native=True)
for _name in (
    "uniform", "randint", "randrange", "gauss", "normalvariate", "triangular", "expovariate",
    "betavariate", "gammavariate", "lognormvariate", "vonmisesvariate", "paretovariate", "weibullvariate",
):  # fmt: skip
    _of_random(_name, native=False)


@rule(random.Random._randbelow_with_getrandbits)  # type: ignore[attr-defined]
def _below(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The place of an element that is chosen: a version of the call each."""
    generator, *rest = args
    if type(generator) is not random.Random or machine.session.is_created(generator):
        return UNRULED
    if len(rest) != 1 or type(rest[0]) is not int or rest[0] > _CHOICES:
        raise _break("each of which would be a version of the call")
    if machine.frames[-1].code is not random.Random.choice.__code__:
        raise _break("each of which would be a version of the call")
    method: Any = random.Random._randbelow_with_getrandbits  # type: ignore[attr-defined]
    return draw(machine, method, generator, tuple(rest), kwargs)


# -- numpy ---------------------------------------------------------------------------------------------


def _of_numpy(kind: Any, name: str) -> None:
    method = getattr(kind, name)

    @rule(method)
    def run(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        generator, *rest = args
        if type(generator) is not kind or machine.session.is_created(generator):
            raise _break()
        return draw(machine, method, generator, tuple(rest), kwargs)


for _name in ("rand", "randn", "random", "random_sample", "randint", "uniform", "normal", "standard_normal", "beta",
              "binomial", "exponential", "gamma", "poisson", "laplace", "lognormal"):  # fmt: skip
    _of_numpy(np.random.RandomState, _name)
for _name in ("random", "integers", "uniform", "normal", "standard_normal", "beta", "binomial", "exponential",
              "gamma", "poisson", "laplace", "lognormal"):  # fmt: skip
    _of_numpy(np.random.Generator, _name)
