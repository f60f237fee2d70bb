"""One autograd node per call of a graph with a backward.

Comes in: the compiled forward, the backward to be, and where each saved value comes from. Goes out: a boxed
callable. The forward's node keeps what the backward reads as autograd keeps it (version counters, hooks and
`retain_graph` hold by themselves) and, for gradients of gradients, references to the inputs. Invariant: what can be
decided once is decided here outside of the two functions that run at each call; saved tensors belong to nobody but
the compiled backward while it runs, so that it can free them as it goes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch

from aot_autograd import _native
from aot_autograd._torch import (
    answer_at_once,
    apply_without_transforms,
    call_backward_directly,
    dispatch_modes,
    keeps_graph,
    saveable_alias,
    saved_tensor_hooks,
    set_grad_enabled,
    top_saved_tensor_hooks,
    transforms_active,
)
from aot_autograd.batched import Many, of_one_or_many
from aot_autograd.errors import UnsupportedTransform
from aot_autograd.mapped import Mapped
from aot_autograd.nodes import Nodes
from aot_autograd.packed import errors_held, layouts_restored
from aot_autograd.runtime import (
    Epilogue,
    checked_length,
    needs_epilogue,
    sizes_of_call,
    storage_bases,
    without_effects,
)
from aot_autograd.seeds import generator_states, generators_as
from aot_autograd.spared import Spared, outside_tensors
from aot_autograd.standing import standing_results, written_results
from aot_autograd.stowed import SECOND_BACKWARD, changed_since
from aot_autograd.subclasses import gradients_of_results
from aot_autograd.tangents import (
    passing_on,
    present,
    promised_layouts,
    tangent_layout,
    tangent_outputs,
    with_zeros,
)
from aot_autograd.told import Told

if TYPE_CHECKING:
    from aot_autograd.backwards import Backwards
    from aot_autograd.connections import Connections
    from aot_autograd.metadata import FunctionMetadata
    from aot_autograd.partition import Saved
    from aot_autograd.points import Watched
    from aot_autograd.runtime import Boxed, Building, Sizes

Pick = Callable[[Sequence[Any]], tuple[Any, ...]]


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
        double: Called for gradients of gradients: (inputs, seeds, tangents, results at which it ends, results that
            stand for what it computes again) -> gradients, and what arrives at these; an absent tangent is None.
        seeds: Positions among saved values that are seeds of random numbers.
        watched: Whether versions of saved tensors are kept, because not every result's backward reads them all.
    """

    forward: Boxed
    backward: Backwards
    saved: tuple[Saved, ...]
    metadata: FunctionMetadata
    forward_outputs: int
    total_outputs: int
    double: Callable[[list[Any], list[Any], list[Any], int, Sequence[Any]], Any] | None
    seeds: tuple[int, ...] = ()
    watched: bool = False


def training_callable(compiled: Compiled) -> Boxed:
    """The callable of a graph with a backward."""
    metadata = compiled.metadata
    selection = metadata.graph_inputs
    whole = selection == tuple(range(metadata.inputs))
    epilogue = Epilogue(metadata) if needs_epilogue(metadata) else None
    if metadata.connections is not None:
        nodes = _several_nodes(compiled, metadata.connections)
        apply, with_hooks = nodes.apply, nodes.apply_with_hooks
    else:
        apply = with_hooks = apply_without_transforms(autograd_node(compiled))
    beside, unsaved = metadata.beside, metadata.unsaved
    writes, with_points = bool(metadata.mutations), bool(metadata.points)
    written = written_results(metadata)
    tracked: Any = _tracked(metadata, apply, with_hooks)

    def run(args: list[Any], sizes: Sizes | None, building: Building | None) -> Any:
        if building is None:
            return tracked(args, sizes)
        return tracked_with_points(args, sizes, building)

    tracked_with_points = _tracked_with_points(metadata, apply, with_hooks)

    def call(args: list[Any]) -> Any:
        bases = storage_bases(metadata, args) if metadata.shared else []
        sizes = sizes_of_call(metadata, args)
        kept = epilogue.keep(args, bases) if epilogue is not None else None
        for position in unsaved:
            args[position] = saveable_alias(args[position])
        if not whole:
            args[:] = [
                args[position] if position >= 0 else bases[-1 - position] for position in selection
            ]
        if epilogue is None or kept is None:
            return tracked(args, sizes)
        building = epilogue.begun(kept, sizes) if with_points else None
        errors: list[BaseException] = []
        if writes and saved_tensor_hooks() is not None:
            with errors_held(errors):
                values = run(args, sizes, building)
        else:
            values = run(args, sizes, building)
        results = epilogue(kept, values, sizes) if building is None else building.finish(values)
        if errors:
            raise errors.pop()
        for tangent, position in written:
            _note_argument(metadata, values, tangent, kept[position])
        if beside:
            nodes.note(values, [results[n] if n >= 0 else kept[-1 - n] for n in beside])
        return results

    bare = whole and epilogue is None and not (metadata.symbols or unsaved)
    made: Any = tracked if bare else call
    made.boxed = True
    return made


