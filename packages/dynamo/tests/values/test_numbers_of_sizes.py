"""Python's functions of a size that varies: text of it and of conditions on it, `divmod`, `operator.index`."""

import operator

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter


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
