"""Tensors made of tensors in training through the whole compiler: written in place, and mixed with plain tensors."""

import sys
from functools import partial
from pathlib import Path

import pytest
import torch

import compile_api

sys.path.append(str(Path(__file__).parents[3] / "dynamo" / "tests"))
sys.path.append(str(Path(__file__).parents[3] / "aot_autograd" / "tests"))

from wrapper_programs import MIXED, RAISING, WRITES, names, outcome
from wrapper_tensors import linear, nested, parts, quantized, two

whole = partial(compile_api.compile, fullgraph=True, options={"strict": True})
KERNELS = [case for case in WRITES if case[1].__name__ in ("both", "a_view", "twice")]


def assert_same(want, got):
    for one, other in zip(want, got, strict=True):
        assert type(one) is type(other)
        if one is None:
            continue
        for mine, theirs in zip(parts(one), parts(other), strict=True):
            assert mine.stride() == theirs.stride()
            torch.testing.assert_close(theirs.detach(), mine.detach())


def compare(function, make, class_of=two, tangents=None, backend="aot_eager"):
    compiled = whole(function, backend=backend)
    for seed in range(2):
        want, facts = outcome(function, make, class_of, seed, tangents)
        got, found = outcome(compiled, make, class_of, seed, tangents)
        assert found == facts
        assert_same(want, got)


@pytest.mark.parametrize(("function", "make"), WRITES, ids=names(WRITES))
def test_written_in_place(function, make):
    compare(function, make, nested if make.__name__ == "both" else two)


@pytest.mark.parametrize(("function", "make"), KERNELS, ids=names(KERNELS))
def test_written_in_place_by_kernels(function, make):
    compare(function, make, backend="inductor")


@pytest.mark.parametrize("tangents", ["wrapper", "plain"])
@pytest.mark.parametrize(("function", "make"), MIXED, ids=names(MIXED))
def test_gradients_of_another_make(function, make, tangents):
    compare(function, make, tangents=tangents)


@pytest.mark.parametrize(("function", "make"), RAISING, ids=names(RAISING))
def test_what_eager_refuses(function, make):
    compiled = compile_api.compile(function)
    want, got = (outcome(one, make, two)[1] for one in (function, compiled))
    assert want == got


def test_quantized_weights_that_are_trained():
    compiled = whole(linear)
    results = []
    for one in (linear, compiled):
        torch.manual_seed(0)
        x, weight = torch.randn(2, 3, requires_grad=True), quantized(4, 3).requires_grad_()
        outputs = one(x, weight)
        sum(out.square().sum() for out in outputs if isinstance(out, torch.Tensor)).backward()
        assert type(weight.grad) is torch.Tensor
        results.append([*outputs[:2], x.grad, weight.grad])
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want)