def _tracked(
    metadata: FunctionMetadata, apply: Callable[..., Any], with_hooks: Callable[..., Any]
) -> Callable[..., Any]:
    """(inputs, sizes) -> the values, with the history that the call gives them; in C where there is that form."""
    differentiable = picker(metadata.differentiable)
    grad_mode = torch.is_grad_enabled

    def tracked(args: list[Any], sizes: Sizes | None = None) -> Any:
        if transforms_active():
            raise _inside_of_transform(metadata.source)
        if saved_tensor_hooks() is not None:
            with layouts_restored(), torch.enable_grad():
                return with_hooks(args, sizes, *differentiable(args))
        if grad_mode():
            return apply(args, sizes, *differentiable(args))
        set_grad_enabled(True)
        try:
            return apply(args, sizes, *differentiable(args))
        finally:
            set_grad_enabled(False)

    made: Callable[..., Any] = tracked
    if _native.node is not None:
        made = _native.node.Call(
            apply,
            tracked,
            grad_mode,
            transforms_active,
            top_saved_tensor_hooks,
            tuple(metadata.differentiable),
        )
    return made


def _tracked_with_points(
    metadata: FunctionMetadata, apply: Callable[..., Any], with_hooks: Callable[..., Any]
) -> Callable[..., Any]:
    """The same, of a graph with points: (inputs, sizes, what makes them between the nodes)."""
    differentiable = picker(metadata.differentiable)

    def tracked(args: list[Any], sizes: Sizes | None, building: Building) -> Any:
        if transforms_active():
            raise _inside_of_transform(metadata.source)
        if saved_tensor_hooks() is not None:
            with layouts_restored(), torch.enable_grad():
                return with_hooks(args, sizes, *differentiable(args), building=building)
        with torch.enable_grad():
            return apply(args, sizes, *differentiable(args), building=building)

    return tracked


def _note_argument(
    metadata: FunctionMetadata, values: Sequence[Any], tangent: int, argument: torch.Tensor
) -> None:
    """Remember an argument in the place of the result that is its new value."""
    node = values[tangent_outputs(metadata)[tangent]].grad_fn
    if metadata.connections is not None:
        node.call.tensors[tangent] = ref(argument)
    elif node.kept[0] is not None:
        node.kept[0][len(metadata.graph_inputs) + tangent] = ref(argument)


