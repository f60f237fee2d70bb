"""A graph with sizes known only at run time, or with hooks, as stages between the operators that tell them.

`item()`, `nonzero()` and the like run by torch's own operators, as does arithmetic of the numbers they give. Where a
module has backward hooks, autograd gets torch's own node, which calls them; a tensor whose hook no graph can hold is
one between stages. What lies between is compiled like any
graph with symbolic sizes, at the first call, when the numbers are there to be hints. What the compiler assumes of them
is checked in each call: other numbers may get another version of a stage, and after `_MOST` versions the stage runs
uncompiled. Gradients pass through the stages and the operators between them.
Invariant: the nodes run in the order of the graph.
"""

from __future__ import annotations

import builtins
import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from dynamo.graph.sizes import SYMBOLIC
from dynamo.graph.wrappers import grown
from dynamo.guards import TensorGuard
from primtorch import regions
from primtorch.errors import PrimtorchError
from primtorch.fake import FactoryMode, FakeMode, FakeTensor, ShapeContext, fakeify
from primtorch.symbolic import Expression, SizeEnvironment, expression_of, free_symbols

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dynamo.graph.sizes import Sizes

__all__ = ["check_at_run_time", "has_boundaries", "runs_between", "staged"]

_MOST = 8
# They change the state of the program: between stages, so that each stage is compiled in its state.
_STATE: frozenset[Any] = frozenset(
    {
        torch._C._set_grad_enabled,
        regions.enter_autocast,
        regions.exit_autocast,
        regions.enter_inference_mode,
        regions.exit_inference_mode,
    }
)
_BETWEEN: frozenset[Any] = frozenset(
    {
        regions.enter_module_hooks,
        regions.leave_module_hooks,
        regions.reserve_hook,
        regions.retain_gradient,
        regions.seed_generators,
        regions.fork_generators,
        regions.join_generators,
    }
)
_READS = frozenset({"item", "sym_size", "check_at_run_time"})


@dataclass(slots=True)
class _Stage:
    """Nodes that are compiled together, and the versions made so far."""

    nodes: list[torch.fx.Node]
    inputs: list[torch.fx.Node] = field(default_factory=list)
    outputs: list[torch.fx.Node] = field(default_factory=list)
    symbols: list[str] = field(default_factory=list)
    versions: list[_Version] = field(default_factory=list)
    eager: Any = None


@dataclass(frozen=True, slots=True)
class _Version:
    """A compiled stage: which numbers and tensors it is for."""

    run: Callable[..., Any]
    sizes: tuple[str, ...]
    numbers: dict[str, int]
    conditions: tuple[tuple[Any, tuple[tuple[Any, str], ...]], ...]
    tensors: tuple[TensorGuard | None, ...]
    grad: bool

    def fits(self, numbers: dict[str, Any], tensors: Sequence[Any]) -> bool:
        """Whether it may run on these."""
        return (
            self.grad is torch.is_grad_enabled()
            and all(numbers[name] == value for name, value in self.numbers.items())
            and all(numbers[name] > 1 for name in self.sizes)  # what symbols are assumed to be
            and all(
                guard is None or guard.matches(tensor)
                for guard, tensor in zip(self.tensors, tensors, strict=True)
            )
            and all(
                predicate.evaluate({symbol: numbers[name] for symbol, name in symbols})
                for predicate, symbols in self.conditions
            )
        )


def check_at_run_time(condition: bool, error: str, text: str) -> None:
    """What a program promised of a number; raises what it said, a builtin exception by its name."""
    if not condition:
        raise getattr(builtins, error)(text)


def runs_between(node: torch.fx.Node) -> bool:
    """Whether a node is about hooks or seeds generators: it runs by itself, in no stage."""
    return node.target in _BETWEEN


def has_boundaries(graph: torch.fx.Graph) -> bool:
    """Whether a graph has such nodes."""
    return any(node.op == "call_function" and runs_between(node) for node in graph.nodes)


