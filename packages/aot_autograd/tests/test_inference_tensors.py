"""Tensors made in inference mode as inputs of training calls: saved, viewed and changed as by eager, or refused so."""

import pytest
import torch

import aot_autograd


def made_in_inference_mode():
    with torch.inference_mode():
        return torch.arange(16.0).view(4, 4) / 7


PROGRAMS = {
    "what is saved is cheap to compute again": lambda w, x: (x + w).exp(),
    "a copy is saved": lambda w, x: x.clone() * w,
    "a function of it is saved": lambda w, x: x.sin() * w,
    "a sum with it is saved twice": lambda w, x: torch.softmax((x + w) * w, -1),
    "it is saved": lambda w, x: x * w,
    "a view of it is saved": lambda w, x: x.view(-1)[:4] * w.view(-1)[:4],
    "its detach is saved": lambda w, x: x.detach() * w,
    "a product saves it": lambda w, x: (x @ w).relu(),
    "only indices are saved": lambda w, x: w[x.abs().long().clamp(0, 3)],
    "it is added in place": lambda w, x: (w * 1).add_(x).mul_(2).exp_(),
    "it is multiplied in place": lambda w, x: (w * 1).mul_(x),
    "views of it are returned": lambda w, x: (x.t(), x[0], x.detach(), w + 1),
    "it is returned": lambda w, x: (x, w + 1),
    "it is changed": lambda w, x: (x.add_(1), w + 1),
    "a gradient is written into it": lambda w, x: x.add_(w),
    "a view of it is changed": lambda w, x: (x.view(-1).add_(1), w + 1),
    "a list with it is changed": lambda w, x: (torch._foreach_add_([x], 1), w + 1)[1],
}


def outcome(call):
    """What a call gives, or how it fails."""
    try:
        return call()
    except RuntimeError as error:
        return f"{type(error).__name__}: {str(error).partition('.')[0]}"


def observed(function, requires_grad):
    """Results, what they are, and their first and second derivatives."""
    x = made_in_inference_mode()
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(4, 4, generator=generator, requires_grad=requires_grad)
    results = outcome(lambda: function(w, x))
    if isinstance(results, str):
        return [results]
    results = results if isinstance(results, tuple) else (results,)
    seen = [(one.is_inference(), one.requires_grad, one._base is None, one is x) for one in results]
    total = sum(one.sum() for one in results if one.requires_grad)
    if not requires_grad:
        return [*seen, *results]
    (first,) = torch.autograd.grad(total, w, create_graph=True)
    second = first
    if first.requires_grad:
        (second,) = torch.autograd.grad(first.sum(), w)
    return [*seen, *results, first, second]


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_autograd_saves_decides(name, requires_grad, graph_runner):
    function = PROGRAMS[name]
    expected = observed(function, requires_grad)
    compiled = observed(aot_autograd.aot_function(function, graph_runner), requires_grad)
    torch.testing.assert_close(
        [one for one in compiled if isinstance(one, torch.Tensor)],
        [one for one in expected if isinstance(one, torch.Tensor)],
    )
    assert [one for one in compiled if not isinstance(one, torch.Tensor)] == [
        one for one in expected if not isinstance(one, torch.Tensor)
    ]


def test_both_kinds_of_programs_are_among_these():
    found = [observed(function, True) for function in PROGRAMS.values()]
    refused = [one[0] for one in found if len(one) == 1]
    assert any("cannot be saved" in one for one in refused)
    assert any("Inplace update" in one for one in refused)
    assert len(found) - len(refused) > 6


def test_a_compiled_version_is_for_one_kind_of_input(graph_runner):
    compiled = aot_autograd.aot_function(lambda w, x: x * w, graph_runner)
    w, x = torch.ones(4, 4, requires_grad=True), made_in_inference_mode()
    compiled(w, x.clone()).sum().backward()
    torch.testing.assert_close(w.grad, x.clone())
    with pytest.raises(RuntimeError, match="cannot be saved"):
        compiled(w, x)
    with torch.inference_mode():
        torch.testing.assert_close(compiled(w, x), x)
        torch.testing.assert_close(compiled(w, x), x)


@pytest.mark.parametrize("lazy", [torch.conj, torch._neg_view], ids=["conjugate", "negative"])
def test_what_is_saved_of_a_lazy_tensor(lazy, graph_runner):
    with torch.inference_mode():
        x = lazy(torch.randn(4, dtype=torch.complex64))
    gradients = []
    for function in (
        eager := lambda w, x: (x + w).exp(),
        aot_autograd.aot_function(eager, graph_runner),
    ):
        w = torch.ones(4, dtype=torch.complex64, requires_grad=True)
        function(w, x).abs().sum().backward()
        gradients.append(w.grad)
    torch.testing.assert_close(*gradients)