def _inside_of_transform(source: str) -> UnsupportedTransform:
    return UnsupportedTransform(
        f"calling {source}, compiled for training, inside of a transform of torch.func",
        "a transform sees the operators that it is about, and a compiled graph has none to show",
        "call what was compiled: `aot_function` and `compile_api.compile` run it as it is in transforms",
    )


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

    The three parts, taken one after another, are in the order of the backward's placeholders, and
    `order` is empty: `split` puts them so. For any other partition it tells where each one is.
    """

    __slots__ = ("inputs", "numbers", "order", "outputs")

    def __init__(self, saved: Sequence[Saved]) -> None:
        slots: list[list[int]] = [[], [], []]
        for slot, item in enumerate(saved):
            slots[(item.origin == "output") + 1 if item.is_tensor else 0].append(slot)
        numbers, inputs, outputs = slots
        self.numbers = tuple((saved[slot].origin, saved[slot].index) for slot in numbers)
        self.inputs = tuple(saved[slot].index for slot in inputs)
        self.outputs = tuple(saved[slot].index for slot in outputs)
        order = [*numbers, *inputs, *outputs]
        positions = tuple(order.index(slot) for slot in range(len(saved)))
        self.order = () if positions == tuple(range(len(saved))) else positions


_FUNCTION_CLASS: type = type(torch.autograd.Function)
if _native.node is not None:
    _FUNCTION_CLASS = _native.node.function_class(_FUNCTION_CLASS)


def _several_nodes(compiled: Compiled, connections: Connections) -> Nodes:
    """The nodes of a graph whose results lead to different inputs."""
    keeping = Keeping(compiled.saved)
    tensors = frozenset(slot for slot, item in enumerate(compiled.saved) if item.is_tensor)
    backwards = compiled.backward

    def reads_tensors(absent: int, ends: int) -> bool:
        kept = backwards.of(backwards.key(absent, ends)).kept
        return bool(tensors) if kept is None else not tensors.isdisjoint(kept)

    return Nodes(
        compiled.metadata,
        connections,
        autograd_node(compiled),
        _backward_of(compiled, keeping, lambda: True),
        _backward_of(compiled, keeping, lambda: False),
        _differentiating(compiled, keeping, lambda: True),
        _differentiating(compiled, keeping, lambda: False),
        reads_tensors,
        len(keeping.inputs) + len(keeping.outputs),
        _FUNCTION_CLASS,
        SECOND_BACKWARD,
    )


def autograd_node(compiled: Compiled) -> type[torch.autograd.Function]:
    """The `torch.autograd.Function` of one compiled graph."""
    keeping = Keeping(compiled.saved)
    run_forward = _forward_of(compiled, keeping)
    run_backward = _backward_of(compiled, keeping)

    class CompiledFunction(torch.autograd.Function, metaclass=_FUNCTION_CLASS):  # type: ignore[metaclass] # chosen above
        """One call of a compiled graph."""

        forward = staticmethod(run_forward)
        backward = staticmethod(run_backward)
        # Torch asks for these at each call, by strings that Python's cache of attributes doesn't know:
        # they are found sooner here than in the classes above.
        setup_context = staticmethod(torch.autograd.Function.setup_context)
        clear_saved_tensors_on_access = False
        boxed_grads_call = False

    call_backward_directly(CompiledFunction, "kept")
    answer_at_once(CompiledFunction)
    return CompiledFunction


def _forward_of(compiled: Compiled, keeping: Keeping) -> Callable[..., Any]:
    """What autograd calls at each call: the compiled forward, whose context keeps what the backward reads."""
    metadata = compiled.metadata
    take_inputs, take_outputs = picker(keeping.inputs), picker(keeping.outputs)
    run = without_effects(compiled.forward, metadata)
    forward_outputs, total_outputs = compiled.forward_outputs, compiled.total_outputs
    constant = [n for n, requires in enumerate(metadata.value_requires_grad) if not requires]
    # A call of several nodes tells of its results itself: these are not what the caller gets.
    tracked = () if metadata.connections is not None else tangent_outputs(metadata)
    keep_primals = compiled.double is not None or bool(keeping.numbers)
    keep_before = _before_of(compiled)
    draws = _draws(compiled)
    outside = _outside(compiled, keeping)
    count_saved = _versions(outside, len(keeping.inputs) + len(keeping.outputs))
    native = None if draws else _native.node
    pending = [compiled.backward]  # until the forward has begun to run
    versions_of: Callable[[Sequence[Any]], list[int]] = _no_versions

    def first_call(args: Sequence[Any]) -> None:
        """Which inputs are tensors is the same at each call; the backward is compiled from now on."""
        nonlocal versions_of
        tensors = _counted(keeping, args)
        versions_of = _versions(tensors, len(args))
        if native is not None:
            made.begin(tuple(tensors))  # type: ignore[attr-defined]
        while pending:
            pending.pop().start()

    def forward(ctx: Any, args: list[Any], sizes: Sizes | None, *_inputs: Any) -> Any:
        if pending:
            first_call(args)
        inputs = take_inputs(args)
        primals = versions = None
        states = generator_states(draws)
        if keep_primals:
            primals = args.copy()
            if keep_before is not None:
                keep_before(primals)
            versions = versions_of(primals)
        outputs = run(args)
        checked_length(outputs, total_outputs, "forward")
        if primals is not None:
            primals += [ref(outputs[place]) for place in tracked]
        saved = (*inputs, *take_outputs(outputs))
        ctx.save_for_backward(*saved)
        numbers = _numbers(keeping, primals, outputs) if keeping.numbers else ()
        counted = count_saved(saved) if outside else None
        ctx.kept = (
            (primals, versions, numbers, sizes, counted, states)
            if draws
            else (primals, versions, numbers, sizes, counted)
        )
        ctx.set_materialize_grads(False)
        results = tuple(outputs[:forward_outputs])
        if constant:
            ctx.mark_non_differentiable(
                *[results[n] for n in constant if isinstance(results[n], torch.Tensor)]
            )
        return results

    made: Callable[..., Any] = forward
    if native is not None:
        made = native.Forward(
            run=run,
            python=forward,
            before=keep_before,
            check=checked_length,
            tensor=torch.Tensor,
            inputs=keeping.inputs,
            outputs=keeping.outputs,
            numbers=tuple(at if kind == "input" else -1 - at for kind, at in keeping.numbers),
            constant=tuple(constant),
            tracked=tracked,
            outside=outside,
            total=total_outputs,
            visible=forward_outputs,
            keep=keep_primals,
        )
    return made


def _backward_of(
    compiled: Compiled, keeping: Keeping, keeps: Callable[[], bool] = keeps_graph
) -> Callable[..., Any]:
    """What autograd calls: the compiled backward, or its differentiable twin under `create_graph=True`.

    `keeps` tells whether what is saved stays for another backward.
    """
    differentiate = _differentiating(compiled, keeping, keeps)

    def backward(ctx: Any, *gradients: Any) -> Any:
        return differentiate(ctx, 0, gradients)

    return _in_c(compiled, keeping, backward, keeps)


def _differentiating(
    compiled: Compiled, keeping: Keeping, keeps: Callable[[], bool]
) -> Callable[[Any, int, Sequence[Any]], Any]:
    """The same for a backward that ends at results: what arrives there is behind the gradients of the inputs."""
    metadata = compiled.metadata
    in_order = picker(keeping.order) if keeping.order else None
    lay_out = tangent_layout(metadata)
    gradients_expected = len(metadata.differentiable)
    results_expected = metadata.backward_results
    put_together = gradients_of_results(metadata.made_of) if metadata.made_of else None
    interior = metadata.interior
    backwards, everything = compiled.backward, compiled.backward.everything
    known = backwards.known
    saves = bool(keeping.inputs or keeping.outputs)
    grad_mode = torch.is_grad_enabled
    spared = Spared(keeping, _outside(compiled, keeping))
    standing_of = _standing_of(metadata)
    passing = passing_on(metadata)
    spent = _SPENT if metadata.runs_once and not saves else None

    def differentiate(ctx: Any, ends: int, gradients: Sequence[Any]) -> Any:
        if ctx.kept is _SPENT:
            raise RuntimeError(SECOND_BACKWARD)
        saved, refused = _all_saved(ctx) if saves else ((), None)
        primals, versions, numbers, sizes, counted, *states = ctx.kept or _NOTHING_KEPT
        tangents, absent, foreign = lay_out(gradients, sizes)
        arriving = len(interior) if ends else 0
        if absent and absent == everything:
            return (None, None, *[None] * (gradients_expected + arriving))
        key = backwards.key(absent, ends) if ends else absent
        second = foreign or grad_mode()
        if refused is not None:
            taken = None if second else (known.get(key) or backwards.of(key)).kept
            unchanged = spared(ctx, counted, taken)
            if unchanged is None:
                raise refused
            saved = unchanged
            del unchanged
        values = [*numbers, *saved]
        del saved
        if in_order is not None:
            values = list(in_order(values))
        if second:
            seeds = [values[slot] for slot in compiled.seeds]
            double = differentiable_backward(compiled, keeping, primals, versions)
            primals = list(primals or ())
            inputs = primals[: len(metadata.graph_inputs)]
            results = standing_of(ctx, primals[len(inputs) :], gradients)
            with generators_as(states[0]) if states else nullcontext():
                return (None, None, *double(inputs, seeds, tangents, ends, results))
        chosen = known.get(key) or backwards.of(key)
        run = chosen.deferred.made or chosen.deferred()
        if chosen.kept is not None:
            values = [values[slot] for slot in chosen.kept]
        if absent:
            tangents = with_zeros(metadata, tangents, sizes) if chosen.zeros else present(tangents)
        values += tangents
        del tangents, primals
        if not keeps():
            ctx.maybe_clear_saved_tensors()  # the compiled backward frees them as it goes
            # Where no tensors are saved, eager allows a second backward.
            ctx.kept = (None, None, numbers, sizes, None) if numbers else None
            if spent is not None:
                ctx.kept = spent
        results = run(values)
        checked_length(results, results_expected + arriving, "backward")
        if chosen.unreached:
            results = _without(results, chosen.unreached)
        if put_together is not None:
            inputs, others = results[:results_expected], results[results_expected:]
            results = [*put_together(inputs, sizes), *others]
        made = (None, None, *results)
        return made if passing is None else passing(made, gradients)

    retaining = partial(_differentiating, compiled, keeping, lambda: True)
    mapped = Mapped(compiled, keeping, partial(differentiable_backward, compiled, keeping))
    return of_one_or_many(differentiate, Many(differentiate, retaining, mapped, keeps, metadata))


def _standing_of(
    metadata: FunctionMetadata,
) -> Callable[[Any, Sequence[Any], Sequence[Any]], Sequence[Any]]:
    """What stands for the results of a call, of its context, references to them, and the gradients of a backward."""
    if not metadata.read_results:
        return lambda _ctx, _references, _gradients: ()
    written = [tangent for tangent, _ in written_results(metadata)]
    told = Told(metadata.source)

    def standing_of(ctx: Any, references: Sequence[Any], gradients: Sequence[Any]) -> Sequence[Any]:
        beside: Sequence[Any] = ()
        nodes: Sequence[Any] = [lambda: getattr(ctx, "node", ctx)]
        points: Mapping[int, Watched] = {}
        if metadata.connections is not None:
            call = gradients[-1]
            references, nodes = call.tensors, call.results
            beside = getattr(call, "beside", None) or ()
            points = getattr(call, "points", points)
        standing = standing_results(metadata, references, nodes, points)
        missing = [one.tensor for number, one in points.items() if standing[number] is None]
        missing += [references[number] for number in written if standing[number] is None]
        if beside or missing:
            told.of_second_derivatives([*beside, *missing])
        return standing

    return standing_of


def _in_c(
    compiled: Compiled,
    keeping: Keeping,
    backward: Callable[..., Any],
    keeps: Callable[[], bool],
) -> Callable[..., Any]:
    """The C form of a backward, which hands to `backward` what is not the ordinary case; else `backward` itself."""
    metadata, backwards = compiled.metadata, compiled.backward
    everything = backwards.everything
    tangents = tangent_outputs(metadata)
    refused = any(metadata.backward_errors) or len(tangents) > _MOST_BITS
    refused |= metadata.runs_once and not (keeping.inputs or keeping.outputs)
    if _native.node is None or refused or _draws(compiled) or metadata.made_of:
        return backward

    def resolve(absent: int) -> tuple[Any, ...] | None:
        """The backward for these absent tangents; None where it is one that takes zeros, or there is nothing to do."""
        if absent and absent == everything:
            return None
        chosen = backwards.of(absent)
        if chosen.zeros:
            return None
        return chosen.deferred(), chosen.kept, tuple(chosen.unreached)

    made: Callable[..., Any] = _native.node.Backward(
        python=backward,
        resolve=resolve,
        check=checked_length,
        spared=Spared(keeping, _outside(compiled, keeping)),
        grad_mode=torch.is_grad_enabled,
        keeps_graph=keeps,
        transforms=transforms_active,
        modes=dispatch_modes,
        passing=passing_on(metadata),
        tensor=torch.Tensor,
        layouts=promised_layouts(metadata),
        items=tuple(
            meta.dtype.itemsize if meta.device.type == "cpu" else 0 for meta in metadata.tangents
        ),
        wanted=tangents,
        order=keeping.order,
        results=len(metadata.differentiable),
        saves=bool(keeping.inputs or keeping.outputs),
        complex=any(meta.dtype.is_complex for meta in metadata.tangents),
    )
    return made


_MOST_BITS = 64
_NOTHING_KEPT = (None, None, (), None, None)
_SPENT: Any = object()
"""What is kept after a backward that eager runs once, where nothing is saved that autograd would miss."""


def _all_saved(ctx: Any) -> tuple[Sequence[Any], RuntimeError | None]:
    """What a context saved; where autograd refuses, its error: perhaps only what nobody reads was changed."""
    try:
        return ctx.saved_tensors, None
    except RuntimeError as error:
        if ctx.kept is None or ctx.kept[4] is None:
            raise
        return (), error


def _outside(compiled: Compiled, keeping: Keeping) -> tuple[int, ...]:
    """Places of the saved tensors whose versions a call keeps."""
    return outside_tensors(keeping, compiled.forward_outputs) if compiled.watched else ()


_version_of = attrgetter("_version")


def _counted(keeping: Keeping, args: Sequence[Any]) -> list[int]:
    """Input tensors whose changes nobody else notices; of saved ones autograd itself does, when they are asked for."""
    saved = frozenset(keeping.inputs)
    tensors = (number for number, arg in enumerate(args) if isinstance(arg, torch.Tensor))
    return [number for number in tensors if number not in saved]


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


def _draws(compiled: Compiled) -> tuple[str, ...]:
    """The generators whose states are kept for derivatives of derivatives."""
    return compiled.metadata.draws if compiled.double is not None else ()


def _before_of(compiled: Compiled) -> Callable[[list[Any]], None] | None:
    """What puts tensors that stay in the place of inputs that the function will change; None: it changes none.

    What derivatives of derivatives read is copied, with its history. Of the others only the metadata matters; the
    input itself, whose new history leads to the node that keeps it, would never be freed.
    """
    metadata = compiled.metadata
    if compiled.double is None or not metadata.rewritten:
        return None
    rewritten, read_before = metadata.rewritten, frozenset(metadata.read_before)

    def keep_before(primals: list[Any]) -> None:
        with torch.enable_grad():
            for number in rewritten:
                primal = primals[number]
                if number in read_before:
                    primals[number] = primal.clone()
                else:
                    primals[number] = primal.detach().requires_grad_(primal.requires_grad)

    return keep_before


def _numbers(keeping: Keeping, primals: Any, outputs: Sequence[Any]) -> list[Any]:
    return [
        primals[index] if origin == "input" else outputs[index] for origin, index in keeping.numbers
    ]


def _without(results: Sequence[Any], unreached: frozenset[int]) -> list[Any]:
    """No gradient, rather than zeros, where all that a gradient is made of is absent, as in eager."""
    return [None if number in unreached else one for number, one in enumerate(results)]


def differentiable_backward(
    compiled: Compiled, keeping: Keeping, primals: Any, versions: Any
) -> Callable[[list[Any], list[Any], list[Any], int, Sequence[Any]], Any]:
    """The backward that can be differentiated, if the inputs still are what they were.

    Raises:
        RuntimeError: eager's own, if they are gone or were changed in between.
    """
    if compiled.double is None or primals is None:
        raise RuntimeError(SECOND_BACKWARD)
    # What the function itself changes was kept before the change, or not read: running statistics, mostly.
    own = compiled.metadata.rewritten
    for number, version in zip(_counted(keeping, primals), versions, strict=True):
        primal = primals[number]
        if number in own:
            continue
        if not primal.is_inference() and primal._version != version:
            raise changed_since(primal, version)
    return compiled.double
