"""One autograd node per call of a graph with a backward.

Comes in: the compiled forward, the backward to be, and where each saved value comes from. Goes out: a boxed
callable. The forward's node keeps what the backward reads as autograd keeps it (version counters, hooks and
`retain_graph` hold by themselves) and, for gradients of gradients, references to the inputs. Invariant: what can be
decided once is decided here outside of the two functions that run at each call; saved tensors belong to nobody but
the compiled backward while it runs, so that it can free them as it goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import torch

from aot_autograd._torch import (
    applied_directly,
    clear_saved_tensors,
    keeps_graph,
    set_grad_enabled,
)
from aot_autograd.functional import contiguous_stride
from aot_autograd.runtime import (
    Epilogue,
    checked_length,
    needs_epilogue,
    sizes_of_call,
    storage_bases,
    without_effects,
)
from aot_autograd.sizes import evaluated
from aot_autograd.subclasses import is_wrapper

if TYPE_CHECKING:
    from aot_autograd.backwards import Backwards
    from aot_autograd.metadata import FunctionMetadata
    from aot_autograd.partition import Saved
    from aot_autograd.runtime import Boxed, Sizes
    from primtorch.fake import TensorMeta

Pick = Callable[[Sequence[Any]], tuple[Any, ...]]

_SECOND_BACKWARD = (
    "Trying to backward through the graph a second time (or directly access saved tensors after "
    "they have already been freed). Saved intermediate values of the graph are freed when you call "
    ".backward() or autograd.grad(). Specify retain_graph=True if you need to backward through the "
    "graph a second time or if you need to access saved tensors after calling backward."
)


@dataclass(slots=True)
class Compiled:
    """A training graph at run time.

    Attributes:
        forward: Boxed forward.
        backward: The boxed backwards.
        saved: Where each saved value comes from.
        metadata: The contract.
        forward_outputs: Number of leading outputs that are values of the function.
        total_outputs: Number of outputs of the compiled forward.
        double: Called for gradients of gradients: (inputs, seeds, tangents) -> gradients; an absent
            tangent is None.
        seeds: Positions among saved values that are seeds of random numbers.
    """

    forward: Boxed
    backward: Backwards
    saved: tuple[Saved, ...]
    metadata: FunctionMetadata
    forward_outputs: int
    total_outputs: int
    double: Callable[[list[Any], list[Any], list[Any]], Any] | None
    seeds: tuple[int, ...] = ()


def training_callable(compiled: Compiled) -> Boxed:
    """The callable of a graph with a backward."""
    metadata = compiled.metadata
    selection = metadata.graph_inputs
    whole = selection == tuple(range(metadata.inputs))
    epilogue = Epilogue(metadata) if needs_epilogue(metadata) else None
    apply = applied_directly(autograd_node(compiled))
    differentiable = picker(metadata.differentiable)
    grad_mode = torch.is_grad_enabled

    def tracked(args: list[Any], sizes: Sizes | None) -> Any:
        if grad_mode():
            return apply(args, sizes, *differentiable(args))
        set_grad_enabled(True)
        try:
            return apply(args, sizes, *differentiable(args))
        finally:
            set_grad_enabled(False)

    def call(args: list[Any]) -> Any:
        bases = storage_bases(metadata, args) if metadata.shared else []
        sizes = sizes_of_call(metadata, args)
        kept = epilogue.keep(args, bases) if epilogue is not None else None
        if not whole:
            args[:] = [
                args[position] if position >= 0 else bases[-1 - position] for position in selection
            ]
        values = tracked(args, sizes)
        if epilogue is None:
            return values
        return epilogue(kept, values, sizes)  # type: ignore[arg-type]

    def plain_call(args: list[Any]) -> Any:
        return tracked(args, None)

    plain = whole and epilogue is None and not metadata.symbols
    made = plain_call if plain else call
    made.boxed = True  # type: ignore[attr-defined]
    return made


def picker(positions: Sequence[int]) -> Pick:
    """A function that takes the values at `positions` out of a sequence."""
    match len(positions):
        case 0:
            return lambda _values: ()
        case 1:
            (only,) = positions
            return lambda values: (values[only],)
        case _:
            return itemgetter(*positions)


class Keeping:
    """What a node keeps: numbers by itself, tensors as autograd's saved tensors.

    The three parts, taken one after another, are in the order of the backward's placeholders;
    `split` puts them so, and for any other partition `in_order` does.
    """

    __slots__ = ("from_inputs", "from_outputs", "in_order", "numbers")

    def __init__(self, saved: Sequence[Saved]) -> None:
        slots: list[list[int]] = [[], [], []]
        for slot, item in enumerate(saved):
            slots[(item.origin == "output") + 1 if item.is_tensor else 0].append(slot)
        numbers, inputs, outputs = slots
        self.numbers = tuple((saved[slot].origin, saved[slot].index) for slot in numbers)
        self.from_inputs = picker([saved[slot].index for slot in inputs])
        self.from_outputs = picker([saved[slot].index for slot in outputs])
        order = [*numbers, *inputs, *outputs]
        positions = [order.index(slot) for slot in range(len(saved))]
        self.in_order = None if positions == sorted(positions) else picker(positions)


def autograd_node(compiled: Compiled) -> type[torch.autograd.Function]:
    """The `torch.autograd.Function` of one compiled graph."""
    metadata, keeping = compiled.metadata, Keeping(compiled.saved)
    take_inputs, take_outputs = keeping.from_inputs, keeping.from_outputs
    run = without_effects(compiled.forward, metadata)
    forward_outputs, total_outputs = compiled.forward_outputs, compiled.total_outputs
    unsaved = total_outputs == forward_outputs
    constant = [n for n, requires in enumerate(metadata.value_requires_grad) if not requires]
    lay_out = tangent_layout(metadata)
    gradients_expected = len(metadata.differentiable)
    keep_primals = compiled.double is not None
    backwards, everything = compiled.backward, compiled.backward.everything
    no_gradients = (None,) * gradients_expected
    pending = [backwards]  # until the forward has begun to run
    tensors: list[int] = []

    class CompiledFunction(torch.autograd.Function):
        """One call of a compiled graph."""

        @staticmethod
        def forward(ctx: Any, args: list[Any], sizes: Sizes | None, *_inputs: Any) -> Any:
            """Run the forward and save what the backward reads."""
            if pending:
                _first_call(pending, args, tensors)
            inputs = take_inputs(args)
            primals = versions = None
            if keep_primals or keeping.numbers:
                primals = args.copy()
                versions = [args[number]._version for number in tensors]
            outputs = run(args)
            if len(outputs) != total_outputs:
                checked_length(outputs, total_outputs, "forward")
            ctx.save_for_backward(*inputs, *take_outputs(outputs))
            ctx.kept = (primals, versions, _numbers(keeping, primals, outputs), sizes)
            ctx.set_materialize_grads(False)
            results = tuple(outputs) if unsaved else tuple(outputs[:forward_outputs])
            if constant:
                ctx.mark_non_differentiable(
                    *[results[n] for n in constant if isinstance(results[n], torch.Tensor)]
                )
            return results

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            """Run the backward, or its differentiable twin under `create_graph=True`."""
            saved = ctx.saved_tensors
            primals, versions, numbers, sizes = ctx.kept or (None, None, (), None)
            tangents, absent = lay_out(gradients, sizes)
            values = [*numbers, *saved]
            del saved
            if keeping.in_order is not None:
                values = list(keeping.in_order(values))
            if absent and absent == everything:
                return (None, None, *no_gradients)
            if torch.is_grad_enabled() or any(map(_is_foreign, tangents)):
                seeds = [values[slot] for slot in compiled.seeds]
                double = differentiable_backward(compiled, primals, versions)
                return (None, None, *double(list(primals or ()), seeds, tangents))
            chosen = backwards.of(absent)
            if chosen.kept is not None:
                values = [values[slot] for slot in chosen.kept]
            if absent:
                tangents = (
                    with_zeros(metadata, tangents, sizes) if chosen.zeros else _present(tangents)
                )
            values += tangents
            del tangents, primals
            clear_saved_tensors(ctx)
            if not keeps_graph():
                ctx.kept = None
            results = chosen.deferred()(values)
            if len(results) != gradients_expected:
                checked_length(results, gradients_expected, "backward")
            if chosen.unreached:
                results = _without(results, chosen.unreached)
            return (None, None, *results)

    return CompiledFunction


def _is_foreign(tangent: Any) -> bool:
    """Whether a gradient's operators are its own: the loss was of another kind than what was traced."""
    return type(tangent) is not torch.Tensor and is_wrapper(tangent)


