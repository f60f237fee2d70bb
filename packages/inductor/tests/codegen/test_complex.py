"""Complex functions in kernels: eager's values, also at zeros, infinities and NaN."""

import math

import pytest
import torch

from inductor import InductorOptions, compile_fx

pytestmark = pytest.mark.cxx

PARTS = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -3.0, 1e-4, 20.0, math.inf, -math.inf, math.nan]
FUNCTIONS = [
    "exp", "log", "sqrt", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh",
    "asinh", "acosh", "atanh", "exp2", "log2", "log10", "expm1", "rsqrt", "sigmoid", "reciprocal",
    "sgn", "abs", "angle", "isnan", "isinf", "square",
]  # fmt: skip


def grid(dtype):
    return torch.tensor([complex(re, im) for re in PARTS for im in PARTS], dtype=dtype)


def assert_near(found, expected, name="", *, digits=1e-5):
    """Equal to within `digits` of the magnitude; infinities, NaN and their places the same."""
    assert found.dtype == expected.dtype
    if not expected.is_floating_point() and not expected.is_complex():
        assert torch.equal(found, expected), name
        return
    size = torch.nan_to_num(expected.abs()) + 1e-300
    if expected.is_complex():
        found, expected, size = map(
            torch.view_as_real, (found, expected, torch.complex(size, size))
        )
    same = (found == expected) | (found.isnan() & expected.isnan())
    near = same | ((found - expected).abs() <= digits * size)
    assert near.all(), (name, found[~near], expected[~near])


def run(traced, function, *inputs):
    (out,) = compile_fx(traced(function, *inputs), options=InductorOptions(strict=True))([*inputs])
    return out


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_functions_have_eagers_values(traced, dtype):
    x = grid(dtype)
    functions = [getattr(torch, name) for name in FUNCTIONS]
    compiled = compile_fx(
        traced(lambda x: tuple(function(x) for function in functions), x),
        options=InductorOptions(strict=True),
    )
    for name, found in zip(FUNCTIONS, compiled([x]), strict=True):
        assert_near(found, getattr(torch, name)(x), name)


def test_log1p_keeps_its_digits_towards_zero(traced):
    x = torch.tensor([1e-9 + 1e-9j, 1e-20j, -1 + 0j, 3 - 4j], dtype=torch.complex128)
    torch.testing.assert_close(run(traced, torch.log1p, x), torch.log1p(x), rtol=1e-14, atol=0)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, -1, -2, 0.5, -0.5, 2.5])
def test_powers_have_eagers_special_cases(traced, exponent):
    x = grid(torch.complex128)
    found = run(traced, lambda x: x**exponent, x)
    assert_near(found, x**exponent, digits=1e-12)


def test_division_by_zero_is_eagers(traced):
    x, y = grid(torch.complex64), torch.tensor(0j)
    found = run(traced, lambda x, y: x / y, x, y)
    assert_near(found, x / y)
