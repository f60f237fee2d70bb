"""Training through the whole stack: gradients of gradients, random numbers, aliases, layouts."""

import functools
import gc

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import compile_api
import dynamo


def compiled(function, **options):
    return compile_api.compile(function, options={"strict": True, **options})


def leaves(*shapes):
    torch.manual_seed(0)
    return [torch.randn(*shape).requires_grad_() for shape in shapes]


def assert_same(got, want):
    if isinstance(want, torch.Tensor):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        assert got.requires_grad == want.requires_grad
    elif isinstance(want, (tuple, list)):
        assert len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            assert_same(one, other)
    else:
        assert got == want


def hessian_vector_product(wrap):
    function = wrap(lambda x, w: (torch.exp(x @ w).tanh()).sum())
    x, w = leaves((4, 4), (4, 4))
    first = torch.autograd.grad(function(x, w), [x, w], create_graph=True)
    return first, torch.autograd.grad((first[0] * first[1]).sum(), [x, w])


def third_derivative_of_softmax(wrap):
    function = wrap(lambda x: torch.softmax(x, -1).pow(3).sum())
    (x,) = leaves((4, 5))
    (first,) = torch.autograd.grad(function(x), x, create_graph=True)
    (second,) = torch.autograd.grad(first.pow(2).sum(), x, create_graph=True)
    return first, second, torch.autograd.grad(second.sum(), x)


def gradient_penalty(wrap):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Softmax(-1), torch.nn.Linear(8, 1)
    )
    x = torch.randn(5, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(wrap(model)(x).sum(), x, create_graph=True)
    ((gradient.norm(2, dim=1) - 1) ** 2).mean().backward()
    return [parameter.grad for parameter in model.parameters()], x.grad


def gradient_inside(wrap):
    def function(x):
        (gradient,) = torch.autograd.grad(x.exp().tanh().sum(), x, create_graph=True)
        return gradient.pow(2).sum()

    (x,) = leaves((4, 5))
    result = wrap(function)(x)
    return result, torch.autograd.grad(result, x)


@pytest.mark.parametrize(
    "program",
    [hessian_vector_product, third_derivative_of_softmax, gradient_penalty, gradient_inside],
)
def test_gradients_of_gradients(program):
    assert_same(program(compiled), program(lambda function: function))


def test_dropout_of_fallback_random_is_eagers():
    def program(function):
        torch.manual_seed(5)
        x = torch.ones(8, 8, requires_grad=True)
        results = function(x)
        results[0].sum().backward()
        return results, x.grad, torch.rand(2)

    def function(x):
        return functional.dropout(x, 0.3) * 2, torch.rand(3)

    assert_same(program(compiled(function, fallback_random=True)), program(function))


def test_attention_dropout_is_the_same_in_the_backward():
    function = compiled(
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, dropout_p=0.2)
    )
    q, k, v = leaves((2, 3, 8, 16), (2, 3, 8, 16), (2, 3, 8, 16))

    def run(value):
        torch.manual_seed(1)
        return function(q, k, value).sum()

    (gradient,) = torch.autograd.grad(run(v), v)
    direction = torch.randn_like(v)
    # The result is linear in the values, so that a difference is exact but for rounding.
    difference = (run(v + direction) - run(v - direction)) / 2
    torch.testing.assert_close(difference, (gradient * direction).sum(), rtol=1e-3, atol=1e-3)


def test_equal_outputs_are_one_object_and_equal_values_are_not():
    def function(x):
        y = x.sin()
        return y, y, x.sin()

    one, two, three = compiled(function)(*leaves((3, 4)))
    assert one is two
    assert one.data_ptr() != three.data_ptr()
    torch.testing.assert_close(one, three)


