"""Context variables, `singledispatch` and locks of the program."""

from __future__ import annotations

import contextvars
import functools
import threading

import pytest
import torch

import dynamo
from dynamo import DynamoOptions
from dynamo.testing import CompileCounter

variable = contextvars.ContextVar("variable", default=3)
bare: contextvars.ContextVar[int] = contextvars.ContextVar("bare")


def compiled(function, *, fullgraph=True):
    counter = CompileCounter()
    options = DynamoOptions(strict=True)
    return dynamo.optimize(counter, fullgraph=fullgraph, options=options)(function), counter


def test_the_default_of_a_context_variable():
    fast, counter = compiled(lambda x: x + variable.get())
    x = torch.zeros(2)
    assert fast(x).tolist() == fast(x).tolist() == [3, 3]
    token = variable.set(5)
    try:
        assert fast(x).tolist() == [5, 5]
    finally:
        variable.reset(token)
    assert fast(x).tolist() == [3, 3]
    assert counter.frame_count == 2


def test_an_unset_context_variable_raises():
    fast, _ = compiled(lambda x: x + bare.get())
    with pytest.raises(LookupError):
        fast(torch.zeros(2))


def test_single_dispatch_sees_what_is_registered_later():
    @functools.singledispatch
    def amount(value):
        return 1

    @amount.register
    def _(value: int):
        return 2

    fast, counter = compiled(lambda x: x * amount(3) + amount("text") + amount(x))
    x = torch.ones(2)
    assert fast(x).tolist() == fast(x).tolist() == [4, 4]
    assert counter.frame_count == 1
    amount.register(str, lambda value: 10)
    assert fast(x).tolist() == [13, 13]


@pytest.mark.parametrize("make", [threading.Lock, threading.RLock])
def test_a_lock_around_reading(make):
    lock, settings = make(), {"scale": 2}

    def function(x):
        with lock:
            scale = settings["scale"]
        return x * scale

    fast, counter = compiled(function)
    assert fast(torch.ones(2)).tolist() == fast(torch.ones(2)).tolist() == [2, 2]
    assert counter.frame_count == 1


def test_a_lock_around_a_change_is_taken():
    lock, seen = threading.Lock(), []

    class Watched(dict):
        def __setitem__(self, key, value):
            seen.append(lock.locked())
            super().__setitem__(key, value)

    box = Watched()

    def function(x):
        y = x * 2
        with lock:
            box["calls"] = 1
        return y + 1

    fast, _ = compiled(function, fullgraph=False)
    assert fast(torch.ones(2)).tolist() == [3, 3]
    assert seen == [True]
    assert not lock.locked()


def test_a_guard_of_torchs_dispatch_is_never_made_while_capturing():
    """Alive while fakes are about it would send them to real kernels; kept by a frame it would outlive capture."""
    make = torch._C._DisableTorchDispatch

    def function(x):
        guard = make()
        try:
            y = x + 1
        finally:
            del guard
        if y.sum() > 100:
            raise ValueError("large")
        return y * 2

    before = str(torch._C._dispatch_tls_local_exclude_set())
    fast, _ = compiled(function, fullgraph=False)
    assert fast(torch.zeros(2)).tolist() == [2, 2]
    assert str(torch._C._dispatch_tls_local_exclude_set()) == before
    with pytest.raises(ValueError, match="large"):
        fast(torch.full((2,), 100.0))
    assert str(torch._C._dispatch_tls_local_exclude_set()) == before


def test_a_function_of_torch_that_is_given_code_or_options_is_looked_into():
    functional = torch.nn.functional
    distance = torch.nn.PairwiseDistance()

    def loss(a, b, c):
        by_module = functional.triplet_margin_with_distance_loss(
            a, b, c, distance_function=distance
        )
        return by_module + functional.triplet_margin_with_distance_loss(
            a, b, c, distance_function=lambda x, y: (x - y).abs().sum(-1)
        )

    fast, counter = compiled(loss)
    inputs = [torch.randn(3, 4) for _ in range(3)]
    torch.testing.assert_close(fast(*inputs), loss(*inputs))
    assert counter.frame_count == 1
