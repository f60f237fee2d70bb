"""What runs at each call: the compiled graphs between exact prologue and epilogue.

Comes in: compiled callables (boxed: `list -> tuple`, the list is emptied) and `FunctionMetadata`.
Goes out: one boxed callable with eager's effects: new values written into mutated inputs in order
and counted by version counters as eager counts, aliases rebuilt by replaying views on the real
tensors, one autograd node per call. A graph that neither mutates nor aliases gets almost no
wrapper. Invariant: nothing here looks at shapes; everything was decided when the graph was traced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from aot_autograd._torch import (
    applied_directly,
    clear_saved_tensors,
    increment_version,
    keeps_graph,
    mark_several_views,
    preserve_version,
    set_grad_enabled,
)
from aot_autograd.errors import CompilerContractError
from aot_autograd.metadata import (
    Constant,
    FunctionMetadata,
    GraphOutput,
    InputAlias,
    InputMutation,
    Making,
    SameAs,
)
from aot_autograd.sizes import evaluated

if TYPE_CHECKING:
    from aot_autograd.partition import Saved

Boxed = Callable[[list[Any]], Any]


def make_boxed_func(function: Callable[..., Any]) -> Boxed:
    """Give a callable that takes positional arguments the boxed calling convention."""

    def boxed(args: list[Any]) -> Any:
        taken = list(args)
        args.clear()
        return function(*taken)

    boxed.boxed = True  # type: ignore[attr-defined]
    return boxed


def as_boxed(compiled: Any, compiler: str) -> Boxed:
    """A compiler's result as a boxed callable.

    Raises:
        CompilerContractError: if it is not callable.
    """
    if not callable(compiled):
        raise CompilerContractError(
            f"{compiler} returned {type(compiled).__name__}",
            "a compiler must return a callable",
            "return the compiled function, or make_boxed_func(function)",
        )
    if getattr(compiled, "boxed", False) or getattr(compiled, "_boxed_call", False):
        return compiled
    return make_boxed_func(compiled)


def checked_length(results: Any, expected: int, what: str) -> Any:
    """Results of a compiled graph, when there are as many as the graph has outputs."""
    if len(results) != expected:
        raise CompilerContractError(
            f"the compiled {what} returned {len(results)} values",
            f"its graph has {expected} outputs",
            "return exactly the values of the graph's output node, None where it has None",
        )
    return results


Sizes = dict[Any, Any]


def _replay(
    chain: tuple[Any, ...], base: torch.Tensor, sizes: Sizes | None, making: Making
) -> torch.Tensor:
    """Rebuild an alias of `base`; called in grad mode."""
    if making == "detached":
        base = base.detach()
    elif not chain:
        return torch.ops.aten.alias.default(base)
    for step in chain:
        set_grad_enabled(step.grad_mode)
        base = step(base, sizes)
        if step.several and step.grad_mode and base.requires_grad:
            mark_several_views(base)
    set_grad_enabled(True)
    return base


def _write(mutation: InputMutation, target: torch.Tensor, new: torch.Tensor | None) -> None:
    """Give a mutated input its new value, counted as often as eager counts."""
    count = mutation.version_increment
    if new is not None:
        if mutation.through_autograd:
            if mutation.detached:
                target.detach_()
            target.copy_(new)
        else:
            set_grad_enabled(False)
            if count:
                target.detach().copy_(new) if target.requires_grad else target.copy_(new)
            else:
                with preserve_version(target):
                    target.detach().copy_(new)
        count -= 1
    for _ in range(count):
        increment_version(target)


def _change_layout(mutation: InputMutation, target: torch.Tensor, sizes: Sizes | None) -> None:
    """Give a mutated input its new layout by the operators that the program called."""
    for step in mutation.layout:
        set_grad_enabled(step.grad_mode)
        step(target, sizes)


def sizes_of_call(metadata: FunctionMetadata, args: list[Any]) -> Sizes | None:
    """The values of the symbols in this call; None for a graph without any."""
    if not metadata.symbols:
        return None
    return {symbol: args[position] for position, symbol in metadata.symbols}


def storage_bases(metadata: FunctionMetadata, args: list[Any]) -> list[Any]:
    """Each shared storage as one flat tensor."""
    mode = torch.is_grad_enabled()
    # In grad mode, so that a write through autograd reaches the history of all members.
    set_grad_enabled(True)
    bases = [
        torch.as_strided(args[group.members[0]], (group.length,), (1,), 0)
        for group in metadata.shared
    ]
    set_grad_enabled(mode)
    return bases


def _own_views(compiled: Boxed, metadata: FunctionMetadata) -> tuple[int, ...]:
    """Values that may come back as views; a compiler that tells layouts returns fresh tensors."""
    return () if hasattr(compiled, "output_layouts") else metadata.view_values


def _without_views(values: Any, views: tuple[int, ...]) -> list[Any]:
    """The values, none of them a view in autograd's eyes: a view of a temporary takes no change."""
    changed = list(values)
    for number in views:
        changed[number] = changed[number].detach()
    return changed


