"""Gradients of gradients: the backward as a function of the inputs and the tangents.

Comes in: the traced function. Goes out: a callable (inputs, seeds, tangents) -> gradients that is
differentiable again. The gradients are recomputed from the inputs, never from saved values, whose
dependence on the inputs is lost, with the caller's results in the place of those that are computed
again (`standing.py`); they are compiled like any other function at the first
`create_graph=True`, and their own second derivative by the same rule. Random numbers come from the
seeds of the call that is differentiated.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from aot_autograd.connections import bits_of, edge_of
from aot_autograd.inputs import (
    Fresh,
    InputSpec,
    members_of_storages,
    numbers_of_graph_inputs,
)
from aot_autograd.observation import Observation
from aot_autograd.recording import RecordingContext
from aot_autograd.standing import Standing, with_standing
from aot_autograd.subclasses import is_wrapper, take_apart
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aot_autograd.compiling import FlatFunction, Toolchain
    from aot_autograd.metadata import FunctionMetadata
    from aot_autograd.runtime import Boxed


def _kind(tensor: torch.Tensor) -> Any:
    return take_apart(tensor, []) if is_wrapper(tensor) else type(tensor)


class DoubleBackward:
    """The differentiable backward of one compiled function.

    Args:
        function: The function, taking one argument per distinct input.
        specs: Those inputs.
        metadata: What the first trace found.
        tools: Compilers and options.
        compile_flat: `compiling.compile_flat`, passed in because it also makes objects of this
            class.
    """

    def __init__(
        self,
        function: FlatFunction,
        specs: Sequence[InputSpec],
        metadata: FunctionMetadata,
        tools: Toolchain,
        compile_flat: Callable[..., Boxed],
    ) -> None:
        self._function = function
        self._specs = tuple(specs)
        self._metadata = metadata
        self.tools = tools
        self.compile_flat = compile_flat
        self.source = f"gradients of {metadata.source}"
        self._lock = threading.Lock()
        self._compiled: dict[Any, Boxed] = {}

    def for_inputs(self, _inputs: list[Any]) -> DoubleBackward:
        """This one; what is made for inputs of any shapes has one for each."""
        return self

    def __call__(
        self,
        inputs: list[Any],
        seeds: list[Any],
        tangents: list[Any],
        ends: int = 0,
        results: Sequence[Any] = (),
    ) -> tuple[Any, ...]:
        """The gradients of the differentiable inputs, with an autograd graph of their own.

        Where it ends at results (their bits), what arrives at each that others are made of is behind these: None
        where it doesn't end. `results` are those that stand for what is computed again, one for each tangent and
        each point, or None.
        """
        there = tuple([tangent is not None for tangent in tangents])
        stand = tuple([number for number, one in enumerate(results) if one is not None])
        flat = [*inputs, *[tangent for tangent in tangents if tangent is not None]]
        flat += [results[number] for number in stand]
        flat += seeds
        key = tuple(
            [
                (_kind(one), one.requires_grad, one.shape, one.stride())
                if isinstance(one, torch.Tensor)
                else one
                for one in flat
            ]
        )
        first = {id(one): number for number, one in reversed(list(enumerate(flat)))}
        same = tuple([first[id(one)] for one in flat if isinstance(one, torch.Tensor)])
        key = (there, ends, stand, same, key)
        compiled = self._compiled.get(key)
        if compiled is None:
            with self._lock:
                compiled = self._compiled.get(key)
                if compiled is None:
                    compiled = self.compile_flat(
                        partial(self.gradients, there, ends, stand),
                        flat,
                        self.tools,
                        seeds=len(seeds),
                        source=self.source,
                    )
                    self._compiled[key] = compiled
        return tuple(compiled(flat))

    def gradients(
        self,
        there: tuple[bool, ...],
        ends: int,
        stand: tuple[int, ...],
        *flat: Any,
        differentiable: bool = True,
    ) -> Sequence[Any]:
        """Traced: the function again, on copies of its inputs, then its gradients by the tangents there are."""
        shared = self._metadata.shared
        count = len(self._metadata.graph_inputs)
        given, rest = flat[:count], flat[count:]
        tangents, given_results = list(rest[: sum(there)]), rest[sum(there) :]
        context = next(one.context for one in flat if isinstance(one, FakeTensor))
        assert isinstance(context, RecordingContext), "gradients are traced by this package"
        with torch.enable_grad():
            primals = [
                Fresh.apply(one, True) if isinstance(one, FakeTensor) else one for one in given
            ]
            if shared:
                numbers = numbers_of_graph_inputs(self._specs, shared)
                for one, number in zip(primals, numbers, strict=True):
                    if isinstance(one, FakeTensor) and one.record.storage.input is not None:
                        one.record.storage.input = number
                primals = members_of_storages(primals, self._specs, shared)
            observation = Observation(context, self._specs, primals, shared)
            with ExitStack() as casting:  # the call's own: a backward may come outside of the block
                for kind in ("cpu", "cuda"):
                    dtype = dict(self._metadata.autocast).get(kind)
                    casting.enter_context(
                        torch.autocast(kind, dtype, enabled=dtype is not None, cache_enabled=False)
                    )
                outputs = self._function(*primals)
            observation.observe(outputs)
            results = [value.tensor for value in observation.values if value.requires_grad]
            targets = [target for target, wanted in zip(results, there, strict=True) if wanted]
            # One for each edge of the first backward: an input without influence has none.
            wanted = [given[number] for number in self._metadata.differentiable]
            edges = observation.edges(self._metadata.points)
            stopped = {number: edges[number] for number in bits_of(ends)}
            gradients = with_standing(
                [*wanted, *stopped.values()],
                context,
                targets,
                partial(
                    torch.autograd.grad,
                    targets,
                    grad_outputs=tangents,
                    allow_unused=True,
                    create_graph=differentiable,
                ),
                ends=list(stopped.values()),
            )
            behind = {
                edge_of(edges[number]): number for number in stand
            }  # of two at one edge the point
            context.standing += [
                Standing(argument, edges[number])
                for argument, number in zip(given_results, stand, strict=True)
                if behind[edge_of(edges[number])] == number
            ]
            arrived = dict(zip(stopped, gradients[len(wanted) :], strict=True))
            gradients = gradients[: len(wanted)]
            if ends:
                gradients += [arrived.get(number) for number in self._metadata.interior]
        # A gradient that is one of the tangents would otherwise be an alias of an input.
        return [
            one.clone()
            if isinstance(one, FakeTensor) and one.record.storage.input is not None
            else one
            for one in gradients
        ]
