"""From a function to one functional graph: forward, and the backward where there is one.

Comes in: a callable (or a captured graph) and a description of each flat input. Goes out: a
`Trace`: recorded nodes, the graph's outputs, and the metadata that the runtime needs. The function
runs once on fakes in the grad mode of the caller; then C++ autograd itself is asked for the
gradients of everything that requires one, with fake tangents. Invariant: the nodes of the forward
never depend on a tangent.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from aot_autograd import functional
from aot_autograd._torch import (
    OpOverload,
    composite_recurrent_layers,
    gradients_of,
    without_saved_tensor_hooks,
)
from aot_autograd.errors import TraceError, UnsupportedAliasing
from aot_autograd.graph import Node, to_fx
from aot_autograd.metadata import (
    Constant,
    FunctionMetadata,
    GraphOutput,
    InputAlias,
    InputMutation,
    Making,
    OutputKind,
    SameAs,
    SharedStorage,
)
from aot_autograd.recording import RecordingContext
from aot_autograd.rewriting import IN_PLACE_LAYOUTS
from aot_autograd.sizes import symbol_of
from primtorch.fake import FactoryMode, FakeTensor, TensorMeta

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import fx

    from aot_autograd.metadata import ViewChain
    from aot_autograd.options import AotOptions

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One distinct flat input.

    Attributes:
        position: Where it stands among the caller's flat inputs.
        meta: `TensorMeta`, a symbolic size, or a plain value.
        requires_grad: Of the real tensor.
        is_leaf: Of the real tensor; an in-place change of a leaf is the user's error.
        tag: What `node.meta["input"]` says of it.
    """

    position: int
    meta: Any
    requires_grad: bool
    is_leaf: bool
    tag: Mapping[str, Any]


@dataclass(slots=True)
class GraphValue:
    """One value that the graph returns: its node, and the tensor that C++ autograd knows it by."""

    node: Any
    tensor: FakeTensor | None
    requires_grad: bool


@dataclass(slots=True)
class Trace:
    """A recorded function.

    Attributes:
        nodes: Everything recorded, in order.
        values: Nodes of the mutated inputs' new values, then of the user's values.
        gradients: One node or None per differentiable input; empty without a backward.
        metadata: The contract with the caller.
    """

    nodes: list[Node]
    values: list[Any]
    gradients: list[Any]
    metadata: FunctionMetadata
    environment: Any
    has_backward: bool = False
    source: Any = field(default=None)

    def module(self) -> fx.GraphModule:
        """The joint graph (or the inference graph, where nothing requires a gradient)."""
        return to_fx(
            self.nodes,
            [*self.values, *self.gradients],
            role="joint" if self.has_backward else "inference",
            environment=self.environment,
        )


class Fresh(torch.autograd.Function):
    """Differentiable identity onto a tensor that is neither a leaf nor a view."""

    @staticmethod
    def forward(_ctx: Any, tensor: FakeTensor, keep_input: bool) -> FakeTensor:
        """A new tensor with the same value, on the same input when `keep_input`."""
        context = tensor.context
        assert isinstance(context, RecordingContext), "only recorded fakes are copied"
        value = tensor.record
        result = FakeTensor.create(tensor.meta, context, environment=context.environment)
        number = value.storage.input if keep_input else None
        return context.bind(result, value.node, number)

    @staticmethod
    def backward(_ctx: Any, gradient: FakeTensor) -> tuple[FakeTensor, None]:
        """The gradient as it is."""
        return gradient, None


