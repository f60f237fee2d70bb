"""Gradients that are views of what flows in: in eager's strides, on eager's memory, whatever that is."""

from functools import partial

import pytest
import torch

import aot_autograd


def plus(x, y):
    return x + y


PROGRAMS = {
    "sum": lambda x, y: x.sum(),
    "sums": lambda x, y: x.sum() + y.sum(),
    "sum of rows": lambda x, y: x.sum(0),
    "sum of columns, kept": lambda x, y: x.sum(1, keepdim=True),
    "sum of a transpose": lambda x, y: x.t().sum(0),
    "sum of a view": lambda x, y: x.view(-1).sum(),
    "sum of one": lambda x, y: x.unsqueeze(0).sum(0),
    "addition": plus,
    "addition to a transpose": lambda x, y: x.t() + y.t(),
    "transposes": lambda x, y: (x.t(), y.t()),
    "views": lambda x, y: (x.view(-1), y.view(3, 4)),
    "computed": lambda x, y: (x.sum(0).sin(), y.sum(1).cos()),
}


def dense(shape):
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape)


def turned(shape):
    return dense(shape[::-1]).permute(tuple(reversed(range(len(shape)))))


def spread(shape):
    return torch.full((), 2.0).expand(shape)


def with_gaps(shape):
    return dense((*shape, 2))[..., 0]


def layouts(called, make):
    """What gradients are like, for `torch.autograd.grad` and for hooks; what is accumulated."""
    x, y = dense((4, 3)).requires_grad_(), (dense((4, 3)) / 7).requires_grad_()
    found, values = [], []
    for use in ("grad", "backward"):
        results = called(x, y)
        results = results if isinstance(results, tuple) else (results,)
        tangents = [make(tuple(one.shape)) for one in results]
        seen = {}
        hooks = [x.register_hook(partial(seen.__setitem__, "x"))]
        hooks += [y.register_hook(partial(seen.__setitem__, "y"))]
        if use == "grad":
            seen["gradients"] = torch.autograd.grad(results, (x, y), tangents, allow_unused=True)
        else:
            torch.autograd.backward(results, tangents)
            found.append([None if leaf.grad is None else leaf.grad.stride() for leaf in (x, y)])
            values += [x.grad, y.grad]
        for hook in hooks:
            hook.remove()
        for value in (seen.get("x"), seen.get("y"), *seen.get("gradients", ())):
            values.append(value)
            if value is not None:
                at = [value.data_ptr() == tangent.data_ptr() for tangent in tangents]
                found.append((value.stride(), at))
    return found, values


@pytest.mark.parametrize("make", [dense, turned, spread, with_gaps])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_gradient_has_the_layout_of_eagers(name, make, graph_runner):
    function = PROGRAMS[name]
    expected, values = layouts(function, make)
    found, ours = layouts(aot_autograd.aot_function(function, graph_runner), make)
    assert found == expected
    torch.testing.assert_close(ours, values)


def test_what_cannot_be_viewed_is_the_copy_that_eager_makes(graph_runner):
    tangent = dense((4, 2))[:, :1].expand(4, 3).t()
    assert not tangent.is_contiguous()

    def gradient(called):
        x = dense((12,)).requires_grad_()
        return torch.autograd.grad(called(x), x, tangent)[0]

    def folded(x):
        return x.view(3, 4) + 1

    expected = gradient(folded)
    found = gradient(aot_autograd.aot_function(folded, graph_runner))
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected)


def test_a_result_that_nobody_differentiates(graph_runner):
    compiled = aot_autograd.aot_function(lambda x, y: (x.sum(0), y.sum(1)), graph_runner)
    x, y = dense((4, 3)).requires_grad_(), dense((4, 3)).requires_grad_()
    first, second = compiled(x, y)
    found = torch.autograd.grad(first, (x, y), spread((3,)), allow_unused=True)
    assert (found[0].stride(), found[1]) == ((0, 0), None)
    (found,) = torch.autograd.grad(second, y, spread((4,)))
    assert found.stride() == (0, 0)


@pytest.mark.parametrize(
    "function",
    [lambda x: x.conj() + 0, torch.view_as_real, lambda x: torch.view_as_real(x.t()) + 1],
)
def test_views_that_are_of_other_numbers(function, graph_runner):
    found = []
    for called in (function, aot_autograd.aot_function(function, graph_runner)):
        x = torch.complex(dense((4, 3)), -dense((4, 3))).requires_grad_()
        result = called(x)
        tangent = (spread(result.shape) * (1 if result.is_floating_point() else 1j)).expand_as(
            result
        )
        found.append(torch.autograd.grad(result, x, tangent)[0].resolve_conj())
    torch.testing.assert_close(*found)
