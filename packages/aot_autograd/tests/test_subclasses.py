"""Tensor subclasses made of tensors: as inputs, parameters, outputs, gradients, and nested in each other."""

import sys
from pathlib import Path

import pytest
import torch
from torch import randn

import aot_autograd

sys.path.append(str(Path(__file__).parent))

from subclasses_of_two import Two, nested, parts, two


def compare(function, make, graph_runner):
    """Outputs, gradients and their types, in eager and compiled, in two calls; the operators of the graphs."""
    graphs = []

    def compiler(gm, example_inputs):
        graphs.append(gm)
        assert not any(isinstance(value, Two) for value in example_inputs)
        return graph_runner(gm, example_inputs)

    compiled = aot_autograd.aot_function(function, compiler)
    for call in range(2):
        results = []
        for one in (function, compiled):
            torch.manual_seed(call)
            inputs = make()
            outputs = torch.utils._pytree.tree_leaves(one(*inputs))
            total = sum(out.sum() for out in outputs if out.requires_grad)
            if isinstance(total, torch.Tensor):
                total.backward()
            results.append([*outputs, *inputs, *(value.grad for value in inputs)])
        for want, got in zip(*results, strict=True):
            assert type(want) is type(got)
            if want is not None:
                assert want.requires_grad == got.requires_grad
                assert want._version == got._version
                for one, other in zip(parts(want), parts(got), strict=True):
                    torch.testing.assert_close(other.detach(), one.detach())
    return graphs


@pytest.mark.parametrize("make", [two, nested])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_inputs_outputs_and_gradients(graph_runner, make, requires_grad):
    def function(x, y):
        return (x * y).sin() + 1, x @ y

    def inputs():
        return [make(3, 3, requires_grad=requires_grad), make(3, 3, requires_grad=requires_grad)]

    graphs = compare(function, inputs, graph_runner)
    assert len(graphs) == (2 if requires_grad else 1)


def test_beside_plain_tensors(graph_runner):
    def function(x, plain):
        return (x * plain).exp(), plain.sin()

    compare(function, lambda: [two(3, requires_grad=True), randn(3)], graph_runner)
    compare(
        lambda x, plain: (x.cos(), plain.sin()),
        lambda: [two(3, requires_grad=True), randn(3, requires_grad=True)],
        graph_runner,
    )


def test_an_output_that_is_an_input(graph_runner):
    def function(x):
        return x, x * 2

    compiled = aot_autograd.aot_function(function, graph_runner)
    x = two(3, requires_grad=True)
    same, double = compiled(x)
    assert same is x
    assert isinstance(double, Two)


def test_a_subclass_made_inside_of_plain_parameters(graph_runner):
    def function(x):
        return Two(x.detach().sin(), x.detach().cos()) * 2, x.exp()

    compare(function, lambda: [randn(3)], graph_runner)
    compare(function, lambda: [randn(3, requires_grad=True)], graph_runner)


def test_a_module_whose_parameters_are_subclasses(graph_runner):
    module = torch.nn.Linear(3, 3)
    module.weight = torch.nn.Parameter(two(3, 3))
    module.bias = torch.nn.Parameter(two(3))
    compiled = aot_autograd.aot_module(module, graph_runner)
    x = two(2, 3)
    results = []
    for one in (module, compiled):
        module.zero_grad()
        out = one(x)
        (out * out).sum().backward()
        results.append([*parts(out), *parts(module.weight.grad), *parts(module.bias.grad)])
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


def test_written_in_place_without_gradients(graph_runner):
    def function(x):
        x.mul_(2)
        return x + 1

    compare(function, lambda: [two(3)], graph_runner)


def test_a_gradient_that_two_inputs_get_belongs_to_each(graph_runner):
    def function(x, y):
        return (x + y) * 3

    results = []
    for one in (function, aot_autograd.aot_function(function, graph_runner)):
        torch.manual_seed(0)
        x, y = two(3, requires_grad=True), two(3, requires_grad=True)
        tangent = two(3)
        for _ in range(2):
            one(x, y).backward(tangent)
        results.append([*parts(x.grad), *parts(y.grad), *parts(tangent)])
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


def test_changes_are_counted_where_eager_counts_them(graph_runner):
    def function(x):
        y = x.neg()
        y.mul_(2)
        x.copy_(x)
        return y, x.detach(), x.view(3)

    compare(function, lambda: [two(3)], graph_runner)


def test_second_derivatives(graph_runner):
    results = []
    for one in (
        lambda x: x.exp().tanh(),
        aot_autograd.aot_function(lambda x: x.exp().tanh(), graph_runner),
    ):
        torch.manual_seed(0)
        x = two(3, requires_grad=True)
        (first,) = torch.autograd.grad(one(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad((first * first).sum(), x)
        results.append([*parts(first), *parts(second)])
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


def test_another_kind_compiles_again(graph_runner):
    forwards = []

    def compiler(gm, example_inputs):
        forwards.append(len(example_inputs))
        return graph_runner(gm, example_inputs)

    compiled = aot_autograd.aot_function(lambda x: x.sin(), compiler)
    for value in (two(3), nested(3), randn(3), two(3)):
        compiled(value)
    assert forwards == [2, 4, 1]


@pytest.fixture
def mesh():
    from torch.distributed.device_mesh import init_device_mesh

    if not torch.distributed.is_initialized():
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    return init_device_mesh("cpu", (1,))


def test_distributed_tensors_of_one_process(graph_runner, mesh):
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    def function(x, w):
        return (x @ w).sin() + x

    compiled = aot_autograd.aot_function(function, graph_runner)
    results = []
    for one in (function, compiled):
        torch.manual_seed(0)
        x = distribute_tensor(randn(4, 4), mesh, [Shard(0)]).requires_grad_()
        w = distribute_tensor(randn(4, 4), mesh, [Replicate()]).requires_grad_()
        out = one(x, w)
        assert isinstance(out, DTensor)
        # placed as the output is: others are converted, where eager of some versions keeps them
        out.backward(torch.ones_like(out))
        assert isinstance(x.grad, DTensor)
        results.append([value.full_tensor().detach() for value in (out, x.grad, w.grad)])
        results[-1].append([out.placements, x.grad.placements, w.grad.placements])
    assert results[0].pop() == results[1].pop()
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


def test_distributed_tensors_written_in_place(graph_runner, mesh):
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    def function(x, w):
        with torch.no_grad():
            w.add_(1)
        x.mul_(w)
        y = x.sin()
        y.add_(x)
        return y

    results = []
    for one in (function, aot_autograd.aot_function(function, graph_runner)):
        torch.manual_seed(0)
        x = distribute_tensor(randn(4, 4), mesh, [Shard(0)]).requires_grad_()
        w = distribute_tensor(randn(4, 4), mesh, [Replicate()]).requires_grad_()
        changed = x * 1
        out = one(changed, w * 1)
        torch.autograd.backward([out, changed], [torch.ones_like(out), torch.ones_like(changed)])
        results.append([value.full_tensor().detach() for value in (out, changed, x.grad, w.grad)])
        results[-1].append([(one._version, one.placements) for one in (out, changed, x.grad)])
    assert results[0].pop() == results[1].pop()
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want)
