"""What a function makes in inference mode is a tensor of inference mode, as in eager."""

import pytest
import torch

import compile_api


def inside(x, w):
    with torch.inference_mode():
        hidden = (x @ w).relu()
        view = hidden.view(-1)
    return hidden, view, x + 1, w * 2


@torch.inference_mode()
def decorated(x, w):
    return (x @ w).softmax(-1)


class Decorated(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    @torch.inference_mode()
    def forward(self, x):
        return self.linear(x)


def facts(results):
    results = results if isinstance(results, tuple) else (results,)
    return [(one.is_inference(), one.requires_grad, one._is_view()) for one in results]


@pytest.mark.parametrize("outside", ["grad", "no_grad", "inference"])
@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize("function", [inside, decorated])
def test_results(function, tracked, outside):
    compiled = compile_api.compile(function, options={"strict": True})
    x, w = torch.randn(4, 4), torch.randn(4, 4, requires_grad=tracked)
    modes = {"grad": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode}
    for _ in range(2):
        with modes[outside]():
            found, expected = compiled(x, w), function(x, w)
        assert facts(found) == facts(expected)
        torch.testing.assert_close(found, expected)
    for one in found if isinstance(found, tuple) else (found,):
        if one.is_inference():
            with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
                one * torch.ones(1, requires_grad=True)
    if function is inside and tracked and outside == "grad":
        found[-1].sum().backward()
        assert w.grad.eq(2).all()


def test_a_module_whose_forward_is_decorated():
    module = Decorated()
    compiled = compile_api.compile(module, options={"strict": True})
    x = torch.randn(2, 4)
    found, expected = compiled(x), module(x)
    assert facts(found) == facts(expected) == [(True, False, False)]
    torch.testing.assert_close(found.clone(), expected.clone())


def test_a_written_argument_stays_what_it_was():
    def function(x, y):
        with torch.inference_mode():
            made = y * 2
        x.add_(1)
        return made

    x, y = torch.zeros(3), torch.ones(3)
    made = compile_api.compile(function, options={"strict": True})(x, y)
    assert made.is_inference()
    assert not x.is_inference()
    assert x.eq(1).all()
