"""Our composition of matrix products, for versions of torch whose own reads sizes as numbers."""

import itertools

import pytest
import torch

from primtorch.fake import ShapeContext, fakeify
from primtorch.products import linear, matmul
from primtorch.symbolic import SizeEnvironment

SHAPES = ((4,), (3, 4), (2, 3, 4), (5, 1, 3, 4))
OTHERS = ((4,), (4, 6), (2, 4, 6), (5, 2, 4, 6))


def _symbolic(value, environment):
    names = itertools.count(len(environment.hints))
    sizes = [
        environment.create_size(f"s{next(names)}", size) if size > 1 else size
        for size in value.shape
    ]
    return fakeify(value, ShapeContext(environment), shape=sizes)


@pytest.mark.parametrize("left", SHAPES, ids=str)
@pytest.mark.parametrize("right", OTHERS, ids=str)
def test_matmul_is_that_of_eager(left, right):
    torch.manual_seed(0)
    a, b = torch.randn(left), torch.randn(right)
    expected = torch.matmul(a, b)
    torch.testing.assert_close(matmul(a, b), expected)
    environment = SizeEnvironment()
    with torch._C.DisableTorchFunction():
        found = matmul(_symbolic(a, environment), _symbolic(b, environment))
    assert tuple(map(int, found.shape)) == expected.shape
    assert tuple(map(int, found.stride())) == expected.stride()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("biased", [True, False])
def test_linear_is_that_of_eager(shape, biased):
    torch.manual_seed(0)
    x, weight = torch.randn(shape), torch.randn(6, 4)
    bias = torch.randn(6) if biased else None
    expected = torch.nn.functional.linear(x, weight, bias)
    torch.testing.assert_close(linear(x, weight, bias), expected)
    environment = SizeEnvironment()
    with torch._C.DisableTorchFunction():
        found = linear(
            _symbolic(x, environment),
            fakeify(weight, ShapeContext(environment)),
            None if bias is None else fakeify(bias, ShapeContext(environment)),
        )
    assert tuple(map(int, found.shape)) == expected.shape
    assert tuple(map(int, found.stride())) == expected.stride()


def test_a_scalar_is_no_operand():
    with pytest.raises(RuntimeError, match="0D and 1D"):
        matmul(torch.tensor(1.0), torch.ones(1))


def test_a_bias_of_a_known_size_meets_a_symbolic_width():
    environment = SizeEnvironment()
    context = ShapeContext(environment)
    wide = _symbolic(torch.randn(5, 4), environment)
    with torch._C.DisableTorchFunction():
        found = torch.addmm(
            fakeify(torch.randn(5), context), _symbolic(torch.randn(3, 4), environment), wide.t()
        )
    assert tuple(map(int, found.shape)) == (3, 5)
