"""What tests of the middle share: a small tracer to make graphs of wire 3, and comparisons with eager."""

import pytest
import torch

from inductor.ir import verify_graph
from inductor.ir.execute import run_graph, run_program
from inductor.lowering import lower
from inductor.schedule import build, verify_program
from primtorch import decomposition_table
from primtorch.fake import FactoryMode, FakeTensor, ShapeContext, fakeify
from primtorch.symbolic import SizeEnvironment, expression_of

TABLE = decomposition_table("inductor")


class Recording(ShapeContext):
    """A context that records what it is handed as FX nodes, decomposed by the table."""

    def __init__(self, environment, table):
        super().__init__(environment, decompositions=table)
        self.graph = torch.fx.Graph()
        self.table = table
        self.nodes = {}

    def placeholder(self, value, name):
        node = self.graph.placeholder(name)
        node.meta["val"] = value
        self.nodes[id(value)] = (node, value)
        return node

    def handle(self, op, args, kwargs):
        if op in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return args[0]
        function = self.table.get(op)
        if function is not None:
            with FactoryMode(self):  # handling switched it off
                result = function(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = super().handle(op, args, kwargs)
        node = self.graph.call_function(op, self._named(args), self._named(kwargs))
        node.meta["val"] = result
        self._remember(node, result)
        return result

    def _remember(self, node, result):
        if isinstance(result, tuple):
            for position, item in enumerate(result):
                inner = self.graph.call_function(__import__("operator").getitem, (node, position))
                inner.meta["val"] = item
                self._remember(inner, item)
        else:
            self.nodes[id(result)] = (node, result)

    def _named(self, value):
        if isinstance(value, FakeTensor):
            return self.nodes[id(value)][0]
        if isinstance(value, torch.Tensor):
            raise TypeError("a real tensor in a traced function: pass it as an input")
        if isinstance(value, (list, tuple)):
            return type(value)(self._named(item) for item in value)
        if isinstance(value, dict):
            return {key: self._named(item) for key, item in value.items()}
        if isinstance(value, torch.SymInt):
            return self.size_node(value)
        return value

    def size_node(self, value):
        node = self.graph.call_function(torch.sym_max, (0, 0))
        node.meta["val"] = value
        return node


def trace(function, inputs, *, symbolic=()):
    """A graph of `function`; `symbolic` are (input, dimension, name) of symbolic sizes."""
    environment = SizeEnvironment()
    context = Recording(environment, TABLE)
    shapes = [list(x.shape) for x in inputs]
    sizes = {}
    for position, dimension, name in symbolic:
        if name not in sizes:
            sizes[name] = environment.create_size(name, inputs[position].shape[dimension])
            context.placeholder(sizes[name], name)
        shapes[position][dimension] = sizes[name]
    fakes = []
    for position, (x, shape) in enumerate(zip(inputs, shapes, strict=True)):
        fake = fakeify(x, context, shape=tuple(shape) if symbolic else None)
        context.placeholder(fake, f"x{position}")
        fakes.append(fake)
    with torch.no_grad(), FactoryMode(context):
        result = function(*fakes)
    if not isinstance(result, (tuple, list)):
        result = (result,)
    context.graph.output(tuple(context.nodes[id(item)][0] for item in result))
    gm = torch.fx.GraphModule({}, context.graph)
    gm.meta["wire"] = 1
    return gm, [sizes[name] for name in dict.fromkeys(name for _, _, name in symbolic)]


def assert_equal(ours, theirs, *, tolerance=None):
    """Value, dtype, shape and strides."""
    theirs = theirs if isinstance(theirs, (tuple, list)) else (theirs,)
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.dtype == other.dtype
        assert mine.shape == other.shape
        assert mine.numel() == 0 or all(
            a == b or n == 1
            for a, b, n in zip(mine.stride(), other.stride(), mine.shape, strict=True)
        ), (mine.stride(), other.stride())
        extra = {} if tolerance is None else {"rtol": tolerance, "atol": tolerance}
        torch.testing.assert_close(mine, other, equal_nan=True, **extra)


@pytest.fixture
def traced():
    """`traced(function, *inputs)`: a graph of wire 3."""
    return lambda function, *inputs: trace(function, inputs)[0]


@pytest.fixture
def lowered():
    """`lowered(function, *inputs)`: the verified graph."""

    def make(function, *inputs, symbolic=()):
        gm, _ = trace(function, inputs, symbolic=symbolic)
        graph = lower(gm)
        verify_graph(graph)
        return graph

    return make


@pytest.fixture
def compare():
    """`compare(function, *inputs)`: unfused and fused loops equal eager; gives the program."""

    def check(function, *inputs, symbolic=(), again=(), tolerance=None):
        gm, sizes = trace(function, inputs, symbolic=symbolic)
        graph = lower(gm)
        verify_graph(graph)
        program = build(graph)
        verify_program(program)
        for given in (inputs, *again):
            values = [_value(size, symbolic, given) for size in sizes]
            expected = function(*given)
            assert_equal(run_graph(graph, [*values, *given]), expected, tolerance=tolerance)
            assert_equal(run_program(program, [*values, *given]), expected, tolerance=tolerance)
        return program

    def _value(size, symbolic, given):
        name = expression_of(size).name
        return next(given[p].shape[d] for p, d, n in symbolic if n == name)

    return check
