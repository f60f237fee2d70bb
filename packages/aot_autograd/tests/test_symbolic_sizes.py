"""Graphs whose sizes vary from call to call: one trace, many shapes."""

import pytest
import torch
import torch.nn.functional as F
from torch import fx

import aot_autograd
from primtorch.fake import ShapeContext, fakeify
from primtorch.symbolic import SizeEnvironment


def captured(function, tensors, dynamic):
    """A wire-1 graph of `function` whose inputs have symbolic leading sizes.

    `dynamic[n]` names the symbol of dimension 0 of tensor n, or is None.
    """
    environment = SizeEnvironment()
    context = ShapeContext(environment)
    symbols = {}
    for tensor, name in zip(tensors, dynamic, strict=True):
        if name is not None and name not in symbols:
            symbols[name] = environment.create_size(name, tensor.shape[0])
    graph = fx.Graph()
    sizes = []
    for name, size in symbols.items():
        node = graph.placeholder(name)
        node.meta["val"] = size
        node.meta["input"] = {"kind": "size", "name": name, "static": False}
        sizes.append(node)
    placeholders = []
    for number, (tensor, name) in enumerate(zip(tensors, dynamic, strict=True)):
        node = graph.placeholder(f"x{number}")
        shape = None if name is None else (symbols[name], *tensor.shape[1:])
        node.meta["val"] = fakeify(tensor, context, shape=shape)
        node.meta["input"] = {"kind": "argument", "name": f"x{number}", "static": False}
        placeholders.append(node)
    result = graph.call_function(function, tuple(placeholders))
    outputs = [graph.call_function(lambda r, i=i: r[i], (result,)) for i in range(function.outputs)]
    graph.output(tuple(outputs))
    gm = fx.GraphModule(torch.nn.Module(), graph)
    gm.meta["wire"] = 1
    return (
        gm,
        [symbols[name].node.environment.hint(symbols[name].node.expression) for name in symbols],
        environment,
    )


def outputs(count):
    def mark(function):
        function.outputs = count
        return function

    return mark


def compiled_for(function, tensors, dynamic, graph_runner):
    gm, sizes, environment = captured(function, tensors, dynamic)
    call = aot_autograd.aot_module_simplified(
        gm, [*sizes, *tensors], fw_compiler=graph_runner, options={"verify": True}
    )
    environment.freeze()
    return call, environment


def check(function, make, dynamic, graph_runner, sizes=(5, 9, 2)):
    call, environment = compiled_for(function, make(sizes[0]), dynamic, graph_runner)
    names = list(dict.fromkeys(name for name in dynamic if name))
    for size in sizes:
        torch.manual_seed(size)
        ours = make(size)
        torch.manual_seed(size)
        eager = make(size)
        bound = {name: ours[dynamic.index(name)].shape[0] for name in names}
        got = call([*bound.values(), *ours])
        want = function(*eager)
        terms = []
        for one, other in zip(got, want, strict=True):
            if isinstance(other, torch.Tensor):
                torch.testing.assert_close(one, other)
                assert one.stride() == other.stride()
            else:
                assert one == other
        for values in (got, want):
            terms = [
                t.sin().sum() for t in values if isinstance(t, torch.Tensor) and t.requires_grad
            ]
            if terms:
                sum(terms).backward()
        for one, other in zip(ours, eager, strict=True):
            torch.testing.assert_close(one, other)
            if other.grad is not None:
                torch.testing.assert_close(one.grad, other.grad)
    return environment


def leaf(*shape):
    return torch.randn(*shape).requires_grad_()


def test_inference_with_a_symbolic_batch(graph_runner):
    @outputs(2)
    def function(x, w):
        y = F.gelu(F.linear(x, w))
        return y.view(y.shape[0] * 4, 4).softmax(-1), y.shape[0] * 2

    environment = check(
        function, lambda n: (torch.randn(n, 8), torch.randn(16, 8)), ["s", None], graph_runner
    )
    assert not environment.guards


def test_training_with_a_symbolic_batch(graph_runner):
    @outputs(1)
    def function(x, w, b):
        return (F.layer_norm(F.linear(x, w), (6,), b).t(),)

    check(function, lambda n: (leaf(n, 8), leaf(6, 8), leaf(6)), ["s", None, None], graph_runner)


