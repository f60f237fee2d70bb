"""Gradients of many by one pass: the gradients as a graph of ATen's operators, mapped by `torch.func.vmap`.

Comes in: the saved inputs of a call, and for each result its gradients along a first dimension. Goes out: the gradients
of the inputs along a first dimension. They are computed from the inputs, as for derivatives of derivatives
(`double.py`); what no gradient reaches is computed once. Invariant: where that could differ from the compiled backward
(an input was changed since, a call must not be repeated, memory is read by strides), or where a rule for mapping is
missing, nothing is answered: whoever asks runs the compiled backward for each of the many.
"""

from __future__ import annotations

import logging
import threading
import warnings
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from aot_autograd.autocast import AutocastOff
from aot_autograd.errors import AotError
from aot_autograd.tangents import tangent_outputs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import fx

    from aot_autograd.double import DoubleBackward
    from aot_autograd.runtime import Boxed
    from aot_autograd.training import Compiled, Keeping

__all__ = ["Mapped"]

_LOG = logging.getLogger("aot_autograd")
_MOST = 16  # graphs of one function, for sizes and sets of gradients
_ATEN = torch.ops.aten
_REPEATED = ("aten", "primtorch")
_BY_STRIDES = (_ATEN.as_strided, _ATEN.as_strided_scatter)
_COPYING = {
    _ATEN.view.default: _ATEN.reshape.default,
    _ATEN._unsafe_view.default: _ATEN.reshape.default,
}
"""Views of what a map may have laid out otherwise, and what copies it where it has to."""


class Mapped:
    """The gradients of many of one compiled graph.

    Args:
        compiled: The graph.
        keeping: What its node keeps.
        unchanged: Raises if the inputs that were kept are not what they were any more; of them and their versions.
    """

    __slots__ = ("_compiled", "_keeping", "_known", "_lock", "_metadata", "_unchanged", "_wanted")

    def __init__(
        self, compiled: Compiled, keeping: Keeping, unchanged: Callable[[Any, Any], Any]
    ) -> None:
        self._compiled, self._keeping, self._unchanged = compiled, keeping, unchanged
        self._metadata = compiled.metadata
        self._wanted = tangent_outputs(compiled.metadata)
        self._known: dict[Any, Boxed | None] = {}
        self._lock = threading.Lock()

    def __call__(
        self,
        context: Any,
        ends: int,
        gradients: Sequence[Any],
        many: Sequence[bool],
        wanted: Sequence[bool],
    ) -> list[Any] | None:
        """The gradients along a first dimension; None where the compiled backward has to answer.

        Args:
            context: What the call keeps.
            ends: The results at which the backward ends, as bits.
            gradients: One for each value of the graph, None where there is none.
            many: Which of them are many, along their first dimension.
            wanted: Which gradients of inputs, and of results where it ends, are asked for; for others None is given.
        """
        metadata = self._metadata
        if torch.is_grad_enabled() or metadata.made_of or any(metadata.backward_errors):
            return None
        try:
            saved = context.saved_tensors
            primals, versions, numbers, *_ = context.kept
            self._unchanged(primals, versions)
        except (RuntimeError, TypeError):
            return None  # freed, or changed: the compiled backward says so, or does without
        values = [*numbers, *saved]
        order = self._keeping.order
        seeds = [values[order[slot] if order else slot] for slot in self._compiled.seeds]
        inputs = list(primals[: len(metadata.graph_inputs)])
        given = [(gradients[place], many[place]) for place in self._wanted]
        there = tuple([one is not None for one, _ in given])
        tangents = [(one.contiguous(), is_many) for one, is_many in given if one is not None]
        examples = [one[0] if is_many else one for one, is_many in tangents]
        key = _key(there, ends, wanted, [*inputs, *examples])
        with self._lock:
            if key not in self._known:
                if len(self._known) >= _MOST:
                    self._known.clear()
                double = self._compiled.double.for_inputs(inputs)  # type: ignore[union-attr] # there are primals
                self._known[key] = _traced(
                    double, there, ends, wanted, inputs, [*examples, *seeds], len(seeds)
                )
            run = self._known[key]
        found = None if run is None else _map(run, inputs, tangents, seeds, wanted)
        if found is None:
            self._known[key] = None
        return found


