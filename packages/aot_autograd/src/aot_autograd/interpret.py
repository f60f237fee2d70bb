"""Running a captured graph on fakes, and reading what its placeholders promise.

Comes in: a `torch.fx.GraphModule` of wire 1. Goes out: a flat callable that runs it node by node,
telling the recording context the user's line of each node, so that every recorded node knows where
it comes from. Invariant: values are dropped after their last reader, as in eager.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from aot_autograd.errors import WireError
from aot_autograd.graph import WIRE
from aot_autograd.masks import simplified_masks
from aot_autograd.recording import RecordingContext
from primtorch import substitute
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def check_wire(module: fx.GraphModule, example_inputs: Sequence[Any]) -> None:
    """What wire 2 promises of a graph.

    Raises:
        WireError: for another wire version, or a wrong number of inputs.
    """
    version = module.meta.get("wire", WIRE)
    if version != WIRE:
        raise WireError(
            f"a graph of wire version {version}",
            f"this package reads version {WIRE}",
            "install matching versions of the compile-api packages",
        )
    count = sum(node.op == "placeholder" for node in module.graph.nodes)
    if count != len(example_inputs):
        raise WireError(
            f"{len(example_inputs)} example inputs",
            f"the graph has {count} placeholders",
            "pass one example per placeholder; parameters are placeholders too",
        )


def described_placeholders(
    module: fx.GraphModule, example_inputs: Sequence[Any]
) -> tuple[list[Any], list[Mapping[str, Any]]]:
    """For each placeholder its `val` (or None) and its input tag."""
    values: list[Any] = []
    tags: list[Mapping[str, Any]] = []
    nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
    for node, example in zip(nodes, example_inputs, strict=True):
        value = node.meta.get("val")
        values.append(
            value if isinstance(value, (FakeTensor, torch.SymInt, torch.SymFloat)) else None
        )
        tag = node.meta.get("input")
        if tag is None:
            kind = "parameter" if isinstance(example, torch.nn.Parameter) else "argument"
            tag = {"kind": kind, "name": str(node.target), "static": kind == "parameter"}
        tags.append(tag)
    return values, tags


class GraphFunction:
    """A flat function that runs a graph module."""

    def __init__(self, module: fx.GraphModule) -> None:
        self._module = self.graph_module = module
        self.__name__ = type(module).__name__
        self._last = _last_readers(module.graph)
        self._masks = simplified_masks(module)
        # What dynamo captured has met the overrides (`__torch_function__`) already.
        self._overridden = "wire" in module.meta

    def __call__(self, *args: Any) -> Sequence[Any]:
        """Run the graph; the result is the flat list of its outputs."""
        if self._overridden:
            with torch._C.DisableTorchFunctionSubclass():
                return self._run(*args)
        return self._run(*args)

    def _run(self, *args: Any) -> Sequence[Any]:
        values: dict[fx.Node, Any] = {}
        context = next((arg.context for arg in args if isinstance(arg, FakeTensor)), None)
        remaining = iter(args)
        load = fx.node.map_arg
        for node in self._module.graph.nodes:
            match node.op:
                case "placeholder":
                    values[node] = next(remaining)
                    continue
                case "output":
                    result = load(node.args[0], values.__getitem__)
                    return list(result) if isinstance(result, (tuple, list)) else [result]
                case "get_attr":
                    values[node] = _attribute(self._module, str(node.target))
                    continue
                case _:
                    pass
            if isinstance(context, RecordingContext):
                context.source_line = line = node.meta.get("source_line")
                if context.environment is not None:
                    context.environment.source_line = line
                context.module_path = node.meta.get("module_path")
            arguments = load(node.args, values.__getitem__)
            keywords = load(node.kwargs, values.__getitem__)
            if node.op == "call_function":
                if node in self._masks:
                    keywords = {**keywords, **self._masks[node]}
                function = substitute(node.target, arguments, keywords)
                values[node] = function(*arguments, **keywords)
            elif node.op == "call_method":
                method = _method(str(node.target), arguments, keywords)
                values[node] = method(*arguments, **keywords)
            else:
                values[node] = self._module.get_submodule(str(node.target))(*arguments, **keywords)
            for dead in self._last.get(node, ()):
                del values[dead]
        raise WireError("a graph without output", "it ends without an output node")


def _method(name: str, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    """A method as a function of its receiver; of tensors the one to run on fakes."""
    if isinstance(arguments[0], type):  # a class and its static method
        return lambda owner, *rest, **keywords: getattr(owner, name)(*rest, **keywords)
    own = getattr(type(arguments[0]), name)
    general = getattr(torch.Tensor, name, own)
    found = substitute(general, arguments, keywords)
    return own if found is general else found


def _last_readers(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    last: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        last[node] = node
        for source in node.all_input_nodes:
            last[source] = node
    dying: dict[fx.Node, list[fx.Node]] = {}
    for node, reader in last.items():
        if reader.op not in ("output", "placeholder", "get_attr"):
            dying.setdefault(reader, []).append(node)
    return dying


def _attribute(root: torch.nn.Module, path: str) -> Any:
    value: Any = root
    for name in path.split("."):
        value = getattr(value, name)
    return value
