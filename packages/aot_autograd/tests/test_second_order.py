"""Derivatives of derivatives, two and three orders, outside and inside: eager's values, and nothing left to eager.

`second_order_programs.py` has the functions and programs. In float64 results are eager's but for rounding; in float32
they are as near to float64 as eager's.
"""

import sys
from pathlib import Path

import pytest
import torch

import aot_autograd

sys.path.append(str(Path(__file__).parent))
from second_order_programs import (
    DTYPES,
    FUNCTIONS,
    PROGRAMS,
    as_near,
    derivatives_inside,
    derivatives_outside,
    left_to_eager,
)


def eager(function):
    return function


def by_aot(runner):
    return lambda function: aot_autograd.aot_function(function, runner, options={"verify": True})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("derivatives", [derivatives_outside, derivatives_inside])
def test_three_orders(derivatives, name, dtype, graph_runner):
    assert as_near(
        lambda compiler, dtype: derivatives(name, compiler, dtype, 3), by_aot(graph_runner), dtype
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_nothing_of_a_derivative_is_eagers(name, graph_runner):
    left = []
    derivatives_outside(
        name, by_aot(graph_runner), torch.float64, 3, lambda made: left.append(left_to_eager(made))
    )
    assert left == [set(), set()]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs(program, dtype, graph_runner):
    assert as_near(program, by_aot(graph_runner), dtype)
