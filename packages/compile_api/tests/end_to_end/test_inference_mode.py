"""Calls in inference mode, where tensors count no changes: compiled, not left to eager."""

import pytest
import torch

import compile_api

STRICT = {"strict": True}


def plain(x):
    return x.sin() + 1, x.t(), x[0]


def written(x):
    x.mul_(2)
    x[0] = 1
    return x + 1, x.t()


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)
        self.norm = torch.nn.BatchNorm1d(3)

    def forward(self, x):
        return self.norm(self.layer(x)).relu()


@pytest.mark.parametrize("function", [plain, written])
@pytest.mark.parametrize("inside", [False, True])
def test_functions(function, inside):
    compiled = compile_api.compile(function, fullgraph=True, options=STRICT)
    for _ in range(2):
        results = []
        for one in (function, compiled):
            torch.manual_seed(0)
            with torch.inference_mode(mode=inside):
                x = torch.randn(3, 3)  # of inference mode, or from outside of it
            with torch.inference_mode():
                results.append([*one(x), x])
        for want, got in zip(*results, strict=True):
            torch.testing.assert_close(got, want)
            assert want.is_inference() == got.is_inference()


def test_a_module_with_statistics():
    results = []
    for wrap in (lambda module: module, compile_api.compile):
        torch.manual_seed(0)
        module = Counting()
        run = wrap(module)
        with torch.inference_mode():
            out = [run(torch.randn(4, 3)) for _ in range(2)]
        results.append([*out, module.norm.running_mean, module.norm.num_batches_tracked])
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


def test_the_same_function_in_and_out_of_it():
    compiled = compile_api.compile(plain, fullgraph=True, options=STRICT)
    x = torch.randn(3, 3, requires_grad=True)
    with torch.inference_mode():
        assert not compiled(x)[0].requires_grad
    assert compiled(x)[0].requires_grad
    with torch.no_grad():
        assert not compiled(x)[0].is_inference()
