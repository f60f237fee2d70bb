"""From a function to one functional graph: forward, and the backward where there is one.

Comes in: a callable (or a captured graph) and a description of each flat input. Goes out: a
`Trace`: recorded nodes, the graph's outputs, and the metadata that the runtime needs. The function
runs once on fakes in the grad mode of the caller; then C++ autograd itself is asked for the
gradients of everything that requires one, with fake tangents. Invariant: the nodes of the forward
never depend on a tangent.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import GradientEdge

from aot_autograd import functional
from aot_autograd._torch import (
    OpOverload,
    accumulated_gradients_of,
    composite_recurrent_layers,
    gradients_of,
    without_saved_tensor_hooks,
)
from aot_autograd.autocast import AutocastOff, autocast_state, restore_autocast
from aot_autograd.connections import Connections, connections, on_a_way, runs_once, selected
from aot_autograd.errors import TraceError, UnsupportedAliasing, UnsupportedOperator
from aot_autograd.graph import Node, each_node, to_fx
from aot_autograd.inputs import make_inputs
from aot_autograd.metadata import FunctionMetadata
from aot_autograd.observation import Observation
from aot_autograd.recording import DRAW_SEED, RecordingContext
from aot_autograd.sizes import symbol_of
from aot_autograd.sparse import SparseOf, is_sparse, sparse_nodes
from aot_autograd.standing import read_results, results_behind, with_standing
from aot_autograd.subclasses import MadeOf, is_wrapper, take_apart
from primtorch.fake import FactoryMode, FakeTensor, TensorMeta

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import fx

    from aot_autograd.inputs import InputSpec
    from aot_autograd.metadata import SharedStorage, ViewStep
    from aot_autograd.options import AotOptions


@dataclass(slots=True)
class Trace:
    """A recorded function.

    Attributes:
        nodes: Everything recorded, in order.
        values: Nodes of the mutated inputs' new values, then of the user's values.
        gradients: One node or None per differentiable input; empty without a backward.
        arriving: What arrives at the results and points that others are made of: one node or None each.
        metadata: The contract with the caller.
    """

    nodes: list[Node]
    values: list[Any]
    gradients: list[Any]
    arriving: list[Any]
    metadata: FunctionMetadata
    environment: Any
    has_backward: bool = False
    source: Any = field(default=None)

    def module(self) -> fx.GraphModule:
        """The joint graph (or the inference graph, where nothing requires a gradient)."""
        module = to_fx(
            self.nodes,
            [*self.values, *self.gradients, *self.arriving],
            role="joint" if self.has_backward else "inference",
            environment=self.environment,
        )
        module.meta["gradients_of_results"] = len(self.arriving)
        return module


def tangent_meta(meta: TensorMeta) -> TensorMeta:
    """The layout in which the backward takes the gradient of a value.

    Row-major unless the value is known to be dense: gradients are copied into that layout, and places
    that lie on top of each other would hold one number for all.
    """
    if not functional.is_known_dense(meta):
        stride = functional.contiguous_stride(meta.shape)
        return TensorMeta(meta.shape, stride, meta.dtype, meta.device)
    return TensorMeta(meta.shape, meta.stride, meta.dtype, meta.device)


def trace(
    function: Callable[..., Sequence[Any]],
    specs: Sequence[InputSpec],
    *,
    table: Mapping[OpOverload, Any],
    options: AotOptions,
    inputs: int,
    environment: Any = None,
    seeds: int = 0,
    source: str = "function",
    shared: Sequence[SharedStorage] = (),
) -> Trace:
    """Run `function` on fakes and record it, with its backward where an output requires gradient.

    Args:
        function: Takes one positional argument per spec, returns a flat sequence.
        specs: The distinct inputs.
        table: Decompositions by overload.
        options: Options.
        inputs: Number of the caller's flat inputs (duplicates included).
        environment: Size environment of symbolic inputs, or None.
        seeds: The last `seeds` inputs are seeds that random operators use instead of drawing.
        source: Name of the function, for messages.
        shared: Storages that several inputs lie in and that the function writes to.

    Raises:
        TraceError: if the function does something that no functional graph can express; whatever
            the function itself raises passes through.
    """
    context = RecordingContext(
        table, fallback_random=options.fallback_random, environment=environment
    )
    arguments, leaves = make_inputs(context, specs, shared)
    if seeds:
        context.seeds.given = arguments[-seeds:]
    observation = Observation(context, specs, arguments, shared)
    grad_mode = torch.is_grad_enabled()
    casting = autocast_state()
    autocast = tuple([(kind, dtype) for kind, enabled, dtype in casting if enabled])
    try:
        # oneDNN's recurrent layers ask for the grad mode at run time, which no graph carries:
        # with the library off ATen writes them in terms of matrix products.
        with (
            torch.autograd.set_multithreading_enabled(False),
            torch.autograd.set_detect_anomaly(False),  # what it looks at are numbers
            composite_recurrent_layers(),
            without_saved_tensor_hooks(context.value_now),
            FactoryMode(context),
        ):
            outputs = _called(function, arguments[: len(arguments) - seeds], context)
            observation.observe(outputs)
            observation.separate()
            gradients, behind = _record_backward(context, observation, leaves)
    finally:
        torch.set_grad_enabled(grad_mode)
        restore_autocast(casting)
        context.seeds.restore()
    values = observation.values
    differentiable, gradients, found = _with_influence(leaves, gradients, behind.found)
    made_of = () if gradients is None else tuple(made for made, _ in filter(None, gradients))
    flat = None if gradients is None else _flat_nodes(gradients)
    graph_inputs = _graph_inputs(specs, shared)
    rewritten = _rewritten(graph_inputs, observation, shared)
    metadata = FunctionMetadata(
        inputs=inputs,
        graph_inputs=graph_inputs,
        shared=tuple(shared),
        differentiable=differentiable,
        mutations=tuple(observation.mutations),
        outputs=tuple(observation.outputs),
        value_requires_grad=tuple(value.requires_grad for value in values),
        value_versions=observation.versions(),
        view_values=_numbers(values, lambda value: _is_view(value.node)),
        tangents=tuple([tangent_meta(one.meta) for one in observation.edges(())]),
        grad_mode=grad_mode,
        autocast=autocast,
        source=source,
        backward_errors=context.backward_errors,
        rewritten=rewritten,
        read_before=_read_before(context, rewritten, observation) if rewritten else (),
        draws=_drawing_devices(context.nodes),
        made_of=made_of if any(made_of) else (),
        connections=found,
        points=() if found is None else behind.points,
        beside=behind.beside if found is not None and any(found.beside) else (),
        read_results=read_results(
            context.nodes,
            [value.node for value in values if value.requires_grad],
            flat,
            () if found is None else behind.points,
        ),
        inference_values=_numbers(values, lambda value: _is_inference(value.tensor)),
        runs_once=found is None and behind.runs_once,
        unsaved=_unsaved(specs),
        passed_on=() if any(made_of) else _passed_on(context, differentiable, specs),
        symbols=_symbols(specs),
    )
    return Trace(
        nodes=context.nodes,
        values=[value.node for value in values],
        gradients=[] if flat is None else flat,
        arriving=[] if found is None else behind.arriving,
        metadata=metadata,
        environment=environment,
        has_backward=gradients is not None,
    )


def _numbers(values: Sequence[Any], holds: Callable[[Any], bool]) -> tuple[int, ...]:
    return tuple([number for number, value in enumerate(values) if holds(value)])


def _symbols(specs: Sequence[InputSpec]) -> tuple[tuple[int, Any], ...]:
    named = [(spec.position, spec.meta, symbol_of(spec.meta)) for spec in specs]
    return tuple([(position, symbol) for position, meta, symbol in named if symbol is not meta])


def _is_view(node: Any) -> bool:
    return isinstance(node, Node) and node.operator in functional.INVERSES


def _is_inference(tensor: torch.Tensor | None) -> bool:
    return tensor is not None and tensor.is_inference()


def _passed_on(
    context: RecordingContext, differentiable: Sequence[int], specs: Sequence[InputSpec]
) -> tuple[tuple[int, int, tuple[ViewStep, ...]], ...]:
    """Gradients that are views of tangents; with sizes that vary a backward doesn't know them any more: none."""
    if any(symbol_of(spec.meta) is not spec.meta for spec in specs):
        return ()
    found = context.views_of_tangents
    return tuple(
        (place, *found[number]) for place, number in enumerate(differentiable) if number in found
    )


