"""FX graph in, loop `Graph` out: walks the nodes once and calls their lowerings.

Every operator of the graph ends as loops, as a view, as a vendor call or as a declared fallback; an
operator that nobody knows is never an error.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload

from inductor.errors import UnsupportedOperationError, WireError
from inductor.ir.machine import PROCESSOR
from inductor.ir.nodes import Graph, GraphInput, Origin, View
from inductor.ir.operations import VALUE_DTYPES, value_dtype
from inductor.lowering.attention import ATTENTION_ON_CPU, with_fewer_heads
from inductor.lowering.builder import Builder, TensorFact, is_dense
from inductor.lowering.layouts import carried, same_layout
from inductor.lowering.pointwise import cost, reader
from inductor.lowering.registry import LOWERINGS, VENDOR, VIEWS
from inductor.lowering.values import Value
from inductor.lowering.vendor import LAYOUT_GIVERS
from primtorch import ORDER_DEPENDENT
from primtorch.symbolic import REAL_FUNCTIONS, Expression

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch.fx import GraphModule, Node

    from inductor.ir.machine import DeviceProperties
    from inductor.ir.operations import Size
    from inductor.ir.recorder import Recorder, Scalar


def size_of(value: Any) -> Any:
    """A number of the graph as int, float, bool or expression."""
    if isinstance(value, torch.SymInt):
        from primtorch.symbolic import expression_of

        return expression_of(value)
    return value


def fact_of(value: Any) -> Any:
    """What `node.meta["val"]` promises: facts for tensors, numbers as they are."""
    if isinstance(value, torch.Tensor):
        meta = getattr(value, "meta", None)
        if meta is not None and hasattr(meta, "storage_offset"):
            return TensorFact(
                tuple(meta.shape), tuple(meta.stride), meta.dtype, meta.device, meta.storage_offset
            )
        return TensorFact(
            tuple(size_of(extent) for extent in value.shape),
            tuple(size_of(step) for step in value.stride()),
            value.dtype,
            value.device,
            size_of(value.storage_offset()),
        )
    if isinstance(value, list | tuple):
        return tuple(fact_of(item) for item in value)
    return size_of(value)


class _GraphBuilder(Builder):
    """A builder that knows which FX node it is at."""

    def __init__(
        self,
        facts: Mapping[Node, Any],
        *,
        round_halves: bool,
        for_gpu: bool,
        processor: DeviceProperties,
    ) -> None:
        super().__init__(round_halves=round_halves, for_gpu=for_gpu, processor=processor)
        self._facts = facts
        self.node: Node | None = None
        self.depthwise = any(_is_depthwise(node, facts) for node in facts)

    def argument_fact(self, position: int) -> TensorFact:
        """What the graph promises of the current node's argument `position`."""
        assert self.node is not None
        fact = self._facts[self.node.args[position]]
        assert isinstance(fact, TensorFact)
        return fact


aten = torch.ops.aten


def _is_depthwise(node: Node, facts: Mapping[Node, Any]) -> bool:
    """Whether a node is a convolution, or the gradient of one, with a filter of its own for each channel."""
    if node.target is aten.convolution.default:
        weight, groups = node.args[1], node.args[8]
    elif node.target is aten.convolution_backward.default:
        weight, groups = node.args[2], node.args[9]
    else:
        return False
    fact = facts[weight] if isinstance(weight, torch.fx.Node) else None
    return isinstance(fact, TensorFact) and groups != 1 and fact.shape[1] == 1


def _uses(nodes: list[Node]) -> dict[Node, int]:
    """How many consumers each node has, looking through views and tuple items."""
    uses: dict[Node, int] = {}
    for node in reversed(nodes):
        count = 0
        for user in node.users:
            through = user.target in VIEWS or user.target is operator.getitem
            count += uses[user] if through else 1
        uses[node] = count
    return uses


