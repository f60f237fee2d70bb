"""Tensors made in inference mode, in training calls: what eager refuses is refused by eager, without a word of ours."""

import warnings

import pytest
import torch

import compile_api


def made_in_inference_mode():
    with torch.inference_mode():
        return torch.linspace(-1, 1, 12).view(3, 4)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        lambda w, x: (x + w).exp(),
        lambda w, x: x.sin() * w,
        lambda w, x: x * w,
        lambda w, x: x.t()[1:] * w.t()[1:],
        lambda w, x: x.mul_(2) + w,
        lambda w, x: x.add_(w),
    ],
)
def test_a_feature_of_an_encoder_that_ran_in_inference_mode(function, strict):
    compiled = compile_api.compile(function, options={"strict": strict})

    def run(called):
        x, w = made_in_inference_mode(), torch.ones(3, 4, requires_grad=True)
        try:
            result = called(w, x)
        except RuntimeError as error:
            return str(error), x
        result.sum().backward()
        return result, w.grad, x

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = run(compiled)
    for one, expected in zip(found, run(function), strict=True):
        if isinstance(expected, str):
            assert one == expected
        else:
            torch.testing.assert_close(one, expected)


def test_the_same_function_for_both_kinds_of_inputs():
    compiled = compile_api.compile(lambda w, x: x * w)
    w = torch.ones(3, 4, requires_grad=True)
    for _ in range(2):
        compiled(w, made_in_inference_mode().clone()).sum().backward()
        with pytest.raises(RuntimeError, match="cannot be saved"):
            compiled(w, made_in_inference_mode())