def _unsaved(specs: Sequence[InputSpec]) -> tuple[int, ...]:
    """The inputs of which an alias is saved in their place."""
    return tuple(spec.position for spec in specs if spec.is_inference and not spec.requires_grad)


def _with_influence(
    leaves: Sequence[Any], gradients: list[Any] | None, found: Connections | None
) -> tuple[tuple[int, ...], list[Any] | None, Connections | None]:
    """The inputs that have a gradient, their gradients, and what leads to them."""
    differentiable = tuple(number for number, leaf in enumerate(leaves) if leaf is not None)
    if gradients is None:
        return (), None, None
    if not any(gradients) and found is not None and any(found.reached):
        return differentiable, gradients, None  # a backward from there raises
    # An input without gradient gets no edge, as in eager.
    places = [place for place, one in enumerate(gradients) if one]
    numbers = tuple([differentiable[place] for place in places])
    connected = None if found is None else selected(found, places)
    return numbers, [gradients[place] for place in places], connected


def _flat_nodes(gradients: Sequence[Any]) -> list[Any]:
    return [node for one in gradients for node in ((None,) if one is None else one[1])]


def _called(
    function: Callable[..., Sequence[Any]], arguments: Sequence[Any], context: RecordingContext
) -> Sequence[Any]:
    try:
        return function(*arguments)
    except RuntimeError as error:
        # Eager gives a gradient to numbers that have none; what follows is up to eager.
        if "Autograd not support dtype" not in str(error):
            raise
        raise UnsupportedOperator(
            "a tensor of integers that gets a gradient by an in-place change",
            str(error),
            "detach() what is written into it",
            context.source_line,
        ) from error


