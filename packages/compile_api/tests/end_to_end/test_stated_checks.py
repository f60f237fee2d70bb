"""What a program states about its values raises where it raises in eager, with and without gradients."""

from __future__ import annotations

import pytest
import torch

import compile_api


def both(function):
    """The function, and compiled so that a fault of the compiler raises."""
    return function, compile_api.compile(function, fullgraph=True, options={"strict": True})


@pytest.mark.parametrize("message", [(), ("the numbers must be positive",)])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("unused", [False, True])
def test_an_assertion_on_values_raises_as_eager(message, training, unused):
    def function(x):
        doubled = x * 2
        if not unused:
            torch._assert_async((doubled > 0).all(), *message)
            return doubled.sin()
        torch._assert_async((x.cos() > 0).all(), *message)
        return doubled

    right = torch.full((5,), 0.5, requires_grad=training)
    wrong = torch.full((5,), -2.0, requires_grad=training)
    eager, compiled = both(function)
    torch.testing.assert_close(compiled(right), eager(right), rtol=0, atol=1e-7)
    texts = []
    for called in (eager, compiled):
        with pytest.raises(RuntimeError) as caught:
            called(wrong)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


def test_a_custom_operator_without_results_is_called():
    seen = []

    @torch.library.custom_op("stated_checks::look", mutates_args=())
    def look(x: torch.Tensor) -> None:
        seen.append(float(x.sum()))

    @look.register_fake
    def _(x):
        return None

    def function(x):
        look(x * 2)
        look(x * 2)
        return x + 1

    for called in both(function):
        seen.clear()
        called(torch.ones(3))
        assert seen == [6.0, 6.0]


@pytest.mark.parametrize("phase", [False, True])
def test_the_check_of_a_derivative_is_part_of_the_backward(phase):
    def function(x):
        left, values, right = torch.linalg.svd(x, full_matrices=False)
        if phase:
            return left.real.sum()
        return (left @ torch.diag_embed(values).to(left.dtype) @ right).abs().sum() + values.sum()

    torch.manual_seed(0)
    x = torch.randn(4, 3, dtype=torch.complex64, requires_grad=True)
    results = []
    for called in both(function):
        value = called(x)
        try:
            results.append(torch.autograd.grad(value, x)[0])
        except RuntimeError as error:
            results.append(str(error))
    if phase:
        assert "phase" in results[0]
        assert results[0] == results[1]
    else:
        torch.testing.assert_close(results[1], results[0])


def test_a_question_of_a_users_own_backward_is_no_check():
    class Halved(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x / 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient / 2 if torch.allclose(gradient, torch.ones(3)) else gradient * 7

    def function(x):
        return Halved.apply(x)

    compiled = compile_api.compile(function)
    for tangent in (torch.ones(3), torch.zeros(3) + 3):
        x = torch.ones(3, requires_grad=True)
        expected = torch.autograd.grad(function(x), x, tangent)
        found = torch.autograd.grad(compiled(x), x, tangent)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("training", [False, True])
def test_effects_keep_their_order_whatever_they_wait_for(training):
    seen = []

    @torch.library.custom_op("stated_checks::note", mutates_args=())
    def note(x: torch.Tensor, number: int) -> None:
        seen.append((number, round(float(x.sum()), 3)))

    @note.register_fake
    def _(x, number):
        return None

    def function(x, y):
        computed = (x * 2).sin()
        note(computed, 0)
        note(y, 1)
        later = computed.exp() + y
        note(later.sum(0), 2)
        note(x, 3)
        return (later * 3).cos(), computed + 1

    x = torch.linspace(-1, 1, 64).reshape(8, 8).requires_grad_(training)
    orders = []
    for called in both(function):
        seen.clear()
        called(x, x.detach().cos())
        orders.append(list(seen))
    assert orders[0] == orders[1]
    assert [number for number, _ in orders[1]] == [0, 1, 2, 3]


@pytest.mark.parametrize("computed", [False, True])
def test_effects_before_a_bad_index_happen_once(computed):
    seen = []

    @torch.library.custom_op("stated_checks::tell", mutates_args=())
    def tell(x: torch.Tensor, number: int) -> None:
        seen.append(number)

    @tell.register_fake
    def _(x, number):
        return None

    def function(x, places):
        tell(x * 2, 0)
        y = x[(places * 2).clamp(max=50) if computed else places].sin()
        tell(y, 1)
        return y

    x = torch.randn(8, 8)
    for called in both(function):
        seen.clear()
        called(x, torch.tensor([1, 2]))
        assert seen == [0, 1]
        seen.clear()
        with pytest.raises(IndexError):
            called(x, torch.tensor([1, 99]))
        assert seen == [0]