def make_inputs(
    context: RecordingContext, specs: Sequence[InputSpec], shared: Sequence[SharedStorage] = ()
) -> tuple[list[Any], list[FakeTensor | None]]:
    """Placeholders and fakes for the inputs.

    Inputs of a shared storage have no placeholder of their own: the storage, as one flat tensor,
    comes after the others, and they are `as_strided` views of it.

    Returns:
        What the function is called with, and for each input the leaf that its gradient belongs to
        (None where it needs none).
    """
    arguments: list[Any] = []
    leaves: list[FakeTensor | None] = []
    members = {position for group in shared for position in group.members}
    for number, spec in enumerate(specs):
        if spec.position in members:
            arguments.append(None)
            leaves.append(None)
            continue
        node = context.placeholder(f"primal_{number}", spec.meta, dict(spec.tag))
        if not isinstance(spec.meta, TensorMeta):
            symbol = symbol_of(spec.meta)
            if symbol is not spec.meta and not isinstance(symbol, (int, float)):
                context.sizes.bind(symbol, node)
            arguments.append(spec.meta)
            leaves.append(None)
            continue
        fake = FakeTensor.create(
            spec.meta,
            context,
            requires_grad=spec.requires_grad,
            environment=context.environment,
        )
        context.bind(fake, node, number)
        leaves.append(fake if spec.requires_grad else None)
        if spec.requires_grad and not spec.is_leaf:
            with torch.enable_grad():
                fake = Fresh.apply(fake, True)
        arguments.append(fake)
    for group_number, group in enumerate(shared):
        _make_members(context, specs, group, group_number, arguments)
    return arguments, leaves


def _make_members(
    context: RecordingContext,
    specs: Sequence[InputSpec],
    group: SharedStorage,
    group_number: int,
    arguments: list[Any],
) -> None:
    inside = [(number, spec) for number, spec in enumerate(specs) if spec.position in group.members]
    first = inside[0][1].meta
    meta = TensorMeta((group.length,), (1,), first.dtype, first.device)
    tag = {"kind": "argument", "name": f"storage_{group_number}", "static": False}
    node = context.placeholder(f"storage_{group_number}", meta, tag)
    base = FakeTensor.create(meta, context, environment=context.environment)
    context.bind(base, node, -1 - group_number)
    for number, spec in inside:
        own: TensorMeta = spec.meta
        view = torch.as_strided(base, own.shape, own.stride, own.storage_offset)
        arguments[number] = view


