"""Inputs and outputs that share memory, in autograd's eyes and behind its back."""

import pytest
import torch

import aot_autograd


def views(tracked, *, leaf=False):
    """Two overlapping views of one tensor that requires a gradient."""
    base = torch.linspace(-1, 1, 20).requires_grad_()
    whole = base if leaf else base * 1
    return tracked([whole[:12].view(3, 4), whole[4:16].view(3, 4)], [base, whole])


def test_views_of_one_tensor_are_written_in_training(agree, tracked):
    def function(a, b):
        a.mul_(3)
        c = b * 2
        b[0].add_(a[1] * 2)
        return a + b, c

    agree(function, lambda: views(tracked))


def test_a_view_and_its_base_are_written_in_training(agree, tracked):
    def function(view, base):
        view.add_(1)
        base[3:].add_(base[:-3] * 2)
        return view.exp()

    def inputs():
        leaf = torch.linspace(-1, 1, 20).requires_grad_()
        whole = leaf * 1
        return tracked([whole[8:].view(3, 4), whole], [leaf])

    agree(function, inputs)


def test_views_of_a_parameter_are_written_under_no_grad(agree, tracked):
    def function(a, b):
        with torch.no_grad():
            a.mul_(0.5)
        return (a * b).sin()

    agree(function, lambda: views(tracked, leaf=True), backward_may_fail=True)


def test_a_write_gives_all_views_of_the_base_a_gradient(agree):
    def inputs():
        base = torch.randn(20)
        return base[:12].view(3, 4), base[4:16].view(3, 4), torch.randn(4, requires_grad=True)

    agree(lambda a, b, w: (a.mul_(w), b.sin()), inputs)


def test_a_gradient_stands_for_its_own_input_beside_a_shared_storage(agree):
    def function(a, b, w):
        a.add_(1)
        return b * w

    def inputs():
        base = torch.randn(20)
        return base[:12].view(3, 4), base[4:16].view(3, 4), torch.randn(4, requires_grad=True)

    agree(function, inputs)


def test_a_detached_alias_beside_a_written_view_is_refused(graph_runner):
    compiled = aot_autograd.aot_function(lambda a, b: (a.mul_(2), b * 1), graph_runner)
    x = torch.randn(3, requires_grad=True) * 1
    with pytest.raises(aot_autograd.UnsupportedAliasing, match="not all are views"):
        compiled(x, x.detach())


def test_data_has_a_version_of_its_own(agree, tracked):
    def inside(x):
        y = x.sin()
        y.data.mul_(2)
        return y.data[0], y.detach()

    def of_an_input(x):
        x.data.add_(1)
        return x.data, x * 2

    leaf = lambda: [torch.randn(3, 4, requires_grad=True)]
    agree(of_an_input, leaf)
    agree(inside, lambda: [torch.randn(3, 4)])


@pytest.mark.parametrize("kind", ["leaf", "made"])
def test_detached_in_place_then_written_through_autograd(agree, tracked, kind):
    def function(x, w):
        x.detach_()
        x[0] = w.sum()
        return x * w

    def inputs():
        x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, requires_grad=True)
        return tracked([x if kind == "leaf" else x * 1, w], [x] if kind == "made" else [])

    agree(function, inputs)


def test_an_error_of_one_output_leaves_the_gradients_of_the_others(graph_runner):
    def function(x):
        first = x.exp()
        second = first * 1
        first.mul_(2)  # exp's derivative needs what is gone now
        return second, x.sin()

    for one in (function, aot_autograd.aot_function(function, graph_runner)):
        x = torch.linspace(0, 1, 3).requires_grad_()
        bad, good = one(x)
        (gradient,) = torch.autograd.grad(good.sum(), x, retain_graph=True)
        torch.testing.assert_close(gradient, x.cos())
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(bad.sum(), x)


def test_an_out_argument_that_would_be_resized_is_refused(graph_runner):
    compiled = aot_autograd.aot_function(lambda x, y: torch.sin(x, out=y), graph_runner)
    with pytest.raises(aot_autograd.UnsupportedOperator, match="must be resized"):
        compiled(torch.randn(3), torch.randn(2))


def test_a_write_to_overlapping_windows_is_refused(graph_runner):
    compiled = aot_autograd.aot_function(lambda x: x.unfold(0, 2, 1).add_(1), graph_runner)
    with pytest.raises(aot_autograd.UnsupportedOperator, match="overlaps itself"):
        compiled(torch.randn(4))


@pytest.mark.parametrize("strides", [(0, 4, 1), (2, 4, 1)])
def test_an_input_that_repeats_elements_is_not_changed_in_place(graph_runner, strides):
    def program(x):
        x[0].mul_(2)
        return x.sum()

    x = torch.randn(40).as_strided((2, 3, 4), strides)
    with pytest.raises(aot_autograd.UnsupportedAliasing, match="several elements lie in one place"):
        aot_autograd.aot_function(program, graph_runner)(x)


def test_a_written_storage_that_an_input_sees_conjugated_is_refused(graph_runner):
    compiled = aot_autograd.aot_function(lambda a, b: (a.mul_(2j), b * 1), graph_runner)
    x = torch.randn(3, dtype=torch.complex64)
    with pytest.raises(aot_autograd.UnsupportedAliasing, match="lazily conjugated"):
        compiled(x, x.conj())


@pytest.mark.parametrize(
    "function",
    [
        lambda v: v[..., :1].mul_(2),
        lambda v: (v[..., :1], v.mul_(3))[0],
        lambda v: (v.mul_(3), v[..., :1])[1],
        lambda v: (v[..., :1], v.mul_(3), v[1:])[::2],
        lambda v: (v[1:][0].mul_(2), v[0]),
        lambda v: (v[1:], v[0].sin_(), v.mul_(2))[0][0],
    ],
)
@pytest.mark.parametrize("view", [True, False])
def test_gradients_of_a_written_input_take_the_way_of_eager(graph_runner, function, view):
    """Views of it that are older than the write lead past it, to its base."""

    def run(call):
        leaf = torch.linspace(-1, 1, 12).requires_grad_()
        whole = leaf.view(3, 4) * 1
        value = whole.view(3, 4) if view else whole
        value.retain_grad()
        outputs = call(value)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        total = sum((one * (2 + number)).sum() for number, one in enumerate([value, *outputs]))
        total.backward()
        return value.grad, leaf.grad

    torch.testing.assert_close(
        run(aot_autograd.aot_function(function, graph_runner)), run(function), rtol=0, atol=0
    )
