"""Derivatives of derivatives through the whole compiler: eager's values, strictly, in one graph where they are inside.

The functions and programs are those of `aot_autograd`'s tests.
"""

import sys
from pathlib import Path

import pytest
import torch

import compile_api

sys.path.append(str(Path(__file__).parents[3] / "aot_autograd" / "tests"))
from second_order_programs import (
    FUNCTIONS,
    PROGRAMS,
    as_near,
    attention,
    derivatives_inside,
    derivatives_outside,
    drawn,
    left_to_eager,
)

INSIDE = (
    "saved activation",
    "softmax",
    "layer norm",
    "batch norm in training",
    "attention by its formula",
    "conv2d",
    "lstm cell",
    "in place",
)
STRICT = {"strict": True}


def strictly(function):
    return compile_api.compile(function, fullgraph=True, dynamic=False, options=STRICT)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_outside(name):
    left = []

    def program(compiler, dtype):
        return derivatives_outside(
            name, compiler, dtype, 2, lambda made: left.append(left_to_eager(made))
        )

    program(strictly, torch.float32)
    assert left == [set()]
    assert as_near(program, strictly, torch.float32)


@pytest.mark.parametrize("name", INSIDE)
def test_three_orders_inside(name):
    def program(compiler, dtype):
        return derivatives_inside(name, compiler, dtype, 3)

    assert as_near(program, strictly, torch.float64)
    assert compile_api.graph_count() == 1


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs(program):
    assert as_near(program, strictly, torch.float64)


def test_a_kernel_of_attention_that_has_no_second_derivative():
    def second(out, query):
        (first,) = torch.autograd.grad(out, query, create_graph=True)
        torch.autograd.grad(first.sum(), query)

    refused = "derivative for aten::_scaled_dot_product_flash_attention_for_cpu_backward"
    for compiler in (lambda function: function, strictly):
        query, key, value = (
            one.requires_grad_() for one in drawn(*[(1, 2, 5, 4)] * 3, dtype=torch.float32)
        )
        out = compiler(lambda q, k, v: attention(q, k, v).sum())(query, key, value)
        with pytest.raises(RuntimeError, match=refused):
            second(out, query)