def staged(module: torch.fx.GraphModule, sizes: Sizes, backend: Any) -> Callable[..., Any]:
    """A callable that runs the graph; `backend` compiles its stages when they first run."""
    program = _program(module.graph, sizes)
    return _Runner(module, sizes, backend, program)


def _numbers_of(value: Any) -> set[str]:
    """The names of the symbols in what a node yields."""
    if isinstance(value, torch.SymInt):
        return {symbol.name for symbol in free_symbols(expression_of(value))}
    if isinstance(value, FakeTensor):
        found: set[str] = set()
        for size in (*value.meta.shape, *value.meta.stride, value.meta.storage_offset):
            if isinstance(size, Expression):
                found.update(symbol.name for symbol in size.free_symbols)
        return found
    if isinstance(value, tuple | list):
        return set().union(*map(_numbers_of, value))
    return set()


def _on_host(node: torch.fx.Node, sizes: Sizes) -> bool:
    """Whether torch's own operator runs for a node, between stages."""
    if node in sizes.producers or node.target in _STATE or runs_between(node):
        return True
    name = getattr(node.target, "__name__", "")
    if isinstance(node.meta.get("val"), SYMBOLIC) or name in _READS:
        return True
    if node.target is not operator.getitem:
        return False
    source: Any = node.args[0]
    return source in sizes.producers or runs_between(source)


def _program(graph: torch.fx.Graph, sizes: Sizes) -> list[Any]:
    """The graph as stages and single nodes, in order."""
    steps: list[Any] = []
    for node in graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        if _on_host(node, sizes):
            steps.append(node)
        elif steps and isinstance(steps[-1], _Stage):
            steps[-1].nodes.append(node)
        else:
            steps.append(_Stage([node]))
    for step in steps:
        if isinstance(step, _Stage):
            inside = set(step.nodes)
            used = [n for node in step.nodes for n in node.all_input_nodes if n not in inside]
            step.inputs = [n for n in dict.fromkeys(used) if n.op != "get_attr"]
            step.outputs = [n for n in step.nodes if any(user not in inside for user in n.users)]
            names = set().union(*(_numbers_of(n.meta.get("val")) for n in step.inputs))
            step.symbols = sorted(names)
    return steps


