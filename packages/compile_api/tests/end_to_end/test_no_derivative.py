"""Operators that torch has no gradient for: eager's results, and its error where a backward reaches them."""

import warnings

import pytest
import torch

import compile_api
from compile_api.errors import CompileWarning


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.heaviside(x, x) * 2,
        lambda x: torch.special.gammainc(x.abs(), x.abs() + 1) + x,
        lambda x: torch.linalg.ldl_factor(x.outer(x) + torch.eye(5))[0],
    ],
    ids=["heaviside", "gammainc", "ldl_factor"],
)
def test_the_forward_runs_and_the_backward_raises_as_in_eager(program, strict):
    compiled = compile_api.compile(program, options={"strict": strict})
    x = torch.linspace(-1, 2, 5).requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("error", CompileWarning)
        found = compiled(x)
    wanted = program(x)
    torch.testing.assert_close(found, wanted)
    assert found.requires_grad is wanted.requires_grad
    with pytest.raises((RuntimeError, NotImplementedError)) as eager:
        wanted.sum().backward()
    with pytest.raises(eager.type, match="derivative"):
        found.sum().backward()