def lower(
    gm: GraphModule,
    *,
    name: str = "graph",
    round_halves: bool = True,
    for_gpu: bool = False,
    processor: DeviceProperties = PROCESSOR,
    ordered: bool = False,
) -> Graph:
    """Lower a graph of wire 3.

    Args:
        gm: the graph.
        name: its name in texts.
        round_halves: round values of half types at each operator's end, as eager does.
        for_gpu: lower for a GPU's kernels, whatever the devices are.
        processor: what the CPU's operators are chosen for (`inductor.runtime.processor`).
        ordered: leave operators whose results hang on the order of threads to the library, which has another
            algorithm for them or refuses (`primtorch.ORDER_DEPENDENT`).

    Raises:
        WireError: a node is no operator, or lacks its `val`.
    """
    nodes = list(gm.graph.nodes)
    facts: dict[Node, Any] = {}
    for node in nodes:
        if node.op != "output":
            facts[node] = _promised(gm, node)
    builder = _GraphBuilder(facts, round_halves=round_halves, for_gpu=for_gpu, processor=processor)
    builder.ordered = ordered
    uses = _uses(nodes)
    environment: dict[Node, Any] = {}
    inputs: list[GraphInput] = []
    constants: dict[str, torch.Tensor] = {}
    result: Any = ()
    outputs = _output_nodes(nodes)
    visible = _visible(gm, nodes)
    leaving = _leaving(nodes, visible)
    for node in nodes:
        builder.node = node
        match node.op:
            case "placeholder":
                environment[node] = _placeholder(builder, node, facts[node], inputs)
            case "get_attr":
                environment[node] = _attribute(builder, gm, node, facts[node], constants)
            case "call_function":
                builder.leaves = node in leaving
                value = _call(builder, node, facts[node], environment, free=node not in visible)
                environment[node] = value
                if isinstance(value, Value):
                    value.origin = value.origin or builder.origin
                    builder.settle(value, uses[node], output=node in outputs)
                    if node.meta.get("impure") and not uses[node]:
                        builder.realize(value)  # its index check raises, though nobody reads it
            case "output":
                result = node.args[0]
            case other:
                raise WireError(str(node), f"{other} nodes aren't part of a functional graph")
    owners = {
        environment[node].view.buffer: node
        for node in nodes
        if node.op == "placeholder"
        and isinstance(environment[node], Value)
        and environment[node].view is not None  # a varying number has no memory
    }
    finished = tuple(
        _output(builder, item, facts, environment, owners, free=item not in visible)
        for item in result
    )
    return Graph(
        name,
        tuple(inputs),
        builder.buffers,
        tuple(builder.nodes),
        finished,
        constants,
        str(gm.meta.get("role", "inference")),
        tuple(gm.meta.get("written", ())),
    )


def _promised(gm: GraphModule, node: Node) -> Any:
    if "val" in node.meta:
        return fact_of(node.meta["val"])
    if node.op == "get_attr":
        return fact_of(_fetch(gm, str(node.target)))
    raise WireError(str(node), 'has no meta["val"]', node.meta.get("source_line"))


def _fetch(gm: GraphModule, path: str) -> Any:
    value: Any = gm
    for part in path.split("."):
        value = getattr(value, part)
    return value


def _visible(gm: GraphModule, nodes: list[Node]) -> set[Any]:
    """The outputs whose strides the graph's caller sees: all but tensors saved for the backward."""
    results = [item for node in nodes if node.op == "output" for item in node.args[0]]
    return set(results[: gm.meta.get("visible_outputs", len(results))])


def _leaving(nodes: list[Node], visible: set[Any]) -> set[Node]:
    """What nothing but the graph's caller reads, itself or through views."""
    found: set[Node] = set()
    for node in reversed(nodes):
        readers = [user for user in node.users if user.op != "output"]
        if (node in visible or readers) and all(
            user.target in VIEWS and user in found for user in readers
        ):
            found.add(node)
    return found


def _output_nodes(nodes: list[Node]) -> set[Node]:
    found: set[Node] = set()
    for node in nodes:
        if node.op == "output":
            found.update(node.all_input_nodes)
    return found


def _placeholder(builder: Builder, node: Node, fact: Any, inputs: list[GraphInput]) -> Any:
    described = node.meta.get("input", {})
    name = str(node.name)
    if isinstance(fact, TensorFact):
        buffer = builder.buffer(fact.shape, fact.stride, fact.dtype, fact.device, name)
        inputs.append(GraphInput(name, "tensor", static=bool(described.get("static", False))))
        return builder.stored(buffer)
    if isinstance(fact, Expression):
        inputs.append(GraphInput(name, "size", fact))
        return fact
    if isinstance(fact, torch.SymFloat):
        inputs.append(GraphInput(name, "scalar", dtype=torch.float64))
        return _scalar(builder, name)
    if fact is None or isinstance(fact, (bool, int, float, complex)):
        inputs.append(GraphInput(name, "size"))
        return fact
    raise WireError(str(node), f"an input can't be {type(fact).__name__}")


