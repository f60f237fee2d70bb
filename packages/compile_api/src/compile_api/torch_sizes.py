"""A graph of torch's capture in the terms of our wire: sizes first, our symbols for torch's.

In: the graph with torch's symbolic sizes on its placeholders, and the call's real inputs. Out: the same graph with a
placeholder for each size that varies, before the tensors, each with our `val`; how a call's inputs are put in that
order; and the pairs of symbols, by which a condition that our stages rely on is asked of torch's sizes, so that
torch records it as a guard of its own. Invariant: everything assumed of a size was asked of torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from primtorch.fake import FakeTensor, ShapeContext, fakeify
from primtorch.symbolic import (
    SizeEnvironment,
    Symbol,
    evaluate,
    expression_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Translation", "translate"]

SMALLEST = 2  # sizes 0 and 1 mean something else: empty, broadcast


class _NotTranslated(Exception):
    """An input has no counterpart on our wire, or a size has no value yet."""


@dataclass(slots=True)
class Translation:
    """A graph for our stages, its example inputs, and what torch knows of its sizes."""

    environment: SizeEnvironment
    graph: fx.GraphModule
    inputs: list[Any] = field(default_factory=list)
    loads: list[Callable[[Sequence[Any]], Any]] = field(default_factory=list)
    theirs: dict[Symbol, torch.SymInt] = field(default_factory=dict)

    def arranged(self, inputs: Sequence[Any]) -> list[Any]:
        """The inputs of a call of torch's graph in the order of ours."""
        return [load(inputs) for load in self.loads]

    def ask(self) -> bool:
        """Asks torch every condition that was assumed while compiling; False if it can't be asked, or differs."""
        self.environment.freeze()
        for guard in self.environment.guards:
            try:
                if not bool(guard.predicate.evaluate(self.theirs)):
                    return False
            except (
                KeyError,
                TypeError,
                ValueError,
            ):  # of a varying float, which torch does not guard
                return False
        return True


class _Translator:
    """Fills one `Translation`; `sizes` remembers our symbol for each of torch's expressions."""

    def __init__(self, graph: fx.GraphModule) -> None:
        self.environment = SizeEnvironment()
        self.context = ShapeContext(self.environment)
        self.target = fx.Graph()
        self.result = Translation(self.environment, graph)
        self.sizes: dict[str, Any] = {}
        self.nodes: dict[str, fx.Node] = {}

    def size(self, value: Any, load: Callable[[Sequence[Any]], int]) -> Any:
        """Our size for an int or one of torch's; a new one becomes a placeholder read by `load`."""
        if not isinstance(value, torch.SymInt):
            return value
        name = str(value)
        if name in self.sizes:
            return self.sizes[name]
        hint = value.node.hint
        if not isinstance(hint, int):
            raise _NotTranslated(name)
        if hint < SMALLEST or not bool(value >= SMALLEST):
            found: Any = int(value)  # torch records the value
        else:
            found = self.environment.create_size(name, hint, lower=SMALLEST)
            symbol = expression_of(found)
            assert isinstance(symbol, Symbol)
            self.result.theirs[symbol] = value
            self.nodes[name] = self.place("size", name, found, found, load)
        self.sizes[name] = found
        return found

    def place(
        self, kind: str, name: str, val: Any, example: Any, load: Callable[[Sequence[Any]], Any]
    ) -> fx.Node:
        """A placeholder with what the wire asks of it."""
        node = self.target.placeholder(f"{kind}_{len(self.result.inputs)}")
        static = kind in ("parameter", "buffer")
        node.meta = {"val": val, "input": {"kind": kind, "name": name, "static": static}}
        self.result.inputs.append(example)
        self.result.loads.append(load)
        return node

    def fake(self, position: int, tensor: torch.Tensor, known: Any) -> FakeTensor:
        """The tensor's stand-in with our sizes; torch is asked that its strides follow from them."""
        shape = [
            self.size(size, partial(_size_of, position, d)) for d, size in enumerate(known.shape)
        ]
        made = fakeify(tensor, self.context, shape=shape)
        for ours, theirs in zip(made.meta.stride, known.stride(), strict=True):
            if not bool(evaluate(ours, self.result.theirs) == theirs):
                raise _NotTranslated(f"strides {known.stride()}")
        if isinstance(known.storage_offset(), torch.SymInt):
            int(known.storage_offset())
        return made


def _size_of(position: int, dimension: int, inputs: Sequence[Any]) -> int:
    """A size of one of the inputs of a call."""
    size: int = inputs[position].shape[dimension]
    return size


def _number_of(position: int, inputs: Sequence[Any]) -> float:
    """The number in one of the inputs of a call."""
    number: float = inputs[position].item()
    return number


def _is_wrapped_number(node: fx.Node, tensor: Any) -> bool:
    """torch hands a varying float as a tensor that is only asked for its value."""
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.dim() == 0
        and bool(node.users)
        and all(user.op == "call_method" and user.target == "item" for user in node.users)
    )


def translate(graph: fx.GraphModule, inputs: Sequence[Any]) -> Translation | None:
    """The graph with our sizes; None if it has none that vary, or is not to be translated.

    Args:
        graph: torch's, with `example_value` on its placeholders.
        inputs: the real tensors of the call and torch's symbolic sizes, one for each placeholder.
    """
    places = [node for node in graph.graph.nodes if node.op == "placeholder"]
    known = [node.meta.get("example_value") for node in places]
    if not any(_varies(value) for value in known):
        return None
    try:
        return _translated(graph, places, known, inputs)
    except _NotTranslated:
        return None


def _varies(known: Any) -> bool:
    if isinstance(known, torch.Tensor):
        return any(isinstance(size, torch.SymInt) for size in known.shape)
    return isinstance(known, torch.SymInt | torch.SymFloat)


def _translated(
    graph: fx.GraphModule, places: list[fx.Node], known: list[Any], inputs: Sequence[Any]
) -> Translation:
    translator = _Translator(graph)
    result = translator.result
    values: dict[fx.Node, Any] = {}
    fakes: dict[int, FakeTensor] = {}
    for position, (node, value, example) in enumerate(zip(places, known, inputs, strict=True)):
        if isinstance(value, torch.SymInt):
            size = translator.size(value, itemgetter(position))
            values[node] = translator.nodes.get(str(value), size)
        elif _is_wrapped_number(node, example):
            number = translator.environment.create_float(node.name, example.item())
            made = translator.place(
                "scalar", node.name, number, number, partial(_number_of, position)
            )
            values.update(dict.fromkeys(node.users, made))
        elif type(example) in (torch.Tensor, torch.nn.Parameter):
            fakes[position] = translator.fake(position, example, value)
        else:
            raise _NotTranslated(f"an input of type {type(example).__name__}")
    for position, made in fakes.items():
        kind = "parameter" if type(inputs[position]) is torch.nn.Parameter else "argument"
        values[places[position]] = translator.place(
            kind, places[position].name, made, inputs[position],
            itemgetter(position),
        )  # fmt: skip
    for node in graph.graph.nodes:
        if node.op != "placeholder" and node not in values:
            values[node] = translator.target.node_copy(node, lambda old: values[old])
    result.graph = fx.GraphModule(graph, translator.target)
    return result