@pytest.mark.parametrize("change", ["unsqueeze_", "transpose_", "squeeze_", "t_"])
def test_layouts_change_in_place(change):
    arguments = {"unsqueeze_": (0,), "transpose_": (0, 1), "squeeze_": (0,), "t_": ()}[change]

    def function(x):
        y = x.sin()
        getattr(y, change)(*arguments)
        getattr(x, change)(*arguments)
        return y * 2

    def program(function):
        x = torch.arange(4.0).view(1, 4)
        return function(x), x

    (got, x), (want, y) = program(compiled(function)), program(function)
    assert_same([got, x], [want, y])
    assert x.stride() == y.stride()
    assert x._version == y._version


def test_a_third_backward_raises_what_eager_raises():
    def program(function):
        (x,) = leaves((4,))
        result = function(x).sum()
        result.backward(retain_graph=True)
        result.backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            result.backward()
        return x.grad

    function = compiled(lambda x: x.exp().sin())
    assert_same(program(function), program(lambda x: x.exp().sin()))


def test_the_tensors_of_the_first_call_are_let_go(monkeypatch):
    monkeypatch.setenv("COMPILE_API_ARTIFACTS", "0")
    function = compiled(lambda x, w: ((x @ w) @ w).sin())

    def call():
        x, w = leaves((4, 4), (4, 4))
        function(x, w).sum().backward()
        return [StorageWeakRef(value.untyped_storage()) for value in (x, w)]

    references = call()
    gc.collect()
    assert all(reference.expired() for reference in references)


def test_a_checkpoint_policy_is_obeyed():
    def policy(_context, operator, *_args, **_kwargs):
        keep = operator is torch.ops.aten.mm.default
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    def body(x, w):
        return ((x @ w).sin().exp() @ w).tanh()

    def policed(x, w):
        contexts = functools.partial(create_selective_checkpoint_contexts, policy)
        return checkpoint(body, x, w, use_reentrant=False, context_fn=contexts)

    def plain(x, w):
        return checkpoint(body, x, w, use_reentrant=False)

    saved = {}
    for function in (policed, plain):
        shapes = []

        def pack(tensor, shapes=shapes):
            shapes.append(tuple(tensor.shape))
            return tensor

        def program(run):
            x, w = leaves((5, 4), (4, 4))
            run(x, w).sum().backward()
            return x.grad, w.grad

        whole = compiled(function)
        assert_same(program(whole), program(function))
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            whole(*leaves((5, 4), (4, 4)))
        saved[function.__name__] = sorted(shapes)
    assert saved["plain"] == [(4, 4), (5, 4)]
    assert saved["policed"] == [(4, 4), (5, 4), (5, 4), (5, 4)]


@pytest.mark.parametrize("shape", [(17, 6), (2, 17, 6)])
def test_a_gradient_of_spectra_has_eager_s_layout(shape):
    def program(x):
        return torch.istft(x, 32, 8, window=torch.hann_window(32))

    x = torch.randn(shape, dtype=torch.cfloat, requires_grad=True)
    compiled = compile_api.compile(program, options={"strict": True})
    expected, found = (torch.autograd.grad(f(x).square().sum(), x)[0] for f in (program, compiled))
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride()


def test_a_checkpoint_around_a_call_that_is_captured_in_it():
    """Saved-tensor hooks, a checkpoint's among them, are for what runs: they see nothing of the capture."""

    def block(x):
        return (x.sin() * x).exp().cos()

    def layers(x):
        y = block(x)
        dynamo.graph_break()
        return block(y)

    for function in (block, layers):
        ours = compiled(function)
        for _ in range(2):
            found = []
            for one in (function, ours):
                x = torch.linspace(-1, 1, 6).requires_grad_()
                checkpoint(one, x, use_reentrant=False).sum().backward()
                found.append(x.grad)
            torch.testing.assert_close(*found)


def test_hooks_of_saved_tensors_see_what_runs_only():
    seen = []

    def pack(tensor):
        seen.append((type(tensor), float(tensor.sum())))
        return tensor

    ours = compiled(lambda x: (x.sin() * x).exp().cos())
    for calls in (1, 2):
        x = torch.linspace(-1, 1, 6).requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            ours(x).sum().backward()
        assert len(seen) == calls
        assert {kind for kind, _ in seen} == {torch.Tensor}