def test_sizes_in_views_and_mutation(graph_runner):
    @outputs(3)
    def function(x, y):
        x[1:].mul_(2)
        x.view(-1)[: x.shape[0]].add_(1)
        h = y.tanh()
        return x.t(), h[: y.shape[0] // 2], h[y.shape[0] // 2 :]

    check(function, lambda n: (torch.randn(n, 3), leaf(n, 3)), ["s", "s"], graph_runner)


def test_loss_divided_by_a_symbolic_count(graph_runner):
    @outputs(1)
    def function(x):
        return (x.pow(2).mean() + x.sum() / x.shape[0],)

    check(function, lambda n: (leaf(n, 3),), ["s"], graph_runner)


def test_expanded_tangent_with_symbolic_size(graph_runner):
    @outputs(1)
    def function(x):
        return (x * 2,)

    call, _ = compiled_for(function, (leaf(5, 3),), ["s"], graph_runner)
    x = leaf(7, 3)
    (y,) = call([7, x])
    y.sum().backward()
    torch.testing.assert_close(x.grad, torch.full((7, 3), 2.0))


def test_a_backward_is_given_every_size_of_its_shapes():
    """Nothing in this backward computes with the size; its compiler allocates by it."""
    weight = torch.nn.Parameter(torch.randn(5, 3))

    @outputs(1)
    def product(x):
        return (torch.tanh(x @ weight),)

    seen = []

    def backward_compiler(gm, _inputs):
        seen.append(gm)
        return aot_autograd.make_boxed_func(gm.forward)

    x = torch.randn(6, 5, requires_grad=True)
    gm, sizes, environment = captured(product, [x], ["rows"])
    call = aot_autograd.aot_module_simplified(
        gm,
        [*sizes, x],
        fw_compiler=lambda gm, _inputs: aot_autograd.make_boxed_func(gm.forward),
        bw_compiler=backward_compiler,
    )
    environment.freeze()
    for rows in (6, 4):
        x = torch.randn(rows, 5, requires_grad=True)
        (result,) = call([rows, x])
        result.sum().backward()
        torch.testing.assert_close(x.grad, (1 - result.detach() ** 2) @ weight.detach().T)
    (backward,) = seen
    values = [node.meta["val"] for node in backward.graph.nodes if node.op == "placeholder"]
    assert any(isinstance(value, torch.SymInt) for value in values)


def test_outputs_that_nobody_differentiates(graph_runner):
    @outputs(3)
    def function(x, w):
        product = x @ w
        both = torch.cat([product, x])  # its gradient needs zeros as large as the batch
        return product.sin(), both + 1, both.t().exp()

    def make(n):
        return leaf(n, 4), leaf(4, 4)

    call, _ = compiled_for(function, make(5), ["s", None], graph_runner)
    for size, chosen in ((5, (0,)), (9, (2,)), (2, (0, 1)), (3, (1, 2)), (6, (0, 1, 2))):
        x, w = make(size)
        found, expected = (
            torch.autograd.grad([results[one].sum() for one in chosen], [x, w])
            for results in (call([size, x, w]), function(x, w))
        )
        torch.testing.assert_close(found, expected)


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("size", [5, 9])
def test_with_a_symbolic_size_a_contiguous_tangent_is_handed_on(graph_runner, size):
    seen = []

    def recording(graph, _inputs):
        def run(args):
            seen.append(list(args))
            return graph.forward(*args)

        run.boxed = True
        return run

    @outputs(1)
    def function(x):
        return (x.sin(),)

    gm, sizes, environment = captured(function, [torch.randn(5, 3, requires_grad=True)], ["s"])
    call = aot_autograd.aot_module_simplified(
        gm,
        [*sizes, torch.randn(5, 3, requires_grad=True)],
        fw_compiler=graph_runner,
        bw_compiler=recording,
    )
    environment.freeze()
    x, tangent = torch.randn(size, 3, requires_grad=True), torch.randn(size, 3)
    (result,) = call([size, x])
    (gradient,) = torch.autograd.grad(result, x, tangent)
    torch.testing.assert_close(gradient, tangent * x.detach().cos())
    assert seen[0][-1].data_ptr() == tangent.data_ptr()


@pytest.mark.usefixtures("form")
def test_sizes_that_the_backward_reads(graph_runner):
    @outputs(1)
    def function(x):
        return ((x * x).sum(0) / x.shape[0],)

    gm, sizes, environment = captured(function, [leaf(5, 3)], ["s"])
    call = aot_autograd.aot_module_simplified(
        gm, [*sizes, leaf(5, 3)], fw_compiler=graph_runner, options={"verify": True}
    )
    environment.freeze()
    for size in (5, 9, 9, 2):
        x = leaf(size, 3)
        (result,) = call([size, x])
        result.sum().backward()
        torch.testing.assert_close(x.grad, 2 * x.detach() / size)


@pytest.mark.usefixtures("form")
def test_a_second_backward_where_numbers_alone_are_saved(graph_runner):
    @outputs(1)
    def function(x):
        return (x.sum(0),)

    gm, sizes, environment = captured(function, [leaf(5, 3)], ["s"])
    call = aot_autograd.aot_module_simplified(gm, [*sizes, leaf(5, 3)], fw_compiler=graph_runner)
    environment.freeze()
    for size in (5, 7):
        x = leaf(size, 3)
        (result,) = call([size, x])
        for times in (1, 2):  # as in eager, whose sum saves no tensor
            result.backward(torch.ones(3))
            assert torch.equal(x.grad, torch.full((size, 3), float(times)))
