"""Functions behind a cache give what eager's cache gives: real tensors, per object, until the cache is cleared."""

import functools

import torch

import dynamo
from dynamo.testing import CompileCounter, same

STRICT = dynamo.DynamoOptions(strict=True)
X = torch.ones(3)
SCALE = [1.0]


def compiled(function, counter="eager"):
    return dynamo.optimize(counter, fullgraph=True, options=STRICT)(function)


@functools.lru_cache
def table(length):
    return torch.arange(length).float() * SCALE[0]


@functools.cache
def waves(length):
    return torch.arange(length).cos(), torch.arange(length).sin()


@functools.cache
def total(length):
    return torch.arange(length).sum().item()


class Rotary(torch.nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base

    @functools.lru_cache  # noqa: B019 - what programs do
    def factors(self, length, *, shift=0.0):
        return torch.full((length,), self.base) + shift

    @functools.lru_cache  # noqa: B019
    def number(self):
        return self.base

    def forward(self, x):
        return x * self.factors(len(x), shift=1.0) + self.number()


def test_the_cache_keeps_real_tensors():
    table.cache_clear()
    result = compiled(lambda x: (x * table(3), table(3)))(X)
    assert type(table(3)) is torch.Tensor
    assert result[1] is table(3)
    assert same(result[0], X * table(3))


def test_tuples_of_tensors():
    def program(x):
        cosine, sine = waves(3)
        return x * cosine + sine

    assert same(compiled(program)(X), program(X))
    assert all(type(part) is torch.Tensor for part in waves(3))


def test_called_itself():
    table.cache_clear()
    assert compiled(table)(2) is table(2)


def test_numbers_computed_by_tensors():
    total.cache_clear()
    assert same(compiled(lambda x: x * total(5))(X), X * 10)


def test_a_tensor_written_by_the_program():
    def program(x):
        table(3).add_(1)
        return x * table(3)

    table.cache_clear()
    expected = [program(X) for _ in range(3)]
    table.cache_clear()
    run = compiled(program)
    assert same([run(X) for _ in range(3)], expected)


def test_another_object_has_its_own_answer():
    counter = CompileCounter()
    run = compiled(lambda x, module: module(x), counter)
    first, second = Rotary(2.0), Rotary(3.0)
    for module in (first, second, first, second):
        assert same(run(X, module), module(X))
    assert counter.frame_count == 2


def test_two_objects_are_the_key():
    class Config:
        def __init__(self, size):
            self.size = size

    @functools.lru_cache
    def both(one, other, *, factor):
        return torch.ones(3) * one.size * other.size * factor

    run = compiled(lambda x, one, other: x * both(one, other, factor=2))
    configs = [Config(2.0), Config(3.0)]
    for one in configs:
        for other in configs:
            assert same(run(X, one, other), X * one.size * other.size * 2)


def test_a_cleared_cache_is_asked_again():
    table.cache_clear()
    run = compiled(lambda x: x * table(3))
    try:
        assert same(run(X), X * table(3))
        SCALE[0] = 7.0
        assert same(run(X), X * torch.arange(3))
        table.cache_clear()
        assert same(run(X), X * torch.arange(3) * 7)
    finally:
        SCALE[0] = 1.0
        table.cache_clear()


def test_gradients_as_the_mode_says_when_it_was_filled():
    weight = torch.nn.Parameter(torch.ones(3))

    @functools.cache
    def scaled(factor):
        return weight * factor

    def program(x):
        with torch.no_grad():
            scaled(2)
        return x * scaled(2) * scaled(3)

    result = compiled(program)(X)
    result.sum().backward()
    assert not scaled(2).requires_grad
    assert scaled(3).requires_grad
    assert same(weight.grad, torch.full((3,), 6.0))


def test_an_argument_that_the_program_makes_is_interpreted():
    @functools.lru_cache
    def doubled(x):
        return x * 2

    assert same(compiled(lambda x: doubled(x) + 1)(X), X * 2 + 1)
    assert doubled.cache_info().currsize == 0