def version_bumps(metadata: FunctionMetadata) -> list[tuple[int, int]]:
    """(value, count) for values that eager changed in place after making them."""
    return [(number, count) for number, count in enumerate(metadata.value_versions) if count]


def _bump(values: Any, bumps: list[tuple[int, int]]) -> None:
    for number, count in bumps:
        for _ in range(count):
            increment_version(values[number])


def needs_epilogue(metadata: FunctionMetadata) -> bool:
    """Whether outputs of the graph differ from outputs of the function."""
    if metadata.mutations or len(metadata.outputs) != len(metadata.value_requires_grad):
        return True
    return any(
        not isinstance(output, GraphOutput) or not output.direct or output.position != number
        for number, output in enumerate(metadata.outputs)
    )


class Epilogue:
    """Writes mutations and builds the user's outputs from the graph's values."""

    __slots__ = ("_kept", "_metadata", "_mutation_values", "_outputs", "inputs")

    def __init__(self, metadata: FunctionMetadata) -> None:
        self._metadata = metadata
        self._mutation_values = metadata.mutation_values
        kept = {mutation.input for mutation in metadata.mutations}
        kept.update(out.input for out in metadata.outputs if isinstance(out, InputAlias))
        self.inputs = tuple(sorted(kept))
        """Flat inputs (or shared storages) that must stay alive until the epilogue."""

    def keep(self, args: list[Any], bases: list[Any]) -> dict[int, Any]:
        """References to the inputs that the epilogue works on."""
        return {
            position: args[position] if position >= 0 else bases[-1 - position]
            for position in self.inputs
        }

    def __call__(
        self, kept: dict[int, Any], values: Any, sizes: Sizes | None = None
    ) -> tuple[Any, ...]:
        """Write the mutations, then build the outputs."""
        metadata = self._metadata
        grad_mode = metadata.grad_mode
        try:
            for mutation in metadata.mutations:
                set_grad_enabled(mutation.through_autograd)
                position = mutation.position
                new = None if position is None else values[position]
                _write(mutation, kept[mutation.input], new)
                if mutation.layout:
                    _change_layout(mutation, kept[mutation.input], sizes)
            set_grad_enabled(True)
            first = self._mutation_values
            results: list[Any] = []
            for output in metadata.outputs:
                match output:
                    case GraphOutput():
                        value = values[first + output.position]
                        if not output.direct:
                            value = _replay(output.chain, value, sizes, output.making)
                        results.append(value)
                    case InputAlias():
                        value = kept[output.input]
                        if not output.identical:
                            value = _replay(output.chain, value, sizes, output.making)
                        results.append(value)
                    case SameAs():
                        results.append(results[output.output])
                    case Constant():
                        results.append(output.value)
            for mutation in metadata.mutations:
                if mutation.detached and not mutation.through_autograd:
                    kept[mutation.input].detach_()
        finally:
            set_grad_enabled(grad_mode)
        return tuple(results)


def inference_callable(compiled: Boxed, metadata: FunctionMetadata, *, tracks: bool) -> Boxed:
    """The callable of a graph without a backward.

    Args:
        compiled: Boxed.
        metadata: The contract.
        tracks: Whether grad mode is on at the call and some input requires a gradient, so that
            operators called by `compiled` must be kept from recording.
    """
    selection = metadata.graph_inputs
    whole = selection == tuple(range(metadata.inputs))
    bumps = version_bumps(metadata)
    views = _own_views(compiled, metadata)
    plain = (
        whole and not needs_epilogue(metadata) and not metadata.autocast and not bumps and not views
    )
    if plain and not tracks:
        return compiled
    expected = len(metadata.value_requires_grad)
    epilogue = Epilogue(metadata) if needs_epilogue(metadata) else None
    off = _autocast_switch(metadata)

    def call(args: list[Any]) -> Any:
        bases = storage_bases(metadata, args) if metadata.shared else []
        sizes = sizes_of_call(metadata, args)
        kept = epilogue.keep(args, bases) if epilogue is not None else None
        if not whole:
            args[:] = [
                args[position] if position >= 0 else bases[-1 - position] for position in selection
            ]
        mode = torch.is_grad_enabled()
        set_grad_enabled(False)
        try:
            with off():
                values = compiled(args)
        finally:
            set_grad_enabled(mode)
        if views:
            values = _without_views(values, views)
        if bumps:
            _bump(values, bumps)
        if epilogue is None:
            return values
        return epilogue(kept, checked_length(values, expected, "graph"), sizes)  # type: ignore[arg-type]

    call.boxed = True  # type: ignore[attr-defined]
    return call