class Observation:
    """Sorts what a traced function returned and changed into graph values and metadata."""

    def __init__(
        self, context: RecordingContext, specs: Sequence[InputSpec], arguments: Sequence[Any]
    ) -> None:
        self.context = context
        self.specs = specs
        self.arguments = arguments
        self._initial = {
            number: (argument._version, argument.grad_fn)
            for number, argument in enumerate(arguments)
            if isinstance(argument, FakeTensor)
        }
        self._argument_ids = {
            id(argument): specs[number].position
            for number, argument in enumerate(arguments)
            if isinstance(argument, FakeTensor)
        }
        self.values: list[GraphValue] = []
        self.mutations: list[InputMutation] = []
        self.outputs: list[OutputKind] = []

    def observe(self, outputs: Sequence[Any]) -> None:
        """Fill `mutations`, `outputs` and `values` (mutations first)."""
        self._refuse_layouts_of_members()
        self._observe_mutations()
        self._observe_outputs(outputs)

    def _refuse_layouts_of_members(self) -> None:
        """Leave to eager a new layout of an input that lies in a storage with others."""
        for number in self._initial:
            argument = self.arguments[number]
            if argument.record.storage.input < 0 and len(argument.record.chain) > 1:
                raise UnsupportedAliasing(
                    "an input whose layout changes in place",
                    "other inputs lie in the same memory, and one of them is written",
                    "use the out-of-place view, or pass clones",
                    self.context.source_line,
                )

    def _observe_mutations(self) -> None:
        changed: dict[Any, int] = {}
        detached = {
            number
            for number in self._initial
            if self.specs[number].requires_grad
            and (
                not self.arguments[number].requires_grad
                # A leaf takes part in autograd only after it was detached.
                or (self.specs[number].is_leaf and self.arguments[number].grad_fn is not None)
            )
        }
        for number in self._initial:
            storage = self.arguments[number].record.storage
            if storage.generation:
                changed.setdefault(storage, number)
        for storage, number in sorted(changed.items(), key=lambda item: item[0].written_at):
            tensor = self.arguments[number]
            version, grad_fn = self._initial[number]
            through_autograd = tensor.requires_grad and tensor.grad_fn is not grad_fn
            position = None
            if storage.node is not storage.first_node:
                position = len(self.values)
                base = storage.root if storage.input < 0 else tensor
                self.values.append(GraphValue(storage.node, base, through_autograd))
            where = storage.input if storage.input < 0 else self.specs[number].position
            layout = storage.layout
            if layout and (through_autograd or storage.input < 0):
                raise UnsupportedAliasing(
                    "an input whose layout and value both change in place",
                    "autograd follows the change, or other inputs lie in the same memory",
                    "use the out-of-place view",
                    self.context.source_line,
                )
            increment = tensor._version - version - len(layout)
            self.mutations.append(
                InputMutation(
                    where,
                    position,
                    through_autograd,
                    increment,
                    layout=_in_place(layout),
                    detached=number in detached,
                )
            )
            detached.discard(number)
        written = {self.specs[number].position for number in changed.values()}
        for number, (version, _) in self._initial.items():
            where = self.specs[number].position
            increment = self.arguments[number]._version - version
            layout = self.arguments[number].record.storage.layout
            if layout and where not in written:
                # Made on the real tensor by the same operators, which autograd sees there.
                self.mutations.append(
                    InputMutation(
                        where, None, False, increment - len(layout), layout=_in_place(layout)
                    )
                )
            elif number in detached:
                # The runtime's own detach_ counts once.
                self.mutations.append(
                    InputMutation(where, None, False, max(increment - 1, 0), detached=True)
                )
            elif increment and where not in written and self._owns(number):
                self.mutations.append(InputMutation(where, None, False, increment))

    def _owns(self, number: int) -> bool:
        """Whether no earlier input lies in the same storage, so that its count is the storage's."""
        storage = self.arguments[number].record.storage
        if storage.generation:
            return False
        return all(
            self.arguments[other].record.storage is not storage
            for other in self._initial
            if other < number
        )

    def _observe_outputs(self, outputs: Sequence[Any]) -> None:
        seen: dict[int, int] = {}
        sharing: dict[Any, int] = {}
        for output in outputs:
            if isinstance(output, FakeTensor) and id(output) not in seen:
                seen[id(output)] = -1
                storage = output.record.storage
                sharing[storage] = sharing.get(storage, 0) + 1
        seen.clear()
        bases: dict[Any, int] = {}
        for number, output in enumerate(outputs):
            known = seen.get(id(output)) if isinstance(output, torch.Tensor) else None
            if known is not None:
                self.outputs.append(SameAs(known))
                continue
            if isinstance(output, FakeTensor):
                seen[id(output)] = number
                self.outputs.append(self._fake_output(output, sharing, bases))
            elif isinstance(output, (torch.SymInt, torch.SymFloat)):
                node = self.context.sizes.node(symbol_of(output))
                if isinstance(node, (int, float)):
                    self.outputs.append(Constant(node))
                else:
                    position = self._add(GraphValue(node, None, False))
                    self.outputs.append(GraphOutput(position, (), "view", direct=True))
            else:
                self.outputs.append(Constant(output))

    def _fake_output(
        self, output: FakeTensor, sharing: dict[Any, int], bases: dict[Any, int]
    ) -> OutputKind:
        value = output.record
        storage = value.storage
        requires_grad = output.requires_grad
        if storage.input is not None:
            position = self._argument_ids.get(id(output))
            if position is not None:
                return InputAlias(position, (), "view", identical=True)
            number = storage.input
            where = number if number < 0 else self.specs[number].position
            base = storage.root if number < 0 else self.arguments[number]
            making = making_of(output, base)
            chain = self._after_layout(value)
            if making == "detached" and requires_grad:
                raise UnsupportedAliasing(
                    "an output that lies in an input's memory with a history of its own",
                    "it was detached from the input and then changed in place through autograd",
                    "clone() the input before the change",
                    self.context.source_line,
                )
            if not requires_grad and number >= 0 and self.specs[number].requires_grad:
                making = "detached"
            return InputAlias(where, chain, making, identical=False)
        root = storage.root
        making = making_of(output, root)
        made_in_no_grad = any(not step.grad_mode for step in value.chain)
        if requires_grad and not made_in_no_grad and output.is_leaf:
            raise TraceError(
                "a tensor made inside with requires_grad=True is returned",
                "a leaf of the caller's autograd graph cannot come out of a compiled graph",
                "make the tensor outside and pass it in",
                self.context.source_line,
            )
        shares = (
            sharing[storage] > 1
            or not _fills_its_block(output.meta)
            or (made_in_no_grad and requires_grad)
        )
        if not shares or root is None or (requires_grad and not root.requires_grad):
            node = functional.node_of(self.context, output)
            position = self._add(GraphValue(node, output, requires_grad))
            return GraphOutput(position, (), "view", direct=True)
        position = bases.get(storage, -1)
        if position < 0:
            node = functional.node_of(self.context, root)
            position = bases[storage] = self._add(GraphValue(node, root, root.requires_grad))
        return GraphOutput(position, self._after_layout(value), making, direct=output is root)

    def _after_layout(self, value: functional.Value) -> ViewChain:
        """The views from the root, in the layout that it has at the end, to an alias of it."""
        layout = value.storage.layout
        if value.chain[: len(layout)] != layout:
            raise UnsupportedAliasing(
                "a view of a tensor whose layout changed in place later",
                "the view begins at a layout that the tensor no longer has",
                "use the out-of-place view",
                self.context.source_line,
            )
        return value.chain[len(layout) :]

    def _add(self, value: GraphValue) -> int:
        self.values.append(value)
        return len(self.values) - 1 - len(self.mutation_values)

    @property
    def mutation_values(self) -> list[InputMutation]:
        """The mutations that have a value in the graph."""
        return [mutation for mutation in self.mutations if mutation.position is not None]

    def versions(self) -> tuple[int, ...]:
        """How often eager has changed each value in place by the time it is returned."""
        first = len(self.mutation_values)
        return tuple(
            0 if number < first or value.tensor is None else value.tensor._version
            for number, value in enumerate(self.values)
        )

    def separate(self) -> None:
        """Give each value that lies in an input's or another value's memory a copy of its own."""
        used: set[Node] = set()
        for value in self.values:
            node = value.node
            if value.tensor is None:
                continue
            root = _memory_of(node)
            if root in used or root.kind != "call":
                copy = self.context.record(
                    aten.clone.default, (self.context.fresh(node.meta, node),), {}, impure=True
                )
                value.node = copy.record.node
                value.node.impure = False
                if _is_apart(node.meta):
                    value.node.meta = node.meta  # eager's strides, gaps and all
                root = value.node
            used.add(root)


