"""Kinds of programs that whole models showed: known numbers, wrapped methods, layouts that change."""

import pytest
import torch

from dynamo import DynamoOptions, optimize
from dynamo.testing import CompileCounter


def compiled(function, **arguments):
    counter = CompileCounter()
    return optimize(counter, options=DynamoOptions(strict=True), **arguments)(function), counter


def divided_size(x):
    rows = torch.div(x.size(0), 2, rounding_mode="trunc")
    return x.view(rows, -1) * torch.sqrt(torch.tensor(x.size(-1)) * 3)


def number_as_bound(x):
    span = torch.tensor(min(x.size(0), 3))
    x = x[span - 2 : span]
    return torch.clamp(x + span, 0, span * 2 - 1), span.item(), bool(span > 2), int(span)


def number_beside_writes(x):
    span = torch.tensor(2)
    x = x.clone()
    x += 1
    return x[:span]


def wrapped_method(x):
    return x**2 + 2**x


def dtype_by_type(x):
    return x + torch.tensor([1], dtype=int) + torch.zeros(1, dtype=float)


@pytest.mark.parametrize(
    "program", [divided_size, number_as_bound, number_beside_writes, wrapped_method, dtype_by_type]
)
def test_one_graph_and_eagers_result(program):
    x = torch.randn(4, 6)
    function, counter = compiled(program, fullgraph=True)
    found, wanted = function(x), program(x)
    torch.testing.assert_close(found, wanted)
    assert counter.frame_count == 1


def written_number(x):
    span = torch.tensor(2)
    window = span.view(1)
    window += 1
    return x[:span]


def test_a_number_written_through_a_view_is_not_known():
    x = torch.randn(4)
    function, _ = compiled(written_number)
    assert function(x).shape == (3,)


def test_an_input_that_is_no_leaf_may_be_written():
    def add_in_place(x):
        x += 1
        return x * 2

    weight = torch.ones(3, requires_grad=True)
    function, counter = compiled(add_in_place, fullgraph=True)
    function(weight * 3).sum().backward()
    assert counter.frame_count == 1
    assert torch.equal(weight.grad, torch.full((3,), 6.0))


def test_symbolic_sizes_hold_the_strides_they_were_captured_with():
    function, counter = compiled(lambda x: x * 2, dynamic=True)
    function(torch.randn(4, 6))
    function(torch.randn(5, 7))
    assert counter.frame_count == 1
    function(torch.randn(5, 8)[:, :6])  # the rows are further apart than their length
    assert counter.frame_count == 2
    function(torch.randn(7, 8).t())
    assert counter.frame_count == 3


def test_an_index_without_tensors_may_stand_in_a_try_block():
    def guarded(x):
        try:
            return x[:, 0] + 1
        except IndexError:
            return x

    function, counter = compiled(guarded, fullgraph=True)
    function(torch.randn(3, 4))
    assert counter.frame_count == 1