def _key(there: Sequence[bool], ends: int, wanted: Sequence[bool], values: Sequence[Any]) -> Any:
    """What graphs differ by: which gradients there are, which are asked for, and how tensors look."""
    looks = [
        (one.shape, one.stride(), one.dtype, one.requires_grad)
        if isinstance(one, torch.Tensor)
        else one
        for one in values
    ]
    return tuple(there), ends, tuple(wanted), tuple(looks)


def _plain(values: Sequence[Any]) -> list[Any]:
    return [one.detach() if isinstance(one, torch.Tensor) else one for one in values]


def _traced(
    double: DoubleBackward,
    there: tuple[bool, ...],
    ends: int,
    wanted: Sequence[bool],
    inputs: list[Any],
    rest: list[Any],
    seeds: int,
) -> Boxed | None:
    refused: list[str] = []
    tracked = [isinstance(one, torch.Tensor) and one.requires_grad for one in inputs]

    def gradients(*values: Any) -> list[Any]:
        given = [
            one.detach().requires_grad_() if is_tracked else one
            for one, is_tracked in zip(values, tracked, strict=False)
        ]
        rest = values[len(given) :]
        found = double.gradients(there, ends, (), *given, *rest, differentiable=False)
        return [one for one, is_wanted in zip(found, wanted, strict=True) if is_wanted]

    compiler = partial(_by_operators, refused)
    tools = replace(
        double.tools,
        fw_compiler=compiler,
        inference_compiler=compiler,
        decompositions={},
        observer=None,
    )
    flat = _plain([*inputs, *rest])
    try:
        made = double.compile_flat(gradients, flat, tools, seeds=seeds, source=double.source)
    except Exception as error:
        if double.tools.options.strict and not isinstance(error, AotError):
            raise
        refused.append(repr(error))
    if refused:
        _LOG.debug("gradients of many are computed one by one: %s", refused[0])
        return None
    return made


def _by_operators(refused: list[str], graph: fx.GraphModule, _examples: Sequence[Any]) -> Boxed:
    """A compiler that calls the operators one after the other; what stands against mapping them goes to `refused`."""
    for node in graph.graph.nodes:
        # What other libraries do when they are called is theirs to know.
        if node.meta.get("impure") or getattr(node.target, "namespace", "aten") not in _REPEATED:
            refused.append(f"{node.target} must not be called again")
        elif getattr(node.target, "overloadpacket", None) in _BY_STRIDES:
            refused.append(f"{node.target} reads memory by strides")
        elif node.op == "call_function":
            node.target = _COPYING.get(node.target, node.target)
    graph.recompile()

    def run(args: list[Any]) -> Any:
        taken = tuple(args)
        args.clear()
        return graph.forward(*taken)

    run.boxed = True  # type: ignore[attr-defined]
    return run


def _map(
    run: Boxed,
    inputs: list[Any],
    tangents: list[tuple[torch.Tensor, bool]],
    seeds: list[Any],
    wanted: Sequence[bool],
) -> list[Any] | None:
    there: list[bool] = []
    given = _plain(inputs)

    def gradients(*tangents: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = run([*given, *tangents, *seeds])
        there[:] = [one is not None for one in found]
        return tuple([one for one in found if one is not None])

    dimensions = tuple([0 if is_many else None for _, is_many in tangents])
    try:
        with AutocastOff(), warnings.catch_warnings():
            # What torch would do for each of the many by itself the compiled backward does better.
            warnings.filterwarnings("error", "There is a performance drop")
            mapped = torch.func.vmap(gradients, dimensions, randomness="same")(
                *[one for one, _ in tangents]
            )
    except (
        RuntimeError,
        UserWarning,
    ) as error:  # an operator that can't be mapped, or is at a price
        _LOG.debug("gradients of many are computed one by one: %s", error)
        return None
    found = iter(mapped)
    present = iter(there)
    return [next(found) if is_wanted and next(present) else None for is_wanted in wanted]