@dataclass(slots=True)
class Compiled:
    """A training graph at run time.

    Attributes:
        forward: Boxed forward.
        backward: Called with no argument, yields the boxed backward (compiled on demand).
        saved: Where each saved value comes from.
        metadata: The contract.
        forward_outputs: Number of leading outputs that are values of the function.
        total_outputs: Number of outputs of the compiled forward.
        double: Called for gradients of gradients: (inputs, seeds, tangents) -> gradients.
        seeds: Positions among saved values that are seeds of random numbers.
        reach: For each gradient the tangents that it is made of, as bits.
    """

    forward: Boxed
    backward: Callable[[], Boxed]
    saved: tuple[Saved, ...]
    metadata: FunctionMetadata
    forward_outputs: int
    total_outputs: int
    double: Callable[[list[Any], list[Any], list[Any]], Any] | None
    seeds: tuple[int, ...] = ()
    reach: tuple[int, ...] = ()


def training_callable(compiled: Compiled) -> Boxed:
    """The callable of a graph with a backward: one autograd node per call."""
    metadata = compiled.metadata
    selection = metadata.graph_inputs
    whole = selection == tuple(range(metadata.inputs))
    differentiable = metadata.differentiable
    epilogue = Epilogue(metadata) if needs_epilogue(metadata) else None
    apply = applied_directly(autograd_node(compiled))

    def call(args: list[Any]) -> Any:
        bases = storage_bases(metadata, args) if metadata.shared else []
        sizes = sizes_of_call(metadata, args)
        kept = epilogue.keep(args, bases) if epilogue is not None else None
        if not whole:
            args[:] = [
                args[position] if position >= 0 else bases[-1 - position] for position in selection
            ]
        inputs = [args[number] for number in differentiable]
        mode = torch.is_grad_enabled()
        if not mode:
            set_grad_enabled(True)
        try:
            values = apply(args, sizes, *inputs)
        finally:
            if not mode:
                set_grad_enabled(False)
        if epilogue is None:
            return values
        return epilogue(kept, values, sizes)  # type: ignore[arg-type]

    call.boxed = True  # type: ignore[attr-defined]
    return call


def autograd_node(compiled: Compiled) -> type[torch.autograd.Function]:
    """The `torch.autograd.Function` of one compiled graph."""
    metadata = compiled.metadata
    forward, saved = compiled.forward, compiled.saved
    forward_outputs, total_outputs = compiled.forward_outputs, compiled.total_outputs
    saved_inputs = [(slot, item.index) for slot, item in enumerate(saved) if item.origin == "input"]
    saved_outputs = [
        (slot, item.index) for slot, item in enumerate(saved) if item.origin == "output"
    ]
    tensors = [slot for slot, item in enumerate(saved) if item.is_tensor]
    numbers = [slot for slot, item in enumerate(saved) if not item.is_tensor]
    constant_outputs = [
        number for number, requires in enumerate(metadata.value_requires_grad) if not requires
    ]
    wanted = [number for number, requires in enumerate(metadata.value_requires_grad) if requires]
    slots = len(saved)
    bumps = version_bumps(metadata)
    views = _own_views(forward, metadata)
    off = _autocast_switch(metadata)
    differentiable = metadata.differentiable
    keep_primals = compiled.double is not None
    tensor_inputs: list[int] | None = None

    class CompiledFunction(torch.autograd.Function):
        """One call of a compiled graph."""

        @staticmethod
        def forward(ctx: Any, args: list[Any], sizes: Sizes | None, *_inputs: Any) -> Any:
            """Run the forward and save what the backward reads."""
            nonlocal tensor_inputs
            values: list[Any] = [None] * slots
            for slot, index in saved_inputs:
                values[slot] = args[index]
            if keep_primals:
                ctx.primals = tuple(args)
                if tensor_inputs is None:  # which inputs are tensors is the same at each call
                    tensor_inputs = [
                        n for n, arg in enumerate(args) if isinstance(arg, torch.Tensor)
                    ]
                ctx.versions = [args[number]._version for number in tensor_inputs]
            with off():
                outputs = forward(args)
            if len(outputs) != total_outputs:
                checked_length(outputs, total_outputs, "forward")
            if views:
                outputs = _without_views(outputs, views)
            if bumps:
                _bump(outputs, bumps)
            for slot, index in saved_outputs:
                values[slot] = outputs[index]
            ctx.save_for_backward(*[values[slot] for slot in tensors])
            ctx.numbers = [values[slot] for slot in numbers]
            ctx.sizes = sizes
            ctx.set_materialize_grads(False)
            results = tuple(outputs[:forward_outputs])
            if constant_outputs:
                ctx.mark_non_differentiable(
                    *[
                        results[number]
                        for number in constant_outputs
                        if isinstance(results[number], torch.Tensor)
                    ]
                )
            return results

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            """Run the backward, or its differentiable twin under `create_graph=True`."""
            if metadata.backward_error:
                raise RuntimeError(metadata.backward_error)
            kept = ctx.saved_tensors
            sizes = ctx.sizes
            tangents = [
                _laid_out(gradients[number], meta, sizes)
                for number, meta in zip(wanted, metadata.tangents, strict=True)
            ]
            if torch.is_grad_enabled():
                return (None, None, *_differentiable_backward(compiled, ctx, kept, tangents))
            absent = sum(1 << slot for slot, n in enumerate(wanted) if gradients[n] is None)
            values = [*ctx.numbers, *kept, *tangents]
            del kept, tangents
            clear_saved_tensors(ctx)
            if keep_primals and not keeps_graph():
                ctx.primals = None
            results = compiled.backward()(values)
            if len(results) != len(differentiable):
                checked_length(results, len(differentiable), "backward")
            if absent:
                results = _without_unreached(results, compiled.reach, absent)
            return (None, None, *results)

    return CompiledFunction


