"""Objects of the library that a call copies, refers to, draws from or filters by; and blocks around them."""

import random
import sys
import warnings
import weakref
from pathlib import Path

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter, same

sys.path.append(str(Path(__file__).parent))

import library_programs

STRICT = dynamo.DynamoOptions(strict=True)
X = torch.linspace(-1, 1, 3)


@pytest.mark.parametrize("program", library_programs.PROGRAMS)
def test_one_graph_gives_what_eager_gives(program):
    compiled = dynamo.optimize("eager", fullgraph=True, options=STRICT)(program)
    for _ in range(3):
        assert same(compiled(X), program(X))


def forked(x):
    first = torch.rand(2)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        inside = torch.rand(2)
    return x + inside.sum(), first, inside, torch.rand(2)


def forked_around_a_break(x):
    with torch.random.fork_rng(devices=[]):
        first = torch.rand(2)
        dynamo.graph_break()
        second = torch.rand(2)
    return x * 2, first, second, torch.rand(2)


def forked_and_left_by_an_exception(x):
    try:
        with torch.random.fork_rng():
            torch.rand(7)
            raise KeyError("inside")  # noqa: TRY301 - the block is left so
    except KeyError:
        return x + torch.rand(3)


@pytest.mark.parametrize(
    ("function", "fullgraph"),
    [(forked, True), (forked_around_a_break, False), (forked_and_left_by_an_exception, True)],
)
def test_generators_go_on_behind_a_fork(function, fullgraph):
    compiled = dynamo.optimize("eager", fullgraph=fullgraph, options=STRICT)(function)
    for seed in range(3):
        torch.manual_seed(seed)
        expected = (function(X), torch.rand(2))
        torch.manual_seed(seed)
        assert same((compiled(X), torch.rand(2)), expected)


def filtered(x):
    warnings.warn("before", stacklevel=1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="not")
        warnings.warn("not this", stacklevel=1)
        warnings.warn("but this", UserWarning, stacklevel=1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.warn("never", stacklevel=1)
        x = x + 1
    warnings.warn("not any more ignored", stacklevel=1)
    return x


def filtered_around_a_break(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("one", stacklevel=1)
        dynamo.graph_break()
        warnings.warn("two", stacklevel=1)
    warnings.warn("three", stacklevel=1)
    return x + 1


def recorded(x):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warnings.warn("kept", stacklevel=1)
        x = x + 1
    return x, len(seen)


@pytest.mark.parametrize("function", [filtered, filtered_around_a_break, recorded])
def test_warnings_pass_the_filters_of_their_block(function):
    compiled = dynamo.optimize("eager", options=STRICT)(function)
    for _ in range(2):
        outcomes = []
        for run in (function, compiled):
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                result = run(X)
            outcomes.append((result, [str(one.message) for one in seen]))
        assert same(outcomes[0], outcomes[1])


def test_a_filter_that_raises_is_asked_where_the_warning_is():
    def raises(x):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                warnings.warn("w", stacklevel=1)
            except UserWarning:
                return x - 1
        return x + 1

    assert same(dynamo.optimize("eager", options=STRICT)(raises)(X), X - 1)


def test_what_leaves_the_call_is_whole():
    def program(x):
        rng = random.Random(3)
        rng.random()
        made = x + 1
        return rng, made, weakref.ref(made), weakref.proxy(made)

    rng, made, reference, proxy = dynamo.optimize("eager", fullgraph=True)(program)(X)
    assert rng.getstate() == program(X)[0].getstate()
    assert reference() is made
    assert same(proxy + 0, made)


def test_a_reference_to_what_is_gone_gives_none():
    def program(x):
        made = x + 1
        reference = weakref.ref(made)
        del made
        return reference() is None, x * 2

    assert same(dynamo.optimize("eager", options=STRICT)(program)(X), (True, X * 2))


def test_a_path_is_guarded_by_its_value():
    counter = CompileCounter()
    compiled = dynamo.optimize(counter, options=STRICT)(lambda path, x: x * len(path.parts))
    assert same(compiled(Path("a/b"), X), X * 2)
    assert same(compiled(Path("a") / "b", X), X * 2)
    assert counter.frame_count == 1
    assert same(compiled(Path("a/b/c"), X), X * 3)


def test_drawing_from_a_generator_of_the_program_breaks():
    rng = random.Random(0)
    twin = random.Random(0)
    compiled = dynamo.optimize("eager", options=STRICT)(lambda x: x * rng.random())
    for _ in range(3):
        assert same(compiled(X), X * twin.random())
