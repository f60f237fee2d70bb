"""Operators that may raise at run time inside the program's `try`: captured, and made again eagerly if they do."""

from __future__ import annotations

import pytest
import torch

import dynamo
from dynamo import DynamoOptions
from dynamo.testing import CompileCounter


def compiled(function):
    counter = CompileCounter()
    return dynamo.optimize(counter, options=DynamoOptions(strict=True))(function), counter


def test_the_handler_runs_when_the_graph_raises():
    def function(v):
        try:
            return 12 // v
        except RuntimeError as error:
            return v - 1 if error.__context__ is None else None

    fast, counter = compiled(function)
    for values in ([3, 4], [0, 4], [6, -5]):
        v = torch.tensor(values)
        assert torch.equal(fast(v), function(v))
    assert counter.frame_count == 1


def test_effects_happen_once():
    log = []

    class Box:
        count = 0

    box = Box()

    def function(v):
        box.count = box.count + 1
        log.append("in")
        try:
            r = 12 // v
        except RuntimeError:
            log.append("caught")
            r = v
        return r + box.count

    fast, _ = compiled(function)
    results = [fast(torch.tensor(v)).tolist() for v in ([3, 4], [0, 4], [3, 4])]
    assert results == [[5, 4], [2, 6], [7, 6]]
    assert log == ["in", "in", "caught", "in"]


def test_a_result_that_nobody_reads_still_raises():
    def function(x):
        try:
            torch.linalg.cholesky(x)
        except RuntimeError:
            return x * 0
        return x + 1

    fast, _ = compiled(function)
    for x in (torch.eye(2), -torch.eye(2)):
        assert torch.equal(fast(x), function(x))


def test_what_was_written_before_is_not_written_twice():
    def function(x, v):
        x.add_(1)
        try:
            r = 12 // v
        except RuntimeError:
            r = v
        return r + x

    fast, _ = compiled(function)
    for values in ([3, 4], [0, 4]):
        x, y = torch.zeros(2), torch.zeros(2)
        assert torch.equal(fast(x, torch.tensor(values)), function(y, torch.tensor(values)))
        assert torch.equal(x, y)


@pytest.mark.parametrize("first", [True, False])
def test_random_numbers_are_drawn_once(first):
    def function(v):
        noise = torch.rand(2) if first else 0
        try:
            r = 12 // v
        except RuntimeError:
            r = v
        return r + noise + torch.rand(2)

    fast, _ = compiled(function)
    for values in ([3, 4], [0, 4]):
        torch.manual_seed(3)
        got = fast(torch.tensor(values))
        torch.manual_seed(3)
        assert torch.equal(got, function(torch.tensor(values)))


def test_what_cannot_raise_needs_no_second_run():
    def function(x):
        x.mul_(2)
        try:
            y = x[1:, ::2] / 3 + x.div(0.5)[1:, ::2] % 2
        except RuntimeError:
            y = x
        return y

    counter = CompileCounter()
    fast = dynamo.optimize(counter, fullgraph=True, options=DynamoOptions(strict=True))(function)
    x = torch.arange(12.0).reshape(3, 4)
    assert torch.equal(fast(x.clone()), function(x.clone()))
    assert counter.frame_count == 1