def _scalar(builder: Builder, name: str) -> Value:
    """A varying number as a tensor without dimensions."""
    return _number(builder, lambda recorder, _: recorder.argument(name, torch.float64), 0, 0)


def _number(
    builder: Builder,
    load: Callable[[Recorder, tuple[Size, ...]], Scalar],
    operations: int,
    loads: int,
) -> Value:
    value = builder.pointwise(
        load,
        shape=(),
        dtype=torch.float64,
        device=torch.device("cpu"),
        operations=operations,
        loads=loads,
    )
    value.number = True
    return value


_REAL_OPERATIONS: dict[Any, str | None] = {
    operator.add: "add",
    operator.sub: "sub",
    operator.mul: "mul",
    operator.truediv: "div",
    operator.floordiv: "floor_div",
    operator.mod: "remainder",
    operator.pow: "pow",
    operator.neg: "neg",
    operator.abs: "abs",
    torch.sym_max: "maximum",
    torch.sym_min: "minimum",
    torch.sym_sqrt: "sqrt",
    torch.sym_float: None,
    **{function: function.__name__ for function in REAL_FUNCTIONS.values()},
}


def _real(builder: Builder, target: Any, operands: tuple[Any, ...]) -> Value:
    """Arithmetic on varying numbers: computed in float64 as Python does, whatever they are."""
    readers = tuple(reader(operand, ()) for operand in operands)
    name = _REAL_OPERATIONS[target]

    def load(recorder: Recorder, coordinates: tuple[Size, ...]) -> Scalar:
        scalars = [
            recorder.to_dtype(read(recorder, coordinates), torch.float64) for read in readers
        ]
        return scalars[0] if name is None else recorder.op(name, *scalars)

    operations, loads = cost(operands)
    return _number(builder, load, operations + 1, loads)


def _attribute(
    builder: Builder, gm: GraphModule, node: Node, fact: Any, constants: dict[str, torch.Tensor]
) -> Any:
    value = _fetch(gm, str(node.target))
    if not isinstance(value, torch.Tensor):
        raise WireError(str(node), f"the constant {node.target} is no tensor")
    name = f"constant_{len(constants)}"
    constants[name] = value.detach()
    assert isinstance(fact, TensorFact)
    return builder.stored(
        builder.buffer(tuple(value.shape), value.stride(), value.dtype, value.device, name)
    )


def _call(
    builder: Builder, node: Node, fact: Any, environment: dict[Node, Any], *, free: bool
) -> Any:
    """What a node yields; the layout of what the caller doesn't see is free."""
    target = node.target
    sizes = not isinstance(target, OpOverload) or isinstance(fact, (int, Expression))
    if sizes and target is not operator.getitem and not _has_tensor(fact):
        if isinstance(fact, torch.SymFloat) and target in _REAL_OPERATIONS:
            return _real(builder, target, _arguments(node.args, environment))
        return fact  # integer arithmetic: the promised value is the expression itself
    args = _arguments(node.args, environment)
    if target is ATTENTION_ON_CPU:
        args = with_fewer_heads(builder, node, args, environment)
    if target is operator.getitem:
        return args[0][args[1]]
    if not isinstance(target, OpOverload):
        raise WireError(
            str(node), f"{target} is no operator overload", node.meta.get("source_line")
        )
    kwargs = {key: _arguments(value, environment) for key, value in node.kwargs.items()}
    if free and kwargs.get("memory_format") != torch.contiguous_format:
        fact = _carried(builder, target, fact, args)
    builder.fact = fact
    builder.operator = target
    builder.origin = Origin(str(node.name), str(target), node.meta.get("source_line"))
    function = LOWERINGS.get(target)
    strange = _strange_dtype((fact, *args, *kwargs.values()))
    if strange is not None:
        return builder.call("fallback", target, args, kwargs, f"{strange} isn't computed in loops")
    if target not in VIEWS and _is_complex_on_gpu(builder, (fact, *args, *kwargs.values())):
        why = "a GPU's kernels have no complex numbers"
        return builder.call("fallback", target, args, kwargs, why)
    if builder.ordered and target in ORDER_DEPENDENT:
        return builder.call(
            "vendor", target, args, kwargs, "deterministic algorithms are asked for"
        )
    if function is None:
        reason = VENDOR.get(target)
        if reason is not None:
            return builder.call("vendor", target, args, kwargs, reason)
        return builder.call("fallback", target, args, kwargs, "nobody lowers it")
    try:
        return function(builder, *args, **kwargs)
    except UnsupportedOperationError as error:
        # What was stored meanwhile is right as it is; what nobody reads is dropped by the schedule.
        builder.fact = fact
        return builder.call("fallback", target, args, kwargs, error.why)