def _graph_inputs(specs: Sequence[InputSpec], shared: Sequence[SharedStorage]) -> tuple[int, ...]:
    members = {position for group in shared for position in group.members}
    own = [spec.position for spec in specs if spec.position not in members]
    return (*own, *[-1 - number for number in range(len(shared))])


def _drawing_devices(nodes: Sequence[Node]) -> tuple[str, ...]:
    """The devices whose generators are drawn from when the graph runs, other than for seeds."""
    found = {
        str(meta.device)
        for node in nodes
        if node.impure and torch.Tag.nondeterministic_seeded in getattr(node.operator, "tags", ())
        for meta in (node.meta if isinstance(node.meta, tuple) else (node.meta,))
        if isinstance(meta, TensorMeta) and node.operator is not DRAW_SEED
    }
    return tuple(sorted(found))


def _rewritten(
    graph_inputs: Sequence[int], observation: Observation, shared: Sequence[SharedStorage]
) -> tuple[int, ...]:
    """Which placeholders' memory the function changes."""
    mutated = {mutation.input for mutation in observation.mutations}
    for number, group in enumerate(shared):
        if mutated.intersection(group.members):
            mutated.add(-1 - number)
    return tuple(n for n, position in enumerate(graph_inputs) if position in mutated)


def _read_before(
    context: RecordingContext, rewritten: Sequence[int], observation: Observation
) -> tuple[int, ...]:
    """Which of these placeholders are behind a value that can be differentiated."""
    tracked = [value for value in observation.values if value.requires_grad]
    errors = context.backward_errors or ("",) * len(tracked)
    behind: set[Node] = set()
    for value, error in zip(tracked, errors, strict=True):
        if not error and isinstance(value.node, Node):
            behind.add(value.node)
    for node in reversed(context.nodes):
        if node in behind:
            each_node(node.args, behind.add)
            each_node(tuple(node.kwargs.values()), behind.add)
    placeholders = [node for node in context.nodes if node.kind == "placeholder"]
    return tuple(number for number in rewritten if placeholders[number] in behind)


@dataclass(frozen=True, slots=True)
class _Behind:
    """What is behind the results.

    Attributes:
        found: The connections; None where one autograd node is what they amount to.
        points: What backwards can end at besides results, by its key in `Observation.beside`.
        beside: The other keys there.
        arriving: What arrives at the results and points that others are made of: one node or None each.
        runs_once: Whether eager's backward frees something.
    """

    found: Connections | None = None
    points: tuple[int, ...] = ()
    beside: tuple[int, ...] = ()
    arriving: list[Any] = field(default_factory=list)
    runs_once: bool = False


def _connected(
    observation: Observation,
    targets: Sequence[FakeTensor],
    wanted: Sequence[Any],
    standing: Mapping[int, Sequence[torch.Tensor]],
    points: Sequence[int],
) -> _Behind:
    """What is behind the targets, with those of these points that one leads to."""
    tensors = observation.beside

    def with_points(chosen: Sequence[int], beside: Sequence[int]) -> Connections:
        return connections(
            targets,
            wanted,
            [tensors[key] for key in chosen],
            [tensors[key] for key in beside],
            standing,
        )

    beside = tuple([key for key in tensors if key not in points])
    found = with_points(points, beside)
    reached = tuple([points[number] for number in on_a_way(found)])
    if reached != tuple(points):
        found = with_points(reached, beside)
    return _Behind(found, reached, beside)


