"""The autograd functions of the nodes of a call with several results, and what runs in them: the Python form.

Comes in: a call (`nodes.OfCall`), whose backward decides what runs. Goes out: two functions, of inputs' and of results'
nodes. Invariant: `_nodes.c` has the same steps for what is not rare.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import ref

import torch

from aot_autograd._torch import answer_at_once, call_backward_directly

if TYPE_CHECKING:
    from collections.abc import Callable

    from aot_autograd.nodes import OfCall

__all__ = ["Steps", "functions_of_nodes"]


class _Hookable:
    """Part of a result's context: notes hooks of the node and of the result, which see the gradient that arrives."""

    __slots__ = ()

    call: OfCall
    number: int

    def _register_hook_dict(self, tensor: torch.Tensor) -> None:
        """As autograd has it: from now on it calls what is in the tensor's dict of hooks."""
        call = self.call
        with call.nodes.lock:
            call.hooks = {**(call.hooks or {}), self.number: tensor._backward_hooks}
        super()._register_hook_dict(tensor)  # type: ignore[misc] # of the node's class

    def register_prehook(self, hook: Callable[..., Any]) -> Any:
        """As autograd has it."""
        self.call.hooked |= 1 << self.number
        return super().register_prehook(hook)  # type: ignore[misc] # of the node's class

    def register_hook(self, hook: Callable[..., Any]) -> Any:
        """As autograd has it."""
        self.call.hooked |= 1 << self.number
        return super().register_hook(hook)  # type: ignore[misc] # of the node's class


class Steps:
    """What runs in the nodes: the Python form."""

    __slots__ = ()

    @staticmethod
    def inputs_forward(ctx: Any, number: int, token: torch.Tensor, *_inputs: Any) -> torch.Tensor:
        """The token."""
        ctx.number = number  # a ticket is never absent
        return token.detach()

    @staticmethod
    def inputs_backward(ctx: Any, ticket: Any) -> Any:
        """Their gradients."""
        running = ticket.running
        return None, None, *running.take(running.call.nodes.inputs[ctx.number])

    @staticmethod
    def results_forward(
        ctx: Any, call: OfCall, number: int, value: list[torch.Tensor], *_edges: Any
    ) -> torch.Tensor:
        """The result, as a tensor that only its memory and version connects with the whole call's."""
        ctx.set_materialize_grads(False)
        ctx.number = number
        ctx.call = call
        call.results[number] = ref(ctx)
        if number == call.nodes.first:
            ctx.held = {}
        return value[0].detach()

    @staticmethod
    def results_backward(ctx: Any, gradient: Any) -> Any:
        """A ticket for each inputs' node that has none yet."""
        call, number = ctx.call, ctx.number
        running = call.of_now()
        running.arrive(number, gradient)
        sent = running.sent(number)
        nodes = call.nodes
        if number in nodes.alone:
            return None, None, None, None
        edges = nodes.edges[number]
        tickets: list[Any] = [None] * len(edges)
        ticket = None
        for place, at in enumerate(edges):
            if not running.ticketed >> at & 1:
                running.ticketed |= 1 << at
                if ticket is None:
                    ticket = nodes.token.detach()
                    ticket.running = running
                tickets[place] = ticket
        if sent:
            sent.append(None)
        if number == nodes.first:
            ctx.held.pop(running.number, None)
            return None, None, None, *tickets, *sent, *running.take(nodes.own_inputs)
        if nodes.leading_to_first >> number & 1:
            running.hold()
        return None, None, None, *tickets, *sent


def functions_of_nodes(
    kind: type, steps: Any
) -> tuple[type[torch.autograd.Function], type[torch.autograd.Function]]:
    """The autograd functions of inputs' and of results' nodes of one graph."""

    class CompiledInputs(torch.autograd.Function, metaclass=kind):  # type: ignore[metaclass] # chosen by the caller
        """Inputs that the same results lead to -> a token, which those results are made from."""

        forward = staticmethod(steps.inputs_forward)
        backward = staticmethod(steps.inputs_backward)
        setup_context = staticmethod(torch.autograd.Function.setup_context)
        clear_saved_tensors_on_access = False
        boxed_grads_call = False

    class CompiledResult(torch.autograd.Function, metaclass=kind):  # type: ignore[metaclass] # chosen by the caller
        """Tokens, and results that it is made of -> a result that leads to these and to the tokens' inputs."""

        forward = staticmethod(steps.results_forward)
        backward = staticmethod(steps.results_backward)
        setup_context = staticmethod(torch.autograd.Function.setup_context)
        clear_saved_tensors_on_access = False
        boxed_grads_call = False

    call_backward_directly(CompiledInputs, "number")
    call_backward_directly(CompiledResult, "number", "call", "held", bases=(_Hookable,))
    answer_at_once(CompiledInputs)
    answer_at_once(CompiledResult)
    return CompiledInputs, CompiledResult
