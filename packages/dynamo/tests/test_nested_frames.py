"""Frames that compiled code calls but did not inline are captured too, and only those."""

import functools
import sys
import threading

import pytest
import torch

import dynamo
from dynamo._native import HAVE_C, is_hooked
from dynamo.testing import CompileCounter, same

STRICT = dynamo.DynamoOptions(strict=True)
pytestmark = pytest.mark.skipif(not HAVE_C, reason="frames are hooked by the C extension")


NO_NAMES = {}


def compiled_with(function):
    counter = CompileCounter()
    return counter, dynamo.optimize(counter, options=STRICT)(function)


def inner(x, factor=2.0, *, shift=1.0):
    return (x * factor + shift).relu()


@dynamo.disable(recursive=False)
def not_inlined(x):
    return inner(x)


@dynamo.disable
def wholly_disabled(x):
    return inner(x)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: not_inlined(x) + 1,
        lambda x: not_inlined(*[x]) + 1,
        lambda x: not_inlined(x=x) + 1,
        lambda x: not_inlined(x, **NO_NAMES) + 1,
        lambda x: functools.partial(not_inlined, x)() + 1,
    ],
)
def test_what_an_uninlined_call_calls_is_captured(call):
    counter, compiled = compiled_with(call)
    x = torch.randn(3)
    for _ in range(3):
        assert same(compiled(x), call(x))
    assert counter.frame_count == 2  # inner, and the addition
    assert not is_hooked()


def test_disabled_with_all_that_it_calls():
    def function(x):
        return wholly_disabled(x) + 1

    counter, compiled = compiled_with(function)
    x = torch.randn(3)
    for _ in range(2):
        assert same(compiled(x), function(x))
    assert counter.frame_count == 1


def test_what_torch_disabled_stays_so():
    @torch._dynamo.disable
    def by_torch(x):
        return inner(x)

    def function(x):
        return by_torch(x) + 1

    counter, compiled = compiled_with(function)
    x = torch.randn(3)
    for _ in range(2):
        assert same(compiled(x), function(x))
    assert counter.frame_count == 1


def test_exceptions_pass_and_the_hook_goes_off():
    @dynamo.disable(recursive=False)
    def failing(x):
        inner(x)
        raise KeyError("mine")

    def function(x):
        try:
            failing(x)
        except KeyError as error:
            return x + 1, error.args
        return x

    _, compiled = compiled_with(function)
    x = torch.randn(3)
    for _ in range(2):
        assert same(compiled(x), function(x))
        assert not is_hooked()

    _, raising = compiled_with(lambda x: failing(x) + 1)
    for _ in range(2):
        with pytest.raises(KeyError, match="mine"):
            raising(x)
        assert not is_hooked()


def test_generators_and_the_callers_frame():
    @dynamo.disable(recursive=False)
    def walk(x):
        return sum(part.sum() for part in parts(x)), sys._getframe(1).f_code.co_name is not None

    def parts(x):
        for row in x:
            yield row * 2

    def function(x):
        return walk(x)[0] + 1

    _, compiled = compiled_with(function)
    x = torch.randn(3, 2)
    for _ in range(2):
        assert same(compiled(x), function(x))


def test_two_compilers_do_not_share_entries():
    first, compiled_first = compiled_with(lambda x: not_inlined(x) + 1)
    second, compiled_second = compiled_with(lambda x: not_inlined(x) + 1)
    x = torch.randn(3)
    for _ in range(3):
        compiled_first(x)
        compiled_second(x)
    assert (first.frame_count, second.frame_count) == (2, 2)


@pytest.mark.parametrize("ours_first", [True, False])
def test_with_torchs_own_compiler_in_one_process(ours_first):
    def function(x):
        return not_inlined(x) + inner(x)

    counter, ours = compiled_with(function)
    theirs = torch.compile(function, backend="eager")
    x = torch.randn(5)
    expected = function(x)
    for _ in range(3):
        for compiled in (ours, theirs) if ours_first else (theirs, ours):
            assert same(compiled(x), expected)

    def mixed(x):
        return theirs_inside(x) + 1

    theirs_inside = torch._dynamo.disable(torch.compile(function, backend="eager"))
    _, around = compiled_with(mixed)
    for _ in range(2):
        assert same(around(x), mixed(x))
        assert same(theirs(x), expected)
    assert counter.frame_count >= 2
    assert not is_hooked()


def test_threads():
    counter, compiled = compiled_with(lambda x: not_inlined(x) + 1)
    x = torch.randn(3)
    failures = []

    def work():
        for _ in range(20):
            failures.extend(["wrong"] if not same(compiled(x), inner(x) + 1) else [])

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert counter.frame_count == 2
