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
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

import torch

from aot_autograd._torch import (
    apply_without_transforms,
    call_backward_directly,
    keeps_graph,
    set_grad_enabled,
    transforms_active,
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
    node = autograd_node(compiled)
    apply = apply_without_transforms(node)
    differentiable = picker(metadata.differentiable)
    grad_mode = torch.is_grad_enabled

    def tracked(args: list[Any], sizes: Sizes | None) -> Any:
        of_now = node.apply if transforms_active() else apply
        if grad_mode():
            return of_now(args, sizes, *differentiable(args))
        set_grad_enabled(True)
        try:
            return of_now(args, sizes, *differentiable(args))
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
        if transforms_active() or not grad_mode():
            return tracked(args, None)
        return apply(args, None, *differentiable(args))

    plain = whole and epilogue is None and not metadata.symbols
    made = plain_call if plain else call
    made.boxed = True  # type: ignore[attr-defined]
    return made


def picker(positions: Sequence[int]) -> Pick:
    """A function that takes the values at `positions` out of a sequence."""
    count = len(positions)
    if not count:
        return lambda _values: ()
    first = positions[0]
    if tuple(positions) == tuple(range(first, first + count)):  # a slice also of one
        return itemgetter(slice(first, first + count))
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
    constant = [n for n, requires in enumerate(metadata.value_requires_grad) if not requires]
    keep_primals = compiled.double is not None or bool(keeping.numbers)
    rewritten = metadata.rewritten if compiled.double is not None else ()
    read_before = frozenset(metadata.read_before)
    pending = [compiled.backward]  # until the forward has begun to run
    tensors: list[int] = []
    versions_of: Callable[[Sequence[Any]], list[int]] = _no_versions

    def first_call(args: Sequence[Any]) -> None:
        """Which inputs are tensors is the same at each call; the backward is compiled from now on."""
        nonlocal versions_of
        tensors[:] = [number for number, arg in enumerate(args) if isinstance(arg, torch.Tensor)]
        versions_of = _versions(tensors, len(args))
        while pending:
            pending.pop().start()

    class CompiledFunction(torch.autograd.Function):
        """One call of a compiled graph."""

        @staticmethod
        def forward(ctx: Any, args: list[Any], sizes: Sizes | None, *_inputs: Any) -> Any:
            """Run the forward and save what the backward reads."""
            if pending:
                first_call(args)
            inputs = take_inputs(args)
            primals = versions = None
            if keep_primals:
                primals = args.copy()
                if rewritten:
                    _keep_before(primals, rewritten, read_before)
                versions = versions_of(primals)
            outputs = run(args)
            if len(outputs) != total_outputs:
                checked_length(outputs, total_outputs, "forward")
            ctx.save_for_backward(*inputs, *take_outputs(outputs))
            numbers = _numbers(keeping, primals, outputs) if keeping.numbers else ()
            ctx.kept = (primals, versions, numbers, sizes)
            ctx.set_materialize_grads(False)
            results = tuple(outputs[:forward_outputs])
            if constant:
                ctx.mark_non_differentiable(
                    *[results[n] for n in constant if isinstance(results[n], torch.Tensor)]
                )
            return results

        backward = staticmethod(_backward_of(compiled, keeping))

    call_backward_directly(CompiledFunction, "kept")
    return CompiledFunction


def _backward_of(compiled: Compiled, keeping: Keeping) -> Callable[..., Any]:
    """What autograd calls: the compiled backward, or its differentiable twin under `create_graph=True`."""
    metadata, in_order = compiled.metadata, keeping.in_order
    lay_out = tangent_layout(metadata)
    gradients_expected = len(metadata.differentiable)
    backwards, everything = compiled.backward, compiled.backward.everything
    known = backwards.known
    grad_mode = torch.is_grad_enabled

    def backward(ctx: Any, *gradients: Any) -> Any:
        saved = ctx.saved_tensors
        primals, versions, numbers, sizes = ctx.kept or (None, None, (), None)
        tangents, absent, foreign = lay_out(gradients, sizes)
        values = [*numbers, *saved]
        del saved
        if in_order is not None:
            values = list(in_order(values))
        if absent and absent == everything:
            return (None, None, *[None] * gradients_expected)
        if foreign or grad_mode():
            seeds = [values[slot] for slot in compiled.seeds]
            double = differentiable_backward(compiled, primals, versions)
            return (None, None, *double(list(primals or ()), seeds, tangents))
        chosen = known.get(absent) or backwards.of(absent)
        run = chosen.deferred.made or chosen.deferred()
        if chosen.kept is not None:
            values = [values[slot] for slot in chosen.kept]
        if absent:
            tangents = with_zeros(metadata, tangents, sizes) if chosen.zeros else _present(tangents)
        values += tangents
        del tangents, primals
        if not keeps_graph():
            ctx.maybe_clear_saved_tensors()  # the compiled backward frees them as it goes
            ctx.kept = None
        results = run(values)
        if len(results) != gradients_expected:
            checked_length(results, gradients_expected, "backward")
        if chosen.unreached:
            results = _without(results, chosen.unreached)
        return (None, None, *results)

    return backward


_version_of = attrgetter("_version")


def _no_versions(_args: Sequence[Any]) -> list[int]:
    return []


def _versions(tensors: Sequence[int], count: int) -> Callable[[Sequence[Any]], list[int]]:
    """A function that gives the version counters of a call's tensors, which are at these of `count` places."""
    take = (lambda args: args) if len(tensors) == count else picker(tensors)

    def versions(args: Sequence[Any]) -> list[int]:
        try:
            return list(map(_version_of, take(args)))
        except RuntimeError:  # a tensor made in inference mode counts nothing
            return [0 if tensor.is_inference() else tensor._version for tensor in take(args)]

    return versions


def _keep_before(
    primals: list[Any], rewritten: Sequence[int], read_before: frozenset[int]
) -> None:
    """Put tensors that stay as they are in the place of inputs that the function will change.

    What derivatives of derivatives read is copied, with its history. Of the others only the metadata matters; the
    input itself, whose new history leads to the node that keeps it, would never be freed.
    """
    with torch.enable_grad():
        for number in rewritten:
            primal = primals[number]
            if number in read_before:
                primals[number] = primal.clone()
            else:
                primals[number] = primal.detach().requires_grad_(primal.requires_grad)


def _is_foreign(tangent: Any) -> bool:
    """Whether a gradient's operators are its own: the loss was of another kind than what was traced."""
    return type(tangent) is not torch.Tensor and is_wrapper(tangent)


def _numbers(keeping: Keeping, primals: Any, outputs: Sequence[Any]) -> list[Any]:
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
) -> Callable[[Sequence[Any], Sizes | None], tuple[list[Any], int, bool]]:
    """A function that lays gradients out as the backward was promised.

    It tells which are absent, as bits, and whether the operators of one are its own. An absent one
    stays None among those that it gives.
    """
    wanted = [n for n, requires in enumerate(metadata.value_requires_grad) if requires]
    plan = [
        (number, 1 << slot, meta, meta.stride == contiguous_stride(meta.shape))
        for slot, (number, meta) in enumerate(zip(wanted, metadata.tangents, strict=True))
    ]
    pairs = zip(wanted, metadata.backward_errors, strict=False)
    errors = [(number, error) for number, error in pairs if error]
    plain = torch.Tensor

    def lay_out(gradients: Sequence[Any], sizes: Sizes | None) -> tuple[list[Any], int, bool]:
        for number, error in errors:
            if gradients[number] is not None:
                raise RuntimeError(error)
        tangents: list[Any] = []
        absent, foreign = 0, False
        for number, bit, meta, contiguous in plan:
            gradient = gradients[number]
            if gradient is None:
                absent |= bit
            elif not (
                contiguous
                and type(gradient) is plain
                and gradient.is_contiguous()
                and not gradient.is_neg()
                and not gradient.is_conj()
            ):
                if _is_foreign(gradient):
                    foreign = True
                else:
                    gradient = _laid_out(gradient, meta, sizes, contiguous=contiguous)
            tangents.append(gradient)
        return tangents, absent, foreign

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
    if gradient.requires_grad and torch.is_grad_enabled():
        return gradient  # for the differentiable backward, which takes any layout
    if gradient.layout is not torch.strided:
        gradient = gradient.to_dense()
    if gradient.is_neg() or gradient.is_conj():
        gradient = gradient.resolve_conj().resolve_neg()
    if contiguous:
        return gradient.contiguous()
    stride: Any = evaluated(meta.stride, sizes) if sizes else meta.stride
    if gradient.stride() == stride:
        return gradient
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
    # What the function itself changes was kept before the change, or not read: running statistics, mostly.
    own = compiled.metadata.rewritten
    tensors = [pair for pair in enumerate(primals) if isinstance(pair[1], torch.Tensor)]
    for (number, primal), version in zip(tensors, versions, strict=True):
        if number in own:
            continue
        if not primal.is_inference() and primal._version != version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: [{primal.type()} {list(primal.shape)}] is at version "
                f"{primal._version}; expected version {version} instead."
            )
    return compiled.double