def _first_call(pending: list[Backwards], args: Sequence[Any], tensors: list[int]) -> None:
    """Which inputs are tensors is the same at each call; the backward is compiled from now on."""
    tensors[:] = [number for number, arg in enumerate(args) if isinstance(arg, torch.Tensor)]
    while pending:
        pending.pop().start()


def _numbers(keeping: Keeping, primals: Any, outputs: Sequence[Any]) -> Sequence[Any]:
    if not keeping.numbers:
        return ()
    return [
        primals[index] if origin == "input" else outputs[index] for origin, index in keeping.numbers
    ]


def _without(results: Sequence[Any], unreached: frozenset[int]) -> list[Any]:
    """No gradient, rather than zeros, where all that a gradient is made of is absent, as in eager."""
    return [None if number in unreached else one for number, one in enumerate(results)]


def _present(tangents: list[Any]) -> list[Any]:
    return [tangent for tangent in tangents if tangent is not None]


def with_zeros(metadata: FunctionMetadata, tangents: list[Any], sizes: Sizes | None) -> list[Any]:
    """The tangents, zeros where one is absent."""
    return [
        _zeros(meta, sizes) if tangent is None else tangent
        for tangent, meta in zip(tangents, metadata.tangents, strict=True)
    ]


def tangent_layout(
    metadata: FunctionMetadata,
) -> Callable[[Sequence[Any], Sizes | None], tuple[list[Any], int]]:
    """A function that lays gradients out as the backward was promised and tells which are absent, as bits.

    An absent one stays None among those that it gives.
    """
    wanted = [n for n, requires in enumerate(metadata.value_requires_grad) if requires]
    plan = [
        (number, 1 << slot, meta, meta.stride, meta.stride == contiguous_stride(meta.shape))
        for slot, (number, meta) in enumerate(zip(wanted, metadata.tangents, strict=True))
    ]
    errors = tuple(zip(wanted, metadata.backward_errors, strict=False))

    def lay_out(gradients: Sequence[Any], sizes: Sizes | None) -> tuple[list[Any], int]:
        for number, error in errors:
            if error and gradients[number] is not None:
                raise RuntimeError(error)
        tangents: list[Any] = []
        absent = 0
        for number, bit, meta, stride, contiguous in plan:
            gradient = gradients[number]
            if gradient is None:
                absent |= bit
            elif gradient.stride() != stride or gradient.is_neg() or gradient.is_conj():
                gradient = _laid_out(gradient, meta, sizes, contiguous=contiguous)
            tangents.append(gradient)
        return tangents, absent

    return lay_out