def _is_apart(meta: Any) -> bool:
    """Whether no two elements of a tensor with these sizes and strides can share memory."""
    if not meta.is_static:
        return False
    reach = 0
    for step, size in sorted(zip(meta.stride, meta.shape, strict=True)):
        if size > 1:
            if step <= reach:
                return False
            reach += step * (size - 1)
    return True


def _memory_of(node: Node) -> Node:
    """The node whose result a view node looks at, through any number of views."""
    while node.kind == "call" and node.operator in functional.INVERSES:
        node = node.args[0]
    return node


def making_of(output: FakeTensor, base: FakeTensor | None) -> Making:
    """Whether an alias of `base` shares its history."""
    if base is not None and base.requires_grad and not output.requires_grad:
        return "detached"
    return "view" if output is base or output._is_view() else "detached"


def _fills_its_block(meta: TensorMeta) -> bool:
    return functional.is_dense(meta) or 0 in meta.shape


def _in_place(layout: ViewChain) -> ViewChain:
    """The same changes of layout, as the in-place operators that the program called."""
    return tuple(replace(step, operator=IN_PLACE_LAYOUTS[step.operator]) for step in layout)


def tangent_meta(meta: TensorMeta) -> TensorMeta:
    """The layout in which the backward takes the gradient of a value."""
    if not functional.is_dense(meta):
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
    observation = Observation(context, specs, arguments)
    grad_mode = torch.is_grad_enabled()
    casting = _autocast_state()
    autocast = any(enabled for _, enabled, _ in casting)
    try:
        # oneDNN's recurrent layers ask for the grad mode at run time, which no graph carries:
        # with the library off ATen writes them in terms of matrix products.
        with (
            torch.autograd.set_multithreading_enabled(False),
            composite_recurrent_layers(),
            without_saved_tensor_hooks(),
            FactoryMode(context),
        ):
            outputs = function(*arguments[: len(arguments) - seeds])
            observation.observe(outputs)
            observation.separate()
            gradients = _record_backward(context, observation, leaves)
    finally:
        torch.set_grad_enabled(grad_mode)
        _restore_autocast(casting)
        context.seeds.restore()
    values = observation.values
    differentiable = tuple(number for number, leaf in enumerate(leaves) if leaf is not None)
    metadata = FunctionMetadata(
        inputs=inputs,
        graph_inputs=_graph_inputs(specs, shared),
        shared=tuple(shared),
        differentiable=differentiable if gradients is not None else (),
        mutations=tuple(observation.mutations),
        outputs=tuple(observation.outputs),
        value_requires_grad=tuple(value.requires_grad for value in values),
        value_versions=observation.versions(),
        view_values=tuple(
            number
            for number, value in enumerate(values)
            if isinstance(value.node, Node) and value.node.operator in functional.INVERSES
        ),
        tangents=tuple(
            tangent_meta(value.tensor.meta)
            for value in values
            if value.requires_grad and value.tensor is not None
        ),
        grad_mode=grad_mode,
        autocast=autocast,
        source=source,
        backward_error=context.backward_error,
        symbols=tuple(
            (spec.position, symbol_of(spec.meta))
            for spec in specs
            if symbol_of(spec.meta) is not spec.meta
        ),
    )
    return Trace(
        nodes=context.nodes,
        values=[value.node for value in values],
        gradients=[] if gradients is None else gradients,
        metadata=metadata,
        environment=environment,
        has_backward=gradients is not None,
    )


