"""Windows of tensors whose sizes vary, through the whole compiler: strides are symbols of their own."""

import pytest
import torch

import compile_api


def model(x, weight):
    y = torch.softmax(x, -1) * weight
    return y.sum(0), x.t().contiguous() @ y


@pytest.mark.parametrize("gradient", [False, True])
def test_one_graph_for_all_strides(gradient):
    compile_api.reset()
    compiled = compile_api.compile(model, options={"strict": True})
    weight = torch.randn(6)
    for width in (8, 16, 24, 40):
        base = torch.randn(5, width, 6)
        x, y = base[:, 2].requires_grad_(gradient), base[:, 2].requires_grad_(gradient)
        w, v = weight.clone().requires_grad_(gradient), weight.clone().requires_grad_(gradient)
        for ours, wanted in zip(compiled(x, w), model(y, v), strict=True):
            torch.testing.assert_close(ours, wanted)
            assert ours.stride() == wanted.stride()
            if gradient:
                ours.sum().backward(retain_graph=True)
                wanted.sum().backward(retain_graph=True)
        if gradient:
            torch.testing.assert_close(x.grad, y.grad)
            torch.testing.assert_close(w.grad, v.grad)
            assert x.grad.stride() == y.grad.stride()
    assert compile_api.graph_count() == 2
