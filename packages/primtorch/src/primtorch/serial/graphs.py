"""Graphs of the wires as data.

Comes in: a `torch.fx.GraphModule` whose nodes call operators or functions that have a path. Goes out: JSON, and from
JSON the same graph with the metadata that its receivers read: `val`, `input`, lines, roles. Invariant: a graph that
was read is compiled to the same as the one that was written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from primtorch.fake import FakeTensor, ShapeContext
from primtorch.serial.values import Foreign, NotStorable
from primtorch.symbolic import IntegerNode, SizeEnvironment, expression_of

if TYPE_CHECKING:
    from primtorch.fake.meta import TensorMeta
    from primtorch.serial.values import Reader, Writer

__all__ = ["read_graph", "write_graph"]

_KEPT = ("input", "source_line", "module_path", "draws_seed")
_MODULE_KEPT = ("wire", "role", "mutated_inputs")


def write_graph(module: fx.GraphModule, writer: Writer, *, values: bool = True) -> Any:
    """JSON of a graph; with `values` each node's metadata too.

    Raises:
        NotStorable: a target or an argument is of a kind that cannot be written, or `values` are symbolic.
    """
    numbers: dict[fx.Node, int] = {}
    lines: dict[Any, int] = {}

    def argument(value: Any) -> Any:
        match value:
            case fx.Node():
                return ["n", numbers[value]]
            case slice():
                return ["sl", *map(argument, (value.start, value.stop, value.step))]
            case dict():
                return ["d", *([argument(k), argument(v)] for k, v in value.items())]
            case tuple() | list() if type(value) is not torch.Size:
                return ["t" if isinstance(value, tuple) else "l", *map(argument, value)]
            case torch.SymInt() | torch.SymFloat():
                raise NotStorable("a graph holds a size as a constant")
            case _:
                return writer.value(value)

    nodes = []
    for node in module.graph.nodes:
        target = node.target if isinstance(node.target, str) else writer.value(node.target)
        row = [node.op, node.name, target, argument(tuple(node.args)), argument(dict(node.kwargs))]
        meta: dict[str, Any] = {}
        if values and "val" in node.meta:
            meta["val"] = _meta(node.meta["val"], writer)
        for key in _KEPT if values else ():
            if key in node.meta:
                meta[key] = node.meta[key]
        if "source_line" in meta:
            meta["source_line"] = lines.setdefault(meta["source_line"], len(lines))
        if "input" in meta:
            meta["input"] = writer.value(dict(meta["input"]))
        row.append(meta)
        numbers[node] = len(numbers)
        nodes.append(row)
    return {
        "nodes": nodes,
        "lines": [list(line) for line in lines],
        "attributes": _attributes(module, writer, values=values),
        "meta": {k: writer.value(module.meta[k]) for k in _MODULE_KEPT if k in module.meta},
    }


def _attributes(module: fx.GraphModule, writer: Writer, *, values: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for node in module.graph.nodes:
        if node.op != "get_attr" or node.target in found:
            continue
        held: Any = module
        for name in str(node.target).split("."):
            held = getattr(held, name)
        if isinstance(held, fx.GraphModule):
            found[node.target] = ["G", write_graph(held, writer, values=values)]
        else:
            found[node.target] = writer.value(held)
    return found


def _meta(value: Any, writer: Writer) -> Any:
    if isinstance(value, FakeTensor):
        if not value.meta.is_static:
            raise NotStorable("a graph whose sizes vary is compiled before it is stored")
        return ["V", writer.value(value.meta)]
    if isinstance(value, torch.SymInt):
        if isinstance(value.node, IntegerNode):
            raise NotStorable(f"the size {expression_of(value)} varies")
        return int(value)
    if isinstance(value, torch.SymFloat):
        raise NotStorable("a graph with a number that varies is compiled before it is stored")
    if isinstance(value, tuple | list):
        return ["t", *(_meta(item, writer) for item in value)]
    return writer.value(value)


def read_graph(data: Any, reader: Reader) -> fx.GraphModule:
    """The graph of JSON.

    Raises:
        Foreign: an object that it calls is not there, or the data is no graph.
    """
    try:
        return _read(data, reader, ShapeContext(SizeEnvironment()))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise Foreign(f"a graph is damaged: {error!r}") from None


def _read(data: Any, reader: Reader, context: ShapeContext) -> fx.GraphModule:
    graph = fx.Graph()
    made: list[fx.Node] = []
    lines = [tuple(line) for line in data["lines"]]

    def argument(value: Any) -> Any:
        if type(value) is not list:
            return value
        match value[0]:
            case "n":
                return made[value[1]]
            case "t":
                return tuple(map(argument, value[1:]))
            case "l":
                return list(map(argument, value[1:]))
            case "d":
                return {argument(k): argument(v) for k, v in value[1:]}
            case "sl":
                return slice(*map(argument, value[1:]))
            case _:
                return reader.value(value)

    def meaning(value: Any) -> Any:
        if type(value) is not list:
            return value
        if value[0] == "V":
            meta: TensorMeta = reader.value(value[1])
            return FakeTensor.create(meta, context)
        if value[0] == "t":
            return tuple(map(meaning, value[1:]))
        return reader.value(value)

    root = torch.nn.Module()
    for name, held in data["attributes"].items():
        owner: Any = root
        *path, last = name.split(".")
        for part in path:
            if not hasattr(owner, part):
                setattr(owner, part, torch.nn.Module())
            owner = getattr(owner, part)
        nested = type(held) is list and held[0] == "G"
        setattr(owner, last, _read(held[1], reader, context) if nested else reader.value(held))
    for op, name, target, args, kwargs, meta in data["nodes"]:
        goal = reader.value(target) if type(target) is list else target
        node = graph.create_node(op, goal, argument(args), argument(kwargs), name)
        if "val" in meta:
            node.meta["val"] = meaning(meta["val"])
        if "source_line" in meta:
            node.meta["source_line"] = lines[meta["source_line"]]
        if "input" in meta:
            node.meta["input"] = reader.value(meta["input"])
        for key in ("module_path", "draws_seed"):
            if key in meta:
                node.meta[key] = meta[key]
        made.append(node)
    module = fx.GraphModule(root, graph)
    module.meta.update({key: reader.value(value) for key, value in data["meta"].items()})
    return module
