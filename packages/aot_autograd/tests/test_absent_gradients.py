"""An output that the loss never reads sends no gradient: no work is done for it, what is behind it alone keeps None."""

from types import SimpleNamespace

import pytest
import torch

from aot_autograd import aot_function, aot_module
from aot_autograd.backwards import MOST_SETS, likely_absent
from primtorch import decomposition_table


class TwoHeads(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(4, 4)
        self.read = torch.nn.Linear(4, 2)
        self.unread = torch.nn.Linear(4, 3)

    def forward(self, x):
        hidden = self.body(x).relu()
        return self.read(hidden), self.unread(hidden)


def test_parameters_behind_an_unread_output_get_no_gradient():
    torch.manual_seed(0)
    module = TwoHeads()
    compiled = aot_module(
        module,
        fw_compiler=lambda graph, _: graph.forward,
        decompositions=decomposition_table("inductor"),
    )
    x = torch.randn(5, 4)
    module(x)[0].sum().backward()
    expected = {name: p.grad for name, p in module.named_parameters()}
    module.zero_grad(set_to_none=True)
    compiled(x)[0].sum().backward()
    for name, parameter in module.named_parameters():
        if expected[name] is None:
            assert parameter.grad is None, name
        else:
            torch.testing.assert_close(parameter.grad, expected[name])
    assert module.unread.weight.grad is None


def compiled_counting(function):
    """(the compiled function, the backward graphs that were compiled for it)."""
    backwards = []

    def backward_compiler(graph, _):
        backwards.append(graph)
        return graph.forward

    compiled = aot_function(
        function,
        lambda graph, _: graph.forward,
        backward_compiler,
        decompositions=decomposition_table("inductor"),
        options={"backward_worker": False, "verify": True},
    )
    return compiled, backwards


def four_outputs(x, w):
    product = x @ w
    return (
        product.sin(),
        x.exp().sum(0),
        torch.cat([x, product], 1)[1:],
        (product.relu() + x[:, :4]).t(),
    )


@pytest.mark.parametrize("absent", range(15))
def test_every_set_of_outputs_sends_eagers_gradients(absent):
    compiled, backwards = compiled_counting(four_outputs)
    x, w = torch.randn(5, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)

    def gradients(function):
        outputs = [out for n, out in enumerate(function(x, w)) if not absent >> n & 1]
        weights = [torch.linspace(-1, 1, out.numel()).view(out.shape) for out in outputs]
        return torch.autograd.grad(outputs, [x, w], weights, allow_unused=True)

    for found, expected in zip(gradients(compiled), gradients(four_outputs), strict=True):
        assert (found is None) == (expected is None)
        torch.testing.assert_close(found, expected)
    assert len(backwards) == 1


def test_more_sets_than_are_compiled_get_zeros():
    compiled, backwards = compiled_counting(four_outputs)
    x, w = torch.randn(5, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    for absent in range(1, 15):
        results = []
        for function in (compiled, four_outputs):
            outputs = [out.sum() for n, out in enumerate(function(x, w)) if not absent >> n & 1]
            results.append(torch.autograd.grad(sum(outputs), [x, w], allow_unused=True))
        torch.testing.assert_close(*results)
    assert len(backwards) == MOST_SETS


def test_work_for_an_absent_tangent_is_not_in_the_graph_and_its_values_are_let_go():
    compiled, backwards = compiled_counting(
        lambda x, w: ((x @ w).sum(), torch.softmax(x @ w, 1), x.sin())
    )
    x, w = torch.randn(5, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    compiled(x, w)[0].backward()
    (graph,) = backwards
    operators = {str(node.target) for node in graph.graph.nodes}
    assert not operators & {"aten.cos.default", "aten.full.default", "aten.exp.default"}
    tags = [node.meta["input"] for node in graph.graph.nodes if node.op == "placeholder"]
    assert [tag["kind"] for tag in tags].count("tangent") == 1
    assert len(tags) == 3


def test_the_loss_among_the_outputs_is_guessed_before_anybody_asks():
    compiled, backwards = compiled_counting(lambda x: (x.square().mean(), x.exp()))
    x = torch.randn(5, requires_grad=True)
    compiled(x)[0].backward()
    torch.testing.assert_close(x.grad, 2 * x / 5)
    assert len(backwards) == 1
    metadata = SimpleNamespace(
        value_requires_grad=(True, False, True, True),
        mutation_values=1,
        tangents=(
            SimpleNamespace(shape=(3,)),
            SimpleNamespace(shape=()),
            SimpleNamespace(shape=(2, 2)),
        ),
    )
    assert likely_absent(metadata) == 0b100


def test_no_product_of_an_absent_zero_and_infinity():
    compiled, _ = compiled_counting(lambda x: (x * 2, x.sqrt()))
    x = torch.zeros(3, requires_grad=True)
    compiled(x)[0].sum().backward()
    torch.testing.assert_close(x.grad, torch.full((3,), 2.0))


def test_gradients_of_gradients_by_the_tangents_that_are_there():
    function = lambda x: (x.exp().tanh(), x.sqrt(), x.sin())
    compiled, _ = compiled_counting(function)
    for number in (0, 2):
        found = []
        for one in (compiled, function):
            x = torch.linspace(
                0, 1, 4, requires_grad=True
            )  # the root's derivative at 0 is infinite
            (first,) = torch.autograd.grad(one(x)[number].sum(), x, create_graph=True)
            found.append((first, *torch.autograd.grad(first.square().sum(), x)))
        torch.testing.assert_close(*found)