def _without_unreached(
    results: Sequence[Any], reach: Sequence[int], absent: int
) -> tuple[Any, ...]:
    """No gradient, rather than zeros, where all that a gradient is made of is absent, as in eager."""
    return tuple(
        None if sources and not sources & ~absent else result
        for result, sources in zip(results, reach, strict=True)
    )


def _laid_out(tangent: Any, meta: Any, sizes: Sizes | None) -> torch.Tensor:
    """A gradient in the layout that the compiled backward was promised."""
    stride = meta.stride
    if sizes:
        stride = tuple(evaluated(stride, sizes))
    if tangent is None:
        shape = evaluated(meta.shape, sizes) if sizes else meta.shape
        made: torch.Tensor = torch.empty_strided(
            shape, stride, dtype=meta.dtype, device=meta.device
        )
        return made.zero_()
    if tangent.stride() == stride and not (tangent.is_conj() or tangent.is_neg()):
        return tangent
    if tangent.requires_grad and torch.is_grad_enabled():
        return tangent
    made = torch.empty_strided(tangent.shape, stride, dtype=tangent.dtype, device=tangent.device)
    return made.copy_(tangent)


def _differentiable_backward(
    compiled: Compiled, ctx: Any, kept: tuple[Any, ...], tangents: list[Any]
) -> Any:
    """Gradients that can be differentiated again, recomputed from the inputs."""
    if compiled.double is None or ctx.primals is None:
        raise RuntimeError(
            "Trying to backward through the graph a second time (or directly access saved tensors "
            "after they have already been freed). Saved intermediate values of the graph are freed "
            "when you call .backward() or autograd.grad(). Specify retain_graph=True if you need "
            "to backward through the graph a second time or if you need to access saved tensors "
            "after calling backward."
        )
    # What the function itself changes was read before the change: running statistics, mostly.
    own = {mutation.input for mutation in compiled.metadata.mutations}
    positions = compiled.metadata.graph_inputs
    pairs = zip(positions, ctx.primals, strict=True)
    tensors = [pair for pair in pairs if isinstance(pair[1], torch.Tensor)]
    for (position, primal), version in zip(tensors, ctx.versions, strict=True):
        if position in own:
            continue
        if primal._version != version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: [{primal.type()} {list(primal.shape)}] is at version "
                f"{primal._version}; expected version {version} instead."
            )
    everything = [*ctx.numbers, *kept]
    seeds = [everything[slot] for slot in compiled.seeds]
    return compiled.double(list(ctx.primals), seeds, tangents)


class _Nothing:
    """A context that does nothing, without contextlib's cost."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


class _AutocastOff:
    """Operators called by a compiled graph carry their casts already."""

    __slots__ = ("_enabled",)

    def __enter__(self) -> None:
        self._enabled = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
        for kind in self._enabled:
            torch.set_autocast_enabled(kind, False)

    def __exit__(self, *_: object) -> None:
        for kind in self._enabled:
            torch.set_autocast_enabled(kind, True)


_NOTHING = _Nothing()


def _nothing() -> _Nothing:
    return _NOTHING


def _autocast_switch(metadata: FunctionMetadata) -> Callable[[], Any]:
    return _AutocastOff if metadata.autocast else _nothing
