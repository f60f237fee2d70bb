"""Python's functions of a size that varies: text of it and of conditions on it, `divmod`, `operator.index`."""

import math
import operator

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter, same


def condition_as_text(x):
    return x + len(f"{x.shape[0] > 5}"), str(x.shape[0] > 5), f"{x.shape[0] > 5!r:>6}"


def hash_of_a_condition(x):
    return x * hash(x.shape[0] > 5)


def quotient_and_rest(x):
    return x * divmod(x.shape[0], 4)[0] + divmod(x.shape[0], 4)[1]


def index_after_a_condition(x):
    if x.shape[0] > 1 and operator.index(x.shape[0]) > 2:
        return x * operator.index(x.shape[0])
    return x


@pytest.mark.parametrize(
    ("function", "compiles"),
    [(condition_as_text, 2), (hash_of_a_condition, 2), (quotient_and_rest, 1), (index_after_a_condition, 1)],
)  # fmt: skip
def test_equal_at_each_size(function, compiles):
    counter = CompileCounter()
    compiled = dynamo.optimize(counter, dynamic=True, fullgraph=True)(function)
    for size in (4, 7, 9, 5):
        x = torch.ones(size)
        found, wanted = compiled(x), function(x)
        if isinstance(wanted, tuple):
            assert found[1:] == wanted[1:]
            found, wanted = found[0], wanted[0]
        assert torch.equal(found, wanted)
    assert counter.frame_count <= compiles


ARITHMETIC = (
    *("k // 0.1", "7.5 // k", "k % 0.3", "7.7 % k", "k / 0.3", "k ** 0.5", "1.5 ** k", "k ** -1"),
    *("int(k / 2)", "int(k * 1.5)", "round(k * 0.5)", "round(k / 4)", "math.floor(k * 0.75)"),
    *("math.ceil(k * 0.25)", "math.trunc(k * 0.5)", "k & 3", "7 & k", "k >> 1", "k << 2"),
)


@pytest.mark.parametrize("expression", ARITHMETIC)
def test_arithmetic_with_floats_is_pythons_and_needs_no_version_for_each_number(expression):
    scope = {"math": math}
    exec(f"def function(x, k):\n    return x * 1, {expression}\n", scope)
    function, counter = scope["function"], CompileCounter()
    compiled = dynamo.optimize(counter, options=dynamo.DynamoOptions(strict=True))(function)
    for number in (4, 5, 7, 3, 10, 6, 9, 2, 11):
        found, wanted = compiled(torch.ones(2), number)[1], function(torch.ones(2), number)[1]
        assert type(found) is type(wanted)
        assert found == wanted, number
    assert counter.frame_count == 2
    for number in (-5, -2, -7, -1):
        try:
            wanted = function(torch.ones(2), number)[1]
        except ZeroDivisionError:
            continue
        assert compiled(torch.ones(2), number)[1] == wanted, number


ROUNDED = (
    *("math.floor(k * 0.6)", "int(k * 0.7)", "round(k * 0.7)", "math.ceil(k / 0.3)"),
    *("int(math.sqrt(k * k + 1))", "int(k * (1 - 0.45))", "math.floor(k ** 0.8)"),
)


@pytest.mark.parametrize("expression", ROUNDED)
def test_a_float_made_a_size_is_a_size_of_its_own(expression):
    scope = {"math": math}
    exec(
        f"def function(x):\n    k = x.shape[0]\n    n = {expression}\n    return x[:n] * n, n\n",
        scope,
    )
    function, counter = scope["function"], CompileCounter()
    compiled = dynamo.optimize(counter, options=dynamo.DynamoOptions(strict=True))(function)
    for size in (5, 4, 7, 10, 6, 9, 15, 11, 50):
        x = torch.randn(size)
        found, wanted = compiled(x), function(x)
        assert found[1] == wanted[1]
        assert torch.equal(found[0], wanted[0])
    assert counter.frame_count <= 3  # where n is longer than x, too
    assert same(compiled(torch.ones(2)), function(torch.ones(2)))  # n is 1


def test_a_float_argument_made_a_size():
    def function(x, share):
        return x[: int(x.shape[0] * 0.5 + share)] * 2, int(share * 10)

    counter = CompileCounter()
    compiled = dynamo.optimize(counter, options=dynamo.DynamoOptions(strict=True))(function)
    for size, share in ((8, 2.5), (9, 3.25), (12, 4.75), (15, 2.125)):
        x = torch.randn(size)
        assert same(compiled(x, share), function(x, share))
    with pytest.raises(ValueError, match="NaN"):
        compiled(torch.randn(8), math.nan)


INDEXED = {
    "row": lambda x, k: x[k] * 2,
    "column": lambda x, k: x[:, k] * 2,
    "row of a rest": lambda x, k: x[k % 8] + 1,
    "column of a row": lambda x, k: x[k][None, : k + 1] * 2,
    "cell": lambda x, k: x[k, k] * 2,
}


@pytest.mark.parametrize("name", INDEXED)
def test_an_index_that_varies_needs_no_version_where_the_sizes_are_fixed(name):
    function, counter = INDEXED[name], CompileCounter()
    compiled = dynamo.optimize(counter, options=dynamo.DynamoOptions(strict=True))(function)
    x = torch.randn(9, 9)
    for number in (4, 5, 7, 3, 6, 2):
        assert same(compiled(x, number), function(x, number))
    assert counter.frame_count == 2
    for number in (0, 1, -1, -3):
        assert same(compiled(x, number), function(x, number))
    if name != "row of a rest":
        with pytest.raises(IndexError):
            compiled(x, 9)