def _record_backward(
    context: RecordingContext, observation: Observation, leaves: Sequence[FakeTensor | None]
) -> tuple[list[Any] | None, _Behind]:
    """The gradients' nodes, None without results that have a gradient, and what is behind these."""
    targets = observation.edges(())
    if not targets:
        return None, _Behind()
    generations = [
        argument.record.storage.generation if isinstance(argument, FakeTensor) else 0
        for argument in observation.arguments
    ]
    context.phase = "backward"
    context.source_line = None
    context.module_path = None
    tangents: list[FakeTensor] = []
    for number, target in enumerate(targets):
        meta = tangent_meta(target.meta)
        node = context.placeholder(
            f"tangent_{number}",
            meta,
            {"kind": "tangent", "name": f"tangent_{number}", "static": False},
        )
        fake = FakeTensor.create(meta, context, environment=context.environment)
        tangents.append(context.bind(fake, node, None))
    wanted = [_gradient_edge(leaf, targets) for leaf in leaves if leaf is not None]
    standing = {place: results_behind(one, context.standing) for place, one in enumerate(wanted)}
    connected = partial(_connected, observation, targets, wanted, standing)
    behind = _Behind()
    if len(targets) > 1 or observation.beside:
        behind = connected(observation.made_alike())
    edges = observation.edges(behind.points)
    interior = [] if behind.found is None else [edges[number] for number in behind.found.interior]
    gradients: Sequence[Any] = ()
    if wanted or interior:
        with AutocastOff(), _each_its_own(context, edges[len(targets) :]) as own:
            gradients = with_standing(
                [*wanted, *interior],
                context,
                targets,
                lambda tensors: _gradients(context, targets, tensors, tangents),
            )
        arrived = zip(interior, gradients[len(wanted) :], strict=True)
        gradients = [
            *gradients[: len(wanted)],
            *[None if one is None else own.get(id(at), one) for at, one in arrived],
        ]
    if behind.found is None and all(one is None for one in gradients):
        # no way to an input, or its backward raises
        behind = _Behind(connections(targets, wanted, standing=standing))
    after = [
        argument.record.storage.generation if isinstance(argument, FakeTensor) else 0
        for argument in observation.arguments
    ]
    if after != generations:
        raise TraceError(
            "the backward changes an input of the forward in place",
            "a write during the backward has no place in the compiled forward",
            "write out of place in the backward",
        )
    inputs = gradients[: len(wanted)]
    nodes = [None if grad is None else _nodes_of_gradient(context, grad) for grad in inputs]
    _note_views_of_tangents(context, leaves, inputs, tangents)
    behind = _with_arriving(context, connected, len(targets), len(wanted), behind, gradients)
    return nodes, replace(behind, runs_once=any(map(runs_once, targets)))


def _with_arriving(
    context: RecordingContext,
    connected: Callable[[Sequence[int]], _Behind],
    targets: int,
    wanted: int,
    behind: _Behind,
    gradients: Sequence[Any],
) -> _Behind:
    """The same with the nodes of what arrives; at points whose gradient is no single tensor no backward ends."""
    found = behind.found
    if found is None:
        return behind
    at = dict(zip(found.interior, gradients[wanted:], strict=True))
    by_key = {key: at[number] for number, key in enumerate(behind.points, targets)}
    kept = [
        key
        for key, one in by_key.items()
        if one is None or _nodes_of_gradient(context, one)[0] is None
    ]
    if len(kept) < len(by_key):
        behind = connected(kept)
        found = behind.found or found
    arriving = []
    for number in found.interior:
        of_result = number < targets
        one = at.get(number) if of_result else by_key[behind.points[number - targets]]
        arriving.append(_node_arriving(context, one))
    return replace(behind, arriving=arriving)


@contextmanager
def _each_its_own(
    context: RecordingContext, points: Sequence[FakeTensor]
) -> Iterator[dict[int, FakeTensor]]:
    """Inside, what arrives at each of these is a node of its own, by which a backward can end there and nowhere else.

    Autograd hands on the very gradient that an alias, a sum, or the call itself got, and gives that to who asks. So the
    nodes are in the dict, by the points' identities.
    """
    own: dict[int, FakeTensor] = {}

    def alias(point: int, gradient: Any) -> Any:
        if not isinstance(gradient, FakeTensor) or is_sparse(context, gradient):
            return None
        made = context.record(torch.ops.aten.alias.default, (gradient,), {}, impure=True)
        made.record.node.impure = False
        own[point] = made
        return made

    handles = [point.register_hook(partial(alias, id(point))) for point in points]
    try:
        yield own
    finally:
        for handle in handles:
            handle.remove()


