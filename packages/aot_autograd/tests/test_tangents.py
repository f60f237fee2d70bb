"""What a compiled backward is given: tangents in the promised layout, copied only where they are in another."""

import pytest
import torch
import torch.nn.functional as F

import aot_autograd
from aot_autograd import _native

pytestmark = pytest.mark.usefixtures("form")


def recording(seen):
    """A compiler whose graphs keep what they are called with."""

    def compiler(gm, _inputs):
        def run(args):
            seen.append(list(args))
            results = gm.forward(*args)
            args.clear()
            return results

        run.boxed = True
        return run

    return compiler


def given_to_backward(function, x, tangent, graph_runner):
    """The last value that the backward was called with, and the gradient."""
    seen = []
    compiled = aot_autograd.aot_function(function, graph_runner, recording(seen))
    (gradient,) = torch.autograd.grad(compiled(x), x, tangent)
    (want,) = torch.autograd.grad(function(x), x, tangent)
    torch.testing.assert_close(gradient, want)
    return seen[0][-1]


@pytest.mark.parametrize("shape", [(3, 4), (), (1, 4), (0, 3)])
def test_a_contiguous_tangent_is_handed_on(graph_runner, shape):
    x, tangent = torch.randn(shape, requires_grad=True), torch.randn(shape)
    given = given_to_backward(lambda x: x.sin(), x, tangent, graph_runner)
    assert given.data_ptr() == tangent.data_ptr()


def test_a_tangent_in_a_promised_layout_that_is_not_contiguous_is_handed_on(graph_runner):
    x, tangent = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4).t()
    given = given_to_backward(lambda x: x.sin().t(), x, tangent, graph_runner)
    assert given.data_ptr() == tangent.data_ptr()


@pytest.mark.parametrize(
    "tangent",
    [
        torch.ones(()).expand(3, 4),
        torch.randn(4, 3).t(),
        torch.randn(3, 8)[:, ::2],
        torch.complex(torch.randn(3, 4), torch.randn(3, 4)).conj().imag,
    ],
    ids=["expanded", "transposed", "sliced", "negative"],
)
def test_a_tangent_in_another_layout_is_copied(graph_runner, tangent):
    x = torch.randn(3, 4, requires_grad=True)
    given = given_to_backward(lambda x: x.sin(), x, tangent, graph_runner)
    assert given.is_contiguous()
    assert not given.is_neg()
    assert given.data_ptr() != tangent.data_ptr()
    assert torch.equal(given, tangent)


def test_a_conjugated_tangent_is_written_out(graph_runner):
    x = torch.randn(3, dtype=torch.complex64, requires_grad=True)
    tangent = torch.randn(3, dtype=torch.complex64).conj()
    given = given_to_backward(lambda x: x * x, x, tangent, graph_runner)
    assert not given.is_conj()
    assert torch.equal(given, tangent)


def test_a_sparse_tangent_is_written_out(graph_runner):
    index = torch.tensor([1, 3])

    def gradient_by(function):
        table = torch.arange(15.0).view(5, 3).requires_grad_()
        F.embedding(index, function(table), sparse=True).sum().backward()
        return table.grad.to_dense()

    compiled = aot_autograd.aot_function(lambda table: table * 2, graph_runner)
    assert torch.equal(gradient_by(compiled), gradient_by(lambda table: table * 2))


def test_a_tensor_made_in_inference_mode_is_an_input_of_training(graph_runner):
    with torch.inference_mode():
        y = torch.randn(3)
    x = torch.randn(3, requires_grad=True)
    compiled = aot_autograd.aot_function(lambda x, y: x.sin() + y, graph_runner)
    result = compiled(x, y)
    assert torch.equal(result, x.sin() + y)
    (gradient,) = torch.autograd.grad(result.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), x)
    torch.testing.assert_close(second, -x.detach().sin())


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.complex128,
    ],
)
@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 1, 3), (1, 7)])
def test_a_tangent_of_one_number_is_written_out(graph_runner, dtype, shape):
    x = torch.randn(shape, dtype=dtype, requires_grad=True)
    tangent = torch.randn(3, dtype=dtype)[1].expand(shape)
    given = given_to_backward(lambda x: x * x, x, tangent, graph_runner)
    assert type(given) is torch.Tensor
    assert given.is_contiguous()
    assert given.stride() == torch.empty(shape).stride()
    assert not given.requires_grad
    assert given.grad_fn is None
    assert torch.equal(given, tangent)


def test_the_c_form_writes_numbers_out_by_itself():
    if _native.node is None:
        pytest.skip("the Python form")
    made = _native.node.spread(torch.tensor(2.5).expand(2, 3), 4)
    assert torch.equal(made, torch.full((2, 3), 2.5))
    assert made._version == 0
    for other in (
        torch.ones(2, 3),
        torch.ones(2, 1).expand(2, 3),
        torch.ones(()).expand(0, 3),
        torch.ones(2, 3).to_sparse(),
        torch.ones((), device="meta").expand(2, 3),
    ):
        assert _native.node.spread(other, 4) is None


def test_batched_tangents(graph_runner):
    compiled = aot_autograd.aot_function(lambda x: x.sin() * x, graph_runner)
    x = torch.randn(4, requires_grad=True)
    tangents = torch.eye(4)
    results = []
    for function in (compiled, lambda x: x.sin() * x):
        results += torch.autograd.grad(function(x), x, tangents, is_grads_batched=True)
        results += torch.autograd.grad(
            function(x), x, torch.ones(3, 1).expand(3, 4), is_grads_batched=True
        )
    torch.testing.assert_close(results[:2], results[2:])
