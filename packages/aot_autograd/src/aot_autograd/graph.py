"""The light graph that a trace records, and its conversion to `torch.fx`.

Comes in: one `Node` per operator call, appended in program order while the function runs on fakes.
Goes out: a `torch.fx.GraphModule` with dead code removed. A light node costs a tenth of an fx node,
and most of what is recorded is dead or merged before anybody looks at it. Invariants: arguments
refer to earlier nodes only; `meta` is what the node yields; a node without effect on the outputs is
never converted unless it draws random numbers or is otherwise `impure`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from primtorch.fake import FakeTensor, ShapeContext, TensorMeta
from primtorch.symbolic import Expression, Real, RealNode, RealSymbol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aot_autograd.errors import SourceLine

WIRE = 1


class Node:
    """One value of the recorded graph.

    Attributes:
        operator: The overload or plain function that is called; None for placeholders, the tensor
            itself for constants.
        args, kwargs: With `Node` where a value of the graph is meant.
        meta: `TensorMeta`, a number, or a tuple of these.
        phase: "forward" or "backward": when it was recorded.
        impure: The call must neither be merged with an equal one nor dropped nor repeated.
        region: Number of the checkpoint region that the node must be recomputed with, or 0.
        kept: A checkpoint's policy wants the value saved, not recomputed.
    """

    __slots__ = (
        "args",
        "fx_node",
        "impure",
        "kept",
        "kind",
        "kwargs",
        "meta",
        "module_path",
        "name",
        "operator",
        "phase",
        "region",
        "source_line",
        "tag",
    )

    def __init__(
        self,
        kind: str,
        operator: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        meta: Any,
        phase: str,
    ) -> None:
        self.kind = kind
        self.operator = operator
        self.args = args
        self.kwargs = kwargs
        self.meta = meta
        self.phase = phase
        self.impure = False
        self.region = 0
        self.kept = False
        self.name = ""
        self.source_line: SourceLine | None = None
        self.module_path: str | None = None
        self.tag: dict[str, Any] | None = None
        self.fx_node: fx.Node | None = None

    def __repr__(self) -> str:
        return f"Node({self.kind}, {self.operator}, {self.meta})"


class DeferredModule(fx.GraphModule):
    """A graph module whose Python code is written when it is first run or looked at.

    Most graphs go straight to a compiler, and writing and compiling their code would be a third of
    the time that making them takes.
    """

    def recompile(self) -> Any:
        """Forget the code; the next call or look writes it."""
        type(self).forward = _write_code_and_run
        self.__dict__.pop("_code", None)

    @property
    def code(self) -> str:
        """The Python code of the graph."""
        self.write_code()
        return str(self._code)

    def write_code(self) -> None:
        """Write and compile the code unless that is done."""
        if "_code" not in self.__dict__:
            fx.GraphModule.recompile(self)

    def __reduce__(self) -> Any:
        self.write_code()
        plain = fx.GraphModule(self, self.graph)
        plain.meta = self.meta
        return plain.__reduce__()


def _write_code_and_run(self: DeferredModule, *args: Any) -> Any:
    # Another thread may be at it, and have set `_code` but not `forward`; both write the same.
    fx.GraphModule.recompile(self)
    return type(self).forward(self, *args)


def each_node(value: Any, visit: Callable[[Node], None]) -> None:
    """Call `visit` on every node inside an argument."""
    if type(value) is Node:
        visit(value)
    elif type(value) in (tuple, list):
        for item in value:
            each_node(item, visit)


aten = torch.ops.aten
# They raise where an index is out of bounds; by the place of the indices among their arguments.
_CHECKED: dict[Any, int] = {
    aten.index.Tensor: 1,
    aten.index_select.default: 2,
    aten.gather.default: 2,
    aten.take.default: 1,
    aten.embedding.default: 1,
    aten.index_put.default: 1,
    aten.scatter.src: 2,
    aten.scatter.value: 2,
    aten.scatter_add.default: 2,
    aten.index_add.default: 2,
    aten.index_copy.default: 2,
}

_INTEGERS = (torch.int64, torch.int32)


def _may_raise(node: Node) -> bool:
    """Whether eager would look at indices that only run time knows, though nobody reads what it gives."""
    place = _CHECKED.get(node.operator)
    if place is None or node.phase != "forward":
        return False
    pending: list[Node] = []
    each_node(node.args[place], pending.append)
    seen: set[Node] = set()
    while pending:
        index = pending.pop()
        if index in seen or type(index.meta) is not TensorMeta or index.meta.dtype not in _INTEGERS:
            continue
        if index.kind == "placeholder":
            return True
        seen.add(index)
        for arg in index.args:
            each_node(arg, pending.append)
    return False


def live_nodes(nodes: Sequence[Node], outputs: Sequence[Any]) -> list[Node]:
    """The nodes that the outputs need, in order; impure calls, checks and placeholders always stay."""
    live: set[Node] = set()

    def mark(node: Node) -> None:
        live.add(node)

    for output in outputs:
        each_node(output, mark)
    kept: list[Node] = []
    for node in reversed(nodes):
        if node not in live and not node.impure and _may_raise(node):
            node.impure = True
        if node in live or node.impure or node.kind == "placeholder":
            kept.append(node)
            for arg in node.args:
                if type(arg) is Node:
                    live.add(arg)
                elif type(arg) in (tuple, list):
                    each_node(arg, mark)
            for arg in node.kwargs.values():
                each_node(arg, mark)
    kept.reverse()
    return kept


def value_of(meta: Any, context: ShapeContext) -> Any:
    """What `node.meta["val"]` holds for a node with this metadata."""
    if type(meta) is TensorMeta:
        return FakeTensor.create(meta, context, environment=context.environment)
    if type(meta) in (tuple, list):
        return tuple(value_of(item, context) for item in meta)
    environment = context.environment
    if isinstance(meta, Expression) and environment is not None:
        return environment.symint(meta)
    if isinstance(meta, (Real, RealSymbol)) and environment is not None:
        return torch.SymFloat(RealNode(meta, environment))
    return meta


def to_fx(
    nodes: Sequence[Node],
    outputs: Sequence[Any],
    *,
    role: str,
    environment: Any,
) -> fx.GraphModule:
    """Convert the live part of a recorded graph.

    Args:
        nodes: Everything recorded, in order.
        outputs: A node, None or a number for each output.
        role: `gm.meta["role"]`.
        environment: The size environment of symbolic metadata, or None.

    Returns:
        A module whose placeholders are in the order of the placeholder nodes.
    """
    graph = fx.Graph()
    context = ShapeContext(environment)
    constants: dict[str, Any] = {}
    live = live_nodes(nodes, outputs)
    create = graph.create_node

    def convert(value: Any) -> Any:
        kind = type(value)
        if kind is Node:
            return value.fx_node
        if kind is tuple or kind is list:
            return [convert(item) for item in value]
        return value

    placeholders = [node for node in live if node.kind == "placeholder"]
    for node in placeholders:
        node.fx_node = create("placeholder", node.name or "input", (), {})
        node.fx_node.meta["input"] = node.tag
        node.fx_node.meta["val"] = value_of(node.meta, context)
    for node in live:
        match node.kind:
            case "placeholder":
                continue
            case "call":
                node.fx_node = create(
                    "call_function",
                    node.operator,
                    tuple(convert(arg) for arg in node.args),
                    {key: convert(arg) for key, arg in node.kwargs.items()} if node.kwargs else {},
                )
            case "constant":
                name = f"constant_{len(constants)}"
                constants[name] = node.operator
                node.fx_node = create("get_attr", name, (), {})
            case _:
                raise AssertionError(f"unknown kind of node {node.kind!r}")
        meta = node.fx_node.meta
        meta["val"] = value_of(node.meta, context)
        meta["phase"] = node.phase
        if node.impure:
            meta["impure"] = True
        if node.kept:
            meta["kept_by_policy"] = True
        if node.region:
            meta["recompute_region"] = node.region
        if node.source_line is not None:
            meta["source_line"] = node.source_line
        if node.module_path is not None:
            meta["module_path"] = node.module_path
    graph.output(tuple(convert(output) for output in outputs))
    root = torch.nn.Module()
    for name, tensor in constants.items():
        root.register_buffer(name, tensor, persistent=False)
    for node in live:
        node.fx_node = None
    module = DeferredModule(root, graph)
    module.meta["wire"] = WIRE
    module.meta["role"] = role
    return module
