"""What runs at each call: the compiled graphs between exact prologue and epilogue.

Comes in: compiled callables (boxed: `list -> tuple`, the list is emptied) and `FunctionMetadata`.
Goes out: one boxed callable with eager's effects: new values written into mutated inputs in order
and counted by version counters as eager counts, aliases rebuilt by replaying views on the real
tensors, autograd nodes. A graph that neither mutates nor aliases gets almost no
wrapper. Invariant: nothing here looks at shapes; everything was decided when the graph was traced.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import torch

from aot_autograd._torch import (
    increment_version,
    made_in_inference_mode,
    mark_several_views,
    preserve_version,
    set_grad_enabled,
)
from aot_autograd.aliasing import base_of
from aot_autograd.autocast import AutocastOff
from aot_autograd.errors import CompilerContractError, UnsupportedAliasing
from aot_autograd.metadata import (
    Constant,
    FunctionMetadata,
    GraphOutput,
    InputAlias,
    InputMutation,
    Making,
    SameAs,
    SharedStorage,
    ViewStep,
)

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
    """Results of a compiled graph, when they are a tuple or list of as many as the graph has outputs."""
    sequence = isinstance(results, (tuple, list))
    if not sequence or len(results) != expected:
        found = f"{len(results)} values" if sequence else f"a {type(results).__name__}, no tuple"
        raise CompilerContractError(
            f"the compiled {what} returned {found}",
            f"its graph has {expected} outputs",
            "return exactly the values of the graph's output node, None where it has None",
        )
    return results


Sizes = dict[Any, Any]

_AS_REAL = torch.ops.aten.view_as_real.default


def _replay(
    chain: tuple[Any, ...], base: torch.Tensor, sizes: Sizes | None, making: Making
) -> torch.Tensor:
    """Rebuild an alias of `base`; called in grad mode."""
    if making == "detached":
        base = base.detach()
    elif making == "severed":
        base = base.data
    elif making == "view" and not chain:
        return torch.ops.aten.alias.default(base)
    steps = iter(chain)
    for step in steps:
        set_grad_enabled(step.grad_mode)
        if step.operator is _AS_REAL and base.is_conj():
            base = _part_of_conjugate(base, next(steps, None))
        else:
            base = step(base, sizes)
        if step.several and step.grad_mode and base.requires_grad:
            mark_several_views(base)
    set_grad_enabled(True)
    if making == "then detached":
        return base.detach()
    return base.data if making == "then severed" else base


def _part_of_conjugate(tensor: torch.Tensor, selection: ViewStep | None) -> torch.Tensor:
    """The real or imaginary part of a tensor that is lazily conjugated, as eager takes it.

    Where values are what they seem, as in a graph, it is a selection from a view as real numbers, which a lazy
    tensor refuses.
    """
    if selection is None or selection.operator is not torch.ops.aten.select.int:
        return torch.view_as_real(tensor)  # raises what eager raises
    return tensor.imag if selection.arguments[1] else tensor.real


def _write(mutation: InputMutation, target: torch.Tensor, new: torch.Tensor | None) -> None:
    """Give a mutated input its new value, counted as often as eager counts.

    A compiler may have computed the value where it belongs (`meta["written"]`).
    """
    count = mutation.version_increment
    if new is not None and not _same_memory(new, target):
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
    _count(target, count)


def _same_memory(new: torch.Tensor, target: torch.Tensor) -> bool:
    return new is target or (
        new.data_ptr() == target.data_ptr() and new.stride() == target.stride()
    )


def _count(tensor: torch.Tensor, changes: int) -> None:
    for _ in range(changes):
        increment_version(tensor)


def _change_layout(mutation: InputMutation, target: torch.Tensor, sizes: Sizes | None) -> None:
    """Give a mutated input its new layout by the operators that the program called."""
    if mutation.detached and not mutation.through_autograd:
        target.detach_()  # no view of its history is among the outputs
    for step in mutation.layout:
        set_grad_enabled(step.grad_mode)
        step(target, sizes)


def _change(
    mutation: InputMutation, target: torch.Tensor, values: Any, sizes: Sizes | None
) -> None:
    """Make a change of an input, in the grad mode in which the program made it."""
    set_grad_enabled(mutation.through_autograd)
    _write(mutation, target, None if mutation.position is None else values[mutation.position])
    if mutation.layout:
        _change_layout(mutation, target, sizes)


def look_at_histories(metadata: FunctionMetadata, kept: dict[int, Any]) -> None:
    """Let returned members of a storage that was written as a whole have their new history at once.

    Autograd gives it to a view when it is looked at, and loses what a tensor that was not looked at retains.
    """
    for output in metadata.outputs:
        if isinstance(output, InputAlias) and output.identical:
            with suppress(RuntimeError):  # it was made under no_grad: whoever looks at it is told
                _ = kept[output.input].grad_fn


def sizes_of_call(metadata: FunctionMetadata, args: list[Any]) -> Sizes | None:
    """The values of the symbols in this call; None for a graph without any."""
    if not metadata.symbols:
        return None
    return {symbol: args[position] for position, symbol in metadata.symbols}


def _flat_base(group: SharedStorage, members: list[torch.Tensor]) -> torch.Tensor:
    base = base_of(members[0])
    if group.one_base and any(base_of(member) is not base for member in members):
        raise UnsupportedAliasing(
            "calling a compiled graph",
            "its inputs were views of one tensor when it was compiled, and now they are not",
            "compile again for these inputs",
        )
    return torch.as_strided(base, (group.length,), (1,), 0)


def storage_bases(metadata: FunctionMetadata, args: list[Any]) -> list[Any]:
    """Each shared storage as one flat tensor."""
    mode = torch.is_grad_enabled()
    # In grad mode, so that a write through autograd reaches the history of all members.
    set_grad_enabled(True)
    bases = [
        _flat_base(group, [args[member] for member in group.members]) for group in metadata.shared
    ]
    set_grad_enabled(mode)
    return bases


def without_effects(compiled: Boxed, metadata: FunctionMetadata) -> Boxed:
    """A compiled graph whose values look as if eager had made them, each a tensor of its own.

    Its operators carry their casts already, so autocast is off while it runs; a view of a
    temporary takes no change, so it becomes a tensor that is no view (a compiler that tells
    layouts returns none); what eager changed in place after making it is counted; what the function
    made in inference mode is a tensor of that mode.
    """
    views = () if hasattr(compiled, "output_layouts") else metadata.view_values
    bumps = [(number, count) for number, count in enumerate(metadata.value_versions) if count]
    inference = metadata.inference_values
    if not (views or bumps or inference or metadata.autocast):
        return compiled
    off = AutocastOff if metadata.autocast else nullcontext

    def run(args: list[Any]) -> Any:
        with off():
            values = compiled(args)
        if views or inference:
            values = list(values)
            for number in views:
                values[number] = values[number].detach()
            for number in inference:
                values[number] = made_in_inference_mode(values[number])
        for number, count in bumps:
            _count(values[number], count)
        return values

    return run


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

    __slots__ = ("_several_steps", "earlier", "inputs", "metadata", "mutation_values")

    def __init__(self, metadata: FunctionMetadata) -> None:
        self.metadata = metadata
        self.mutation_values = metadata.mutation_values
        self._several_steps = any(getattr(one, "of", None) is not None for one in metadata.outputs)
        self.earlier = tuple(
            (number, output)
            for number, output in enumerate(metadata.outputs)
            if isinstance(output, InputAlias) and output.earlier
        )
        kept = {mutation.input for mutation in metadata.mutations}
        kept.update(out.input for out in metadata.outputs if isinstance(out, InputAlias))
        kept.update(-1 - key for key in (*metadata.points, *metadata.beside) if key < 0)
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
        if self._several_steps:
            return self.begun(kept, sizes).finish(values)
        metadata = self.metadata
        grad_mode = metadata.grad_mode
        try:
            set_grad_enabled(True)
            made = {
                number: _replay(output.chain, kept[output.input], sizes, output.making)
                for number, output in self.earlier
            }
            for mutation in metadata.mutations:
                _change(mutation, kept[mutation.input], values, sizes)
            set_grad_enabled(True)
            if metadata.shared:
                look_at_histories(metadata, kept)
            first = self.mutation_values
            results: list[Any] = []
            for number, output in enumerate(metadata.outputs):
                match output:
                    case GraphOutput():
                        value = values[first + output.position]
                        if not output.direct:
                            value = _replay(output.chain, value, sizes, output.making)
                            _count(value, output.version)
                        results.append(value)
                    case InputAlias():
                        value = made[number] if output.earlier else kept[output.input]
                        if not (output.identical or output.earlier):
                            value = _replay(output.chain, value, sizes, output.making)
                            _count(value, output.version)
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

    def begun(self, kept: dict[int, Any], sizes: Sizes | None = None) -> Building:
        """The epilogue of one call, for who makes some of it in between."""
        return Building(self, kept, sizes)


class Building:
    """The epilogue of one call in steps: writes each mutation once, and builds each output once.

    A part may be made before the end, when the values that it is made of are there: an output is made after the
    writes into its base. Grad mode is on before and after each step.
    """

    __slots__ = ("_earlier", "_epilogue", "_kept", "_made", "_sizes", "_written")

    def __init__(self, epilogue: Epilogue, kept: dict[int, Any], sizes: Sizes | None) -> None:
        self._epilogue, self._kept, self._sizes = epilogue, kept, sizes
        self._earlier: dict[int, torch.Tensor] | None = None
        self._made: dict[int, Any] = {}
        self._written: set[int] = set()

    def point(self, key: int, values: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        """A point (`FunctionMetadata.points`) from the values that are there, and what it is a view of.

        None if it is an argument that is written.
        """
        if key < 0:
            self._write(-1 - key, values)
            return self._kept[-1 - key], None
        output: Any = self._epilogue.metadata.outputs[key]
        if isinstance(output, InputAlias):
            self._write(output.input, values)
        return self._output(key, values), self._base(output, values)

    def finish(self, values: Any) -> tuple[Any, ...]:
        """All outputs, when all writes are done."""
        metadata = self._epilogue.metadata
        try:
            set_grad_enabled(True)
            self._write(None, values)
            results = tuple([self._output(n, values) for n in range(len(metadata.outputs))])
            if metadata.shared:
                look_at_histories(metadata, self._kept)
            for mutation in metadata.mutations:
                if mutation.detached and not mutation.through_autograd:
                    self._kept[mutation.input].detach_()
        finally:
            set_grad_enabled(metadata.grad_mode)
        return results

    def _write(self, position: int | None, values: Any) -> None:
        """Write into an input, or into all of them, what isn't written yet."""
        if self._earlier is None:
            self._earlier = {
                number: _replay(output.chain, self._kept[output.input], self._sizes, output.making)
                for number, output in self._epilogue.earlier
            }
        for number, mutation in enumerate(self._epilogue.metadata.mutations):
            if number in self._written or position not in (None, mutation.input):
                continue
            self._written.add(number)
            _change(mutation, self._kept[mutation.input], values, self._sizes)
        set_grad_enabled(True)

    def _output(self, number: int, values: Any) -> Any:
        if number not in self._made:
            self._made[number] = self._built(number, values)
        return self._made[number]

    def _built(self, number: int, values: Any) -> Any:
        output = self._epilogue.metadata.outputs[number]
        match output:
            case GraphOutput(direct=True) | InputAlias(identical=True):
                return self._base(output, values)
            case InputAlias(earlier=True):
                assert self._earlier is not None, (
                    "what is written is written before outputs are built"
                )
                return self._earlier[number]
            case SameAs(output=other):
                return self._output(other, values)
            case Constant(value=constant):
                return constant
        chain = output.chain
        if output.of is not None:
            chain = chain[len(self._epilogue.metadata.outputs[output.of].chain) :]  # type: ignore[union-attr] # a view
        value = _replay(chain, self._base(output, values), self._sizes, output.making)
        _count(value, output.version)
        return value

    def _base(self, output: GraphOutput | InputAlias, values: Any) -> Any:
        """What an output is made from."""
        if output.of is not None:
            return self._output(output.of, values)
        if isinstance(output, InputAlias):
            return self._kept[output.input]
        return values[self._epilogue.mutation_values + output.position]


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
    run = without_effects(compiled, metadata)
    if whole and run is compiled and not needs_epilogue(metadata) and not tracks:
        return compiled
    expected = len(metadata.value_requires_grad)
    epilogue = Epilogue(metadata) if needs_epilogue(metadata) else None

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
            values = run(args)
        finally:
            set_grad_enabled(mode)
        if epilogue is None:
            return values
        return epilogue(kept, checked_length(values, expected, "graph"), sizes)  # type: ignore[arg-type]

    call.boxed = True  # type: ignore[attr-defined]
    return call
