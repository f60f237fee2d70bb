"""`threading.local`: each thread has attributes of its own, read, written and guarded as that thread's."""

from __future__ import annotations

import threading

import pytest
import torch

import dynamo
from dynamo import DynamoOptions
from dynamo.testing import CompileCounter


class Settings(threading.local):
    scale = 2

    def __init__(self) -> None:
        self.calls = 0

    def bump(self) -> int:
        self.calls += 1
        return self.calls


settings = Settings()
plain = threading.local()


@pytest.fixture(autouse=True)
def fresh():
    plain.__dict__.clear()
    settings.__dict__.clear()
    settings.calls = 0


def compiled(function):
    counter = CompileCounter()
    options = DynamoOptions(strict=True)
    return dynamo.optimize(counter, fullgraph=True, options=options)(function), counter


def elsewhere(function, *args):
    """What another thread gets of a call."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function(*args)))
    thread.start()
    thread.join()
    return found[0]


def test_what_is_there_and_what_is_not():
    fast, counter = compiled(lambda x: x + getattr(plain, "bias", 1) + hasattr(plain, "more"))
    x = torch.zeros(2)
    assert fast(x).tolist() == [1, 1]
    plain.bias = 5
    assert fast(x).tolist() == [5, 5]
    plain.more = None
    assert fast(x).tolist() == [6, 6]
    assert elsewhere(fast, x).tolist() == [1, 1]
    del plain.bias
    assert fast(x).tolist() == [2, 2]
    assert counter.frame_count <= 4


def test_writes_are_the_threads_that_calls():
    def program(x):
        plain.last = x * 2
        plain.count = getattr(plain, "count", 0) + 1
        if plain.count > 1:
            del plain.count
        return plain.last + settings.bump()

    fast, _ = compiled(program)
    x = torch.ones(2)
    assert fast(x).tolist() == [3, 3]
    assert (plain.last.tolist(), plain.count, settings.calls) == ([2, 2], 1, 1)
    assert fast(x).tolist() == [4, 4]
    assert (hasattr(plain, "count"), settings.calls) == (False, 2)
    assert elsewhere(fast, x).tolist() == [3, 3]
    assert settings.calls == 2


def test_a_class_attribute_until_a_thread_has_its_own():
    fast, _ = compiled(lambda x: x * settings.scale)
    x = torch.ones(2)
    assert fast(x).tolist() == [2, 2]
    settings.scale = 7
    assert fast(x).tolist() == [7, 7]
    assert elsewhere(fast, x).tolist() == [2, 2]