def _note_views_of_tangents(
    context: RecordingContext,
    leaves: Sequence[FakeTensor | None],
    gradients: Sequence[Any],
    tangents: Sequence[FakeTensor],
) -> None:
    numbers = [number for number, leaf in enumerate(leaves) if leaf is not None]
    slots = {tangent.record.storage: slot for slot, tangent in enumerate(tangents)}
    for number, gradient in zip(numbers, gradients, strict=True):
        if not isinstance(gradient, FakeTensor):
            continue
        record = gradient.record
        if record.storage in slots and not record.storage.generation:
            context.views_of_tangents[number] = slots[record.storage], record.chain


def _node_arriving(context: RecordingContext, gradient: Any) -> Any:
    """The node of the gradient of a result that others are made of.

    Raises:
        UnsupportedOperator: it is none that a graph returns as one tensor.
    """
    if gradient is None:
        return None
    made_of, nodes = _nodes_of_gradient(context, gradient)
    if made_of is not None:
        raise UnsupportedOperator(
            "a result that another is made of, with a gradient made of several tensors",
            "what arrives at it is sparse, or a tensor subclass",
            "return its detach(), or compute the other outside",
        )
    return nodes[0]


def _nodes_of_gradient(
    context: RecordingContext, gradient: Any
) -> tuple[MadeOf | SparseOf | None, list[Any]]:
    """The nodes of a gradient, and how it is put together of them where it is made of tensors."""
    if not is_wrapper(gradient):
        return sparse_nodes(context, gradient) or (None, [context.node_of(gradient)])
    parts: list[Any] = []
    layout = take_apart(gradient, parts)
    assert layout is not None, "a wrapper has a layout"
    return MadeOf(layout, tuple(part.meta for part in parts)), [
        context.node_of(part) for part in parts
    ]


def _gradients(
    context: RecordingContext,
    targets: Sequence[FakeTensor],
    wanted: Sequence[Any],
    tangents: Sequence[FakeTensor],
) -> Sequence[Any]:
    """The gradients, without those targets from which eager's backward raises."""
    try:
        return gradients_of(targets, wanted, tangents)
    except RuntimeError as error:
        if "When use_reentrant=True" in str(error):
            for one in wanted:
                if isinstance(one, FakeTensor) and not one.is_leaf:
                    one.retain_grad()
            return accumulated_gradients_of(targets, wanted, tangents)
        _check_backward_error(error)
    errors: list[str] = []
    for target, tangent in zip(targets, tangents, strict=True):
        try:
            gradients_of([target], wanted, [tangent])
        except RuntimeError as error:
            _check_backward_error(error)
            errors.append(str(error))
        else:
            errors.append("")
    context.backward_errors = tuple(errors)
    good = [number for number, error in enumerate(errors) if not error]
    if not good:
        return [None] * len(wanted)
    return gradients_of([targets[n] for n in good], wanted, [tangents[n] for n in good])


def _check_backward_error(error: RuntimeError) -> None:
    """Raise what is no error of the user's program, or what no graph can repeat."""
    if "invalid gradient" in str(error):
        raise UnsupportedAliasing(
            "a tensor that autograd follows gets another layout under no_grad",
            f"autograd does not know of it: {error}",
            "use the out-of-place view",
        ) from error
    if not any(text in str(error) for text in _BACKWARD_ERRORS):
        raise error


def _gradient_edge(leaf: FakeTensor, targets: Sequence[FakeTensor]) -> Any:
    """Where the gradient of an input's first value arrives."""
    if leaf.grad_fn is None:
        # `detach_` takes the flag away but not the part in what was computed before.
        if not leaf.requires_grad:
            leaf.requires_grad_()
        return leaf
    # Detached, then written through autograd: the tensor now stands for something else.
    pending = [target.grad_fn for target in targets]
    seen = set(pending)
    while pending:
        node = pending.pop()
        if getattr(node, "variable", None) is leaf:
            return GradientEdge(node, 0)
        for following, _ in () if node is None else node.next_functions:
            if following not in seen:
                seen.add(following)
                pending.append(following)
    return FakeTensor.create(leaf.meta, leaf.context, requires_grad=True)


_BACKWARD_ERRORS = (
    "modified by an inplace operation",
    "has been detached in-place",
    "backward through the graph a second time",
)
"""What autograd says of a forward that changed what its backward needs, or ran a backward of its own that freed it."""