def _carried(builder: Builder, target: OpOverload, fact: Any, args: tuple[Any, ...]) -> Any:
    """The layout that a result takes over from its operands, if the operator lets it choose."""
    if target in VIEWS:
        return fact
    image = LAYOUT_GIVERS.get(target)
    if image is not None:
        return carried(builder, fact, args[image : image + 1])
    return carried(builder, fact, args) if target in LOWERINGS else fact


def _strange_dtype(values: Any) -> torch.dtype | None:
    """A dtype among results and operands that bodies don't have."""
    for value in values:
        if isinstance(value, (TensorFact, Value)):
            if value_dtype(value.dtype) not in VALUE_DTYPES:
                return value.dtype
        elif isinstance(value, tuple):
            inner = _strange_dtype(value)
            if inner is not None:
                return inner
    return None


def _is_complex_on_gpu(builder: Builder, values: Any) -> bool:
    """Whether a result or operand is complex and its kernel would be a GPU's."""
    for value in values:
        if isinstance(value, (TensorFact, Value)):
            if value.dtype.is_complex and builder.on_gpu(value.device):
                return True
        elif isinstance(value, tuple) and _is_complex_on_gpu(builder, value):
            return True
    return False


def _has_tensor(fact: Any) -> bool:
    if isinstance(fact, tuple):
        return any(_has_tensor(item) for item in fact)
    return isinstance(fact, TensorFact)


def _arguments(value: Any, environment: dict[Node, Any]) -> Any:
    if isinstance(value, torch.fx.Node):
        return environment[value]
    if isinstance(value, list | tuple):
        return tuple(_arguments(item, environment) for item in value)
    return size_of(value)


def _root(node: Node) -> Node:
    """The node whose memory a node shows, as the graph has it."""
    while node.target in VIEWS or node.target is operator.getitem:
        first = node.args[0]
        if not isinstance(first, torch.fx.Node):
            break
        node = first
    return node


def _output(
    builder: Builder,
    item: Any,
    facts: Mapping[Node, Any],
    environment: dict[Node, Any],
    owners: dict[str, Node],
    *,
    free: bool,
) -> View | Size | float | None:
    """What the callable returns for one output.

    `owners` says which node's memory each returned buffer is: what the graph calls a copy must not
    share memory with another output, an input or a constant, though inside it needn't be copied.
    """
    if not isinstance(item, torch.fx.Node):
        return size_of(item)
    value = environment[item]
    fact = facts[item]
    if isinstance(fact, torch.SymFloat):
        return float(fact)  # a number, not a tensor: this graph is for this number alone
    if not isinstance(value, Value):
        return value
    builder.fact = fact
    builder.origin = Origin(str(item.name), "output", item.meta.get("source_line"))
    view = _output_view(builder, value)
    root = _root(item)
    mine = owners.setdefault(view.buffer, root) is root and root.op != "get_attr"
    dense = free and is_dense(view.shape, view.stride)
    if mine and dense:
        return view
    if mine and same_layout(view.shape, view.stride, fact.stride):
        return replace(view, stride=fact.stride)
    buffer = builder.buffer(fact.shape, fact.stride, fact.dtype, fact.device)
    builder.store(value, buffer.view)
    return buffer.view


def _output_view(builder: Builder, value: Value) -> View:
    """Where an output lies; of a part of something computed, the whole is stored, as in eager."""
    if value.view is None and value.base is not None and value.window is not None:
        view = value.window(_output_view(builder, value.base))
        if view is not None:
            value.view = view
            value.function = None
            return view
    return builder.realize(value)