def _graph_inputs(specs: Sequence[InputSpec], shared: Sequence[SharedStorage]) -> tuple[int, ...]:
    members = {position for group in shared for position in group.members}
    own = [spec.position for spec in specs if spec.position not in members]
    return (*own, *[-1 - number for number in range(len(shared))])


def _record_backward(
    context: RecordingContext, observation: Observation, leaves: Sequence[FakeTensor | None]
) -> list[Any] | None:
    targets = [
        value.tensor
        for value in observation.values
        if value.requires_grad and value.tensor is not None
    ]
    if not targets:
        return None
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
    wanted = [leaf for leaf in leaves if leaf is not None]
    for leaf in wanted:
        # `detach_` on a leaf takes the flag away but not its part in what was computed before.
        if not leaf.requires_grad:
            leaf.requires_grad_()
    gradients: Sequence[Any] = ()
    if wanted:
        try:
            with _autocast_off():
                gradients = gradients_of(targets, wanted, tangents)
        except RuntimeError as error:
            if not any(text in str(error) for text in _BACKWARD_ERRORS):
                raise
            # Eager runs such a forward and fails in the backward, if there ever is one.
            context.backward_error = str(error)
            gradients = [None] * len(wanted)
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
    return [None if grad is None else context.node_of(grad) for grad in gradients]


_BACKWARD_ERRORS = ("modified by an inplace operation", "has been detached in-place")
"""What autograd says of a forward that changed what its backward needs."""


def _autocast_state() -> list[tuple[str, bool, torch.dtype]]:
    return [
        (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
        for kind in ("cpu", "cuda")
    ]


def _restore_autocast(state: list[tuple[str, bool, torch.dtype]]) -> None:
    """What a graph that failed between entering and leaving an autocast region left behind."""
    for kind, enabled, dtype in state:
        if torch.is_autocast_enabled(kind) != enabled:
            torch.set_autocast_enabled(kind, enabled)
        if torch.get_autocast_dtype(kind) != dtype:
            torch.set_autocast_dtype(kind, dtype)


class _autocast_off:  # noqa: N801 - reads as a with-statement's verb
    """Autocast as it is when `backward()` is called outside every autocast block."""

    def __enter__(self) -> None:
        self._enabled = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
        for kind in self._enabled:
            torch.set_autocast_enabled(kind, False)

    def __exit__(self, *_: object) -> None:
        for kind in self._enabled:
            torch.set_autocast_enabled(kind, True)