class _Runner:
    """Runs the steps of one graph."""

    def __init__(
        self, module: torch.fx.GraphModule, sizes: Sizes, backend: Any, program: list[Any]
    ) -> None:
        self.module = module
        self.backend = backend
        self.program = program
        self.placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        self.results = next(n for n in module.graph.nodes if n.op == "output").args[0]
        self.told: dict[torch.fx.Node, list[tuple[str, int | None]]] = {}
        for name, (node, dimension) in sizes.run_time.items():
            self.told.setdefault(node, []).append((name, dimension))
        self.last = _last_readers(module.graph)

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        """Run the graph."""
        values: dict[torch.fx.Node, Any] = {}
        numbers: dict[str, Any] = {}
        for node, value in zip(self.placeholders, args, strict=True):
            values[node] = value
            expected = node.meta["val"]
            if isinstance(expected, torch.SymInt | torch.SymFloat):
                numbers[str(expected.node)] = value
        grad = torch.is_grad_enabled()
        try:
            for step in self.program:
                if isinstance(step, _Stage):
                    made = self._run(step, values, numbers)
                    values.update(zip(step.outputs, made, strict=True))
                    self._forget(step.nodes, values)
                else:
                    values[step] = self._call(step, values)
                    self._tell(step, values[step], numbers)
                    self._forget([step], values)
        except BaseException:
            torch._C._set_grad_enabled(grad)
            raise
        return tuple(self._value(item, values) for item in self.results)

    def _forget(self, nodes: list[torch.fx.Node], values: dict[torch.fx.Node, Any]) -> None:
        for node in nodes:
            for dead in self.last.get(node, ()):
                values.pop(dead, None)

    def _value(self, item: Any, values: dict[torch.fx.Node, Any]) -> Any:
        if not isinstance(item, torch.fx.Node):
            return item
        if item.op == "get_attr":
            return getattr(self.module, str(item.target))
        return values[item]

    def _call(self, node: torch.fx.Node, values: dict[torch.fx.Node, Any]) -> Any:
        args = torch.fx.node.map_arg(node.args, lambda n: self._value(n, values))
        kwargs = torch.fx.node.map_arg(node.kwargs, lambda n: self._value(n, values))
        if node.op == "call_method":
            receiver, *rest = args
            return getattr(receiver, str(node.target))(*rest, **kwargs)
        function: Any = node.target
        return function(*args, **kwargs)

    def _tell(self, node: torch.fx.Node, value: Any, numbers: dict[str, Any]) -> None:
        for name, dimension in self.told.get(node, ()):
            numbers[name] = value if dimension is None else value.shape[dimension]

    # -- stages ------------------------------------------------------------------------------------

    def _run(
        self, stage: _Stage, values: dict[torch.fx.Node, Any], numbers: dict[str, Any]
    ) -> Sequence[Any]:
        given = [values[node] for node in stage.inputs]
        tensors = [value for value in given if isinstance(value, torch.Tensor)]
        for version in stage.versions:
            if version.fits(numbers, tensors):
                found: Sequence[Any] = version.run(
                    [*(numbers[name] for name in version.sizes), *_rest(given), *tensors]
                )
                return found
        if len(stage.versions) >= _MOST:
            return self._eagerly(stage, given)
        try:
            made = self._version(stage, given, numbers)
        except PrimtorchError:  # a question that only data answers
            return self._eagerly(stage, given)
        except (RuntimeError, IndexError, ValueError, TypeError):
            self._eagerly(stage, given)  # raises what eager raises
            raise
        stage.versions.append(made)
        return self._run(stage, values, numbers)

    def _eagerly(self, stage: _Stage, given: list[Any]) -> Sequence[Any]:
        if stage.eager is None:
            graph, _ = self._graph(stage, {})
            stage.eager = torch.fx.GraphModule(self.module, graph)
        tensors = [value for value in given if isinstance(value, torch.Tensor)]
        found: Sequence[Any] = stage.eager(*_rest(given), *tensors)
        return found

    def _graph(
        self, stage: _Stage, sizes: dict[str, Any]
    ) -> tuple[torch.fx.Graph, list[torch.fx.Node]]:
        """The stage's nodes in a graph of their own: sizes, other numbers, tensors first."""
        graph = torch.fx.Graph()
        copies: dict[torch.fx.Node, torch.fx.Node] = {}
        made: list[torch.fx.Node] = []
        for name, value in sizes.items():
            node = graph.placeholder(f"size_{name}")
            node.meta["val"] = value
            node.meta["input"] = {"kind": "size", "name": name, "static": False}
            made.append(node)
        ordered = [n for n in stage.inputs if not isinstance(n.meta["val"], FakeTensor)]
        ordered += [n for n in stage.inputs if isinstance(n.meta["val"], FakeTensor)]
        for node in ordered:
            copy = copies[node] = graph.placeholder(node.name)
            number = not isinstance(node.meta["val"], FakeTensor)
            kind = "scalar" if number else "argument"
            tag = {"kind": kind, "name": node.name, "static": False}
            copy.meta["input"] = node.meta.get("input", tag)
            made.append(copy)
        for node in stage.nodes:
            for attribute in node.all_input_nodes:
                if attribute.op == "get_attr" and attribute not in copies:
                    copies[attribute] = graph.node_copy(attribute, copies.__getitem__)
            copies[node] = graph.node_copy(node, copies.__getitem__)
            copies[node].meta = dict(node.meta)
        graph.output(tuple(copies[node] for node in stage.outputs))
        return graph, made

    def _version(self, stage: _Stage, given: list[Any], numbers: dict[str, Any]) -> _Version:
        environment = SizeEnvironment()
        context = ShapeContext(environment)
        values: dict[str, Any] = {}
        fixed: dict[str, int] = {}
        for name in stage.symbols:
            if numbers[name] > 1:
                values[name] = environment.create_size(name, numbers[name])
            else:
                fixed[name] = numbers[name]
        graph, placeholders = self._graph(stage, values)
        originals = [n for n in stage.inputs if not isinstance(n.meta["val"], FakeTensor)]
        originals += [n for n in stage.inputs if isinstance(n.meta["val"], FakeTensor)]
        ordered = [*_rest(given), *(v for v in given if isinstance(v, torch.Tensor))]
        guards: list[TensorGuard | None] = []
        examples: list[Any] = list(values.values())
        for node, original, value in zip(
            placeholders[len(values) :], originals, ordered, strict=True
        ):
            if isinstance(value, torch.Tensor):
                node.meta["val"], guard = self._tensor(original, value, context, values, fixed)
                guards.append(guard)
                examples.append(value)
            else:
                node.meta["val"] = self._number(node, original, value, environment, values, fixed)
                examples.append(node.meta["val"])
        module = torch.fx.GraphModule(self.module, graph)
        module.meta["wire"] = 1
        # What the operators ask of these sizes; what eager refuses is refused here.
        with FakeMode(), FactoryMode(context):
            module.forward(*(node.meta["val"] for node in placeholders))  # no hooks of all modules
        run = self.backend(module, examples)
        environment.freeze()
        conditions = tuple(
            (guard.predicate, tuple((s, s.name) for s in guard.predicate.free_symbols))
            for guard in environment.guards
        )
        boxed = getattr(run, "boxed", False)
        return _Version(
            run if boxed else lambda args: run(*args),
            tuple(values),
            fixed,
            conditions,
            tuple(guards),
            torch.is_grad_enabled(),
        )

    def _number(
        self, node: torch.fx.Node, original: torch.fx.Node, value: Any,
        environment: SizeEnvironment, values: dict[str, Any], fixed: dict[str, int],
    ) -> Any:  # fmt: skip
        """A number that reaches a stage: an expression of its symbols, or one that varies."""
        expected = original.meta["val"]
        if isinstance(value, float):
            return environment.create_float(f"f_{node.name}", value)
        if isinstance(expected, torch.SymInt):
            return _substituted(expression_of(expected), values, fixed, environment)
        return value

    def _tensor(
        self, original: torch.fx.Node, value: torch.Tensor, context: ShapeContext,
        values: dict[str, Any], fixed: dict[str, int],
    ) -> tuple[Any, TensorGuard | None]:  # fmt: skip
        """The fake that stands for a tensor in a stage, and what the stage assumes of it."""
        expected = original.meta["val"]
        shape = [
            _substituted(size, values, fixed, context.environment) for size in expected.meta.shape
        ]
        dynamic = [i for i, size in enumerate(shape) if not isinstance(size, int)]
        with torch._C.DisableTorchFunction():
            fake = fakeify(value, context, shape=shape if dynamic else None)
            if value.requires_grad and not value.is_leaf:
                fake = grown(fake)
        if original.op == "placeholder":
            return fake, None  # the guards of the whole graph hold for it
        open_strides = [i for i, n in enumerate(fake.meta.stride) if not isinstance(n, int)]
        guard = TensorGuard.of(value, dynamic_sizes=dynamic, dynamic_strides=open_strides)
        return fake, guard


def _substituted(size: Any, values: dict[str, Any], fixed: dict[str, int], environment: Any) -> Any:
    if not isinstance(size, Expression):
        return size
    mapping: dict[Any, Any] = {}
    for symbol in size.free_symbols:
        known = values.get(symbol.name)
        mapping[symbol] = fixed[symbol.name] if known is None else expression_of(known)
    return environment.symint(size.substitute(mapping))


def _rest(given: list[Any]) -> list[Any]:
    """The inputs of a stage that are no tensors."""
    return [value for value in given if not isinstance(value, torch.Tensor)]


def _last_readers(graph: torch.fx.Graph) -> dict[torch.fx.Node, list[torch.fx.Node]]:
    """For each node the values that nobody reads after it."""
    last: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in graph.nodes:
        for source in node.all_input_nodes:
            last[source] = node
    dying: dict[torch.fx.Node, list[torch.fx.Node]] = {}
    for node, reader in last.items():
        if reader.op != "output":
            dying.setdefault(reader, []).append(node)
    return dying
