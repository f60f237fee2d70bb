"""A saved tensor is changed after the call: eager minds only where the backward reads it, and so do we."""

import pytest
import torch
from torch import randn

import aot_autograd

pytestmark = pytest.mark.usefixtures("form")


def leaf(*shape):
    return randn(shape).requires_grad_()


def from_matrix(x, w):
    """Two results of which only one saved the inputs."""
    return x @ w, (x + w) * 3


def from_results(x, w):
    """Each result is saved for its own backward."""
    return (x @ x).exp(), (w @ w).sigmoid()


def from_both(x, w):
    return x * w, (x * w).exp(), x + w


def from_writes(x, w):
    """A write whose backward makes zeros of its own beside the gradient that flows in."""
    product = x * w
    product[0] = product[0] * 2
    return product[0].mul_(2), w.sin()


# function, which of (x, w, *results) is changed, which results are differentiated, whether eager minds
CHANGES = {
    "input, read": (from_matrix, 0, [0], True),
    "input, read by another": (from_matrix, 0, [1], False),
    "input, both differentiated": (from_matrix, 1, [0, 1], True),
    "result, read": (from_results, 2, [0], True),
    "result, read by another": (from_results, 2, [1], False),
    "second result, read by another": (from_results, 3, [0], False),
    "written, read by another": (from_writes, 0, [1], False),
    "written, read": (from_writes, 0, [0], True),
    "one of three": (from_both, 0, [2], False),
    "one of three, read": (from_both, 0, [1, 2], True),
}


def gradients(function, changed, differentiated, *, times=1):
    torch.manual_seed(3)
    x, w = leaf(3, 3), leaf(3, 3)
    tensors = [x, w, *function(x, w)]
    total = sum(tensors[2 + number].sum() * 2 for number in differentiated)
    with torch.no_grad():
        tensors[changed].fill_(float("nan"))
    try:
        for time in range(times):
            total.backward(retain_graph=time < times - 1)
    except RuntimeError as error:
        return str(error)[:60]
    return [x.grad, w.grad]


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("times", [1, 2])
def test_changed(graph_runner, name, times):
    function, changed, differentiated, minds = CHANGES[name]
    compiled = aot_autograd.aot_function(function, graph_runner)
    expected = gradients(function, changed, differentiated, times=times)
    found = gradients(compiled, changed, differentiated, times=times)
    assert (type(expected) is str) == minds
    if minds:
        assert found == expected
    else:
        torch.testing.assert_close(found, expected, equal_nan=True)


def test_by_the_bits_of_a_changed_value(graph_runner):
    """Nothing of a changed tensor is read, not even times zero."""
    compiled = aot_autograd.aot_function(from_matrix, graph_runner)
    found = gradients(compiled, 0, [1])
    assert all(one.isfinite().all() for one in found)


def test_a_freed_graph_is_eagers_error(graph_runner):
    compiled = aot_autograd.aot_function(from_matrix, graph_runner)
    x, w = leaf(3, 3), leaf(3, 3)
    total = compiled(x, w)[1].sum()
    with torch.no_grad():
        x.zero_()
    total.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        total.backward()


def test_what_a_hook_has_packed_is_read_through_it(graph_runner):
    """No version is looked at where hooks keep the tensors, as in eager."""
    results = []
    for function in (from_matrix, aot_autograd.aot_function(from_matrix, graph_runner)):
        torch.manual_seed(3)
        x, w = leaf(3, 3), leaf(3, 3)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t / 2):
            product, _ = function(x, w)
        with torch.no_grad():
            x.zero_()
        product.sum().backward()
        results.append([x.grad, w.grad])
    torch.testing.assert_close(*results)


def test_a_gradient_of_a_gradient_still_needs_its_inputs(graph_runner):
    compiled = aot_autograd.aot_function(from_matrix, graph_runner)
    x, w = leaf(3, 3), leaf(3, 3)
    product, _ = compiled(x, w)
    with torch.no_grad():
        x.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(product.sum(), w, create_graph=True)


def test_versions_are_kept_only_where_they_tell_something(graph_runner):
    """One result, or results that read the same: nothing is counted at a call."""

    def kept(function):
        results = aot_autograd.aot_function(function, graph_runner)(leaf(3, 3), leaf(3, 3))
        node = results[0].grad_fn
        context = node.call.context if hasattr(node, "call") else node
        return context.kept[4]

    assert kept(lambda x, w: (x * w, x.detach())) is None
    assert kept(lambda x, w: (x * w, w * x.sin() * x)) is None
    assert kept(from_results) is not None


def test_an_input_is_read_in_the_place_of_what_is_computed_from_it_again(graph_runner):
    """A declared difference: eager saved the sum, which nobody can change."""

    def function(x, w):
        return (x + w).sin()

    x, w = leaf(3), leaf(3)
    result = aot_autograd.aot_function(function, graph_runner)(x, w)
    expected = function(x, w)
    with torch.no_grad():
        w.zero_()
    assert torch.autograd.grad(expected.sum(), x)[0].isfinite().all()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()
