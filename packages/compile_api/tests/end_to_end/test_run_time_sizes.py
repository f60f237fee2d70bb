"""Numbers and sizes known only at run time, through the whole compiler: one capture, compiled between them."""

import sys
from pathlib import Path

import pytest
import torch

import compile_api

sys.path.append(str(Path(__file__).parents[3] / "dynamo" / "tests"))

from run_time_programs import CALLS, OPTIONS, PROGRAMS, outcome

SETTINGS = {"strict": True, **OPTIONS}


def equal(found, expected):
    if isinstance(expected, tuple | list) and expected and not isinstance(expected[0], type):
        for one, other in zip(found, expected, strict=True):
            equal(one, other)
    elif isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected)
    else:
        assert found == expected


@pytest.mark.parametrize("program", PROGRAMS)
def test_values(program):
    compiled = compile_api.compile(program, fullgraph=True, options=SETTINGS)
    for arguments in CALLS:
        equal(outcome(compiled, arguments), outcome(program, arguments))


class Experts(torch.nn.Module):
    """Each token goes to one of three layers: the sizes of the groups depend on the data."""

    def __init__(self):
        super().__init__()
        self.gate = torch.nn.Linear(6, 3)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(6, 6) for _ in range(3))

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).max(-1)
        result = torch.zeros_like(x)
        for i, layer in enumerate(self.layers):
            rows = torch.where(chosen == i)[0]
            result = result.index_add(0, rows, layer(x[rows]).relu() * weights[rows, None])
        return result


def test_a_mixture_of_experts_trains():
    torch.manual_seed(0)
    module = Experts()
    compiled = compile_api.compile(module, fullgraph=True, options=SETTINGS)
    for count in (20, 20, 13, 2):
        x = torch.randn(count, 6)
        results = []
        for function in (compiled, module):
            module.zero_grad()
            output = function(x)
            output.square().sum().backward()
            results.append((output.detach(), [p.grad.clone() for p in module.parameters()]))
        torch.testing.assert_close(*results)


def test_gradients_through_a_mask_that_is_written_in_a_later_stage():
    def function(x):
        y = x * 1
        y[x > 0] = x[x > 0].exp()
        return y * y

    compiled = compile_api.compile(function, fullgraph=True, options=SETTINGS)
    for size in (5, 9, 1):
        results = []
        for one in (function, compiled):
            torch.manual_seed(size)
            x = torch.randn(size, 3, requires_grad=True)
            one(x).sum().backward()
            results.append(x.grad)
        torch.testing.assert_close(*results)