def _zeros(meta: TensorMeta, sizes: Sizes | None) -> torch.Tensor:
    shape: Any = evaluated(meta.shape, sizes) if sizes else meta.shape
    stride: Any = evaluated(meta.stride, sizes) if sizes else meta.stride
    made = torch.empty_strided(shape, stride, dtype=meta.dtype, device=meta.device)
    return made.zero_()


def _laid_out(
    gradient: torch.Tensor, meta: TensorMeta, sizes: Sizes | None, *, contiguous: bool
) -> torch.Tensor:
    """A gradient in the layout that the compiled backward was promised."""
    if (gradient.requires_grad and torch.is_grad_enabled()) or _is_foreign(gradient):
        return gradient  # for the differentiable backward, which takes any layout
    if contiguous and not (gradient.is_neg() or gradient.is_conj()):
        return gradient.clone(memory_format=torch.contiguous_format)
    stride: Any = evaluated(meta.stride, sizes) if sizes else meta.stride
    made = torch.empty_strided(gradient.shape, stride, dtype=gradient.dtype, device=gradient.device)
    return made.copy_(gradient)


def differentiable_backward(
    compiled: Compiled, primals: Any, versions: Any
) -> Callable[[list[Any], list[Any], list[Any]], Any]:
    """The backward that can be differentiated, if the inputs still are what they were.

    Raises:
        RuntimeError: eager's own, if they are gone or were changed in between.
    """
    if compiled.double is None or primals is None:
        raise RuntimeError(_SECOND_BACKWARD)
    # What the function itself changes was read before the change: running statistics, mostly.
    own = {mutation.input for mutation in compiled.metadata.mutations}
    pairs = zip(compiled.metadata.graph_inputs, primals, strict=True)
    tensors = [pair for pair in pairs if isinstance(pair[1], torch.Tensor)]
    for (position, primal), version in zip(tensors, versions, strict=True):
        if position in own:
            continue
        if primal._version != version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: [{primal.type()} {list(primal.shape)}] is at version "
                f"{primal._version}; expected version {version} instead."
            )
    return compiled.double
