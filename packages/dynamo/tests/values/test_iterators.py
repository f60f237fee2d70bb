# ruff: noqa: B905, C417 - the captured programs are written as users do
"""Iterators and generators that come from outside, or live across a graph break."""

import itertools

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter, same

STRICT = dynamo.DynamoOptions(strict=True)
X = torch.arange(1.0, 5.0)


def check(function, make, graphs=None, fullgraph=False, calls=2):
    """Compiled equals eager in the result and in what is left in the iterators."""
    counter = CompileCounter()
    compiled = dynamo.optimize(counter, fullgraph=fullgraph, options=STRICT)(function)
    for _ in range(calls):
        mine, theirs = make(), make()
        assert same(compiled(*mine), function(*theirs))
        for one, other in zip(mine, theirs, strict=True):
            if hasattr(one, "__next__"):
                assert same(list(one), list(other))
    if graphs is not None:
        assert counter.frame_count == graphs
    return counter


def consume_two(iterator, x):
    return next(iterator) + x, next(iterator) * x


def consume_all(iterator, x):
    for value in iterator:
        x = x + value
    return x


def consume_with_default(iterator, x):
    first = next(iterator, None)
    rest = list(iterator)
    return first, rest, next(iterator, 7), x + len(rest)


ITERATORS = {
    "list": lambda: iter([X, X + 1, X + 2]),
    "tuple": lambda: iter((X, 2.0, X)),
    "range": lambda: iter(range(2, 7, 2)),
    "reversed": lambda: reversed([X, X * 3, 1]),
    "values": lambda: iter({"a": X, "b": X + 1}.values()),
    "started": lambda: itertools.islice(iter([X, X + 1, X + 2, X + 3]), 0, None) and _second(),
}


def _second():
    iterator = iter([X, X + 1, X + 2, X + 3])
    next(iterator)
    return iterator


@pytest.mark.parametrize("function", [consume_two, consume_all, consume_with_default])
@pytest.mark.parametrize("name", ITERATORS)
def test_an_iterator_from_outside_is_read_ahead(name, function):
    check(function, lambda: (ITERATORS[name](), X), graphs=1, fullgraph=True)


def test_pairs_are_read_ahead():
    def function(iterator, x):
        for i, (a, b) in iterator:
            x = x * a + b * i
            if i == 1:
                break
        return x

    check(function, lambda: (enumerate(zip([X, X + 1, X + 2], (1.0, 2.0, 3.0))), X), fullgraph=True)


def test_more_or_other_elements_are_noticed():
    compiled = dynamo.optimize("eager", options=STRICT)(consume_all)
    for values in ([X], [X, X + 1], [X, 3.0], [X[:2].sum()], [X, X + 1]):
        assert same(compiled(iter(values), X), consume_all(iter(values), X))


def test_the_same_iterator_twice():
    def function(first, second, x):
        return next(first) + x, next(second) * x

    compiled = dynamo.optimize("eager", options=STRICT)(function)
    for same_one in (True, False):
        outcomes = []
        for run in (compiled, function):
            a, b = iter([X, X + 1, X + 2]), iter([X + 5])
            outcomes.append((*run(a, a if same_one else b, X), list(a), list(b)))
        assert same(*outcomes)


def test_a_loop_with_breaks_goes_on_in_order():
    log = []

    def function(items, x):
        for i, item in enumerate(items):
            x = x + item
            log.append(i)
            dynamo.graph_break()
            x = x * 2
        return x

    items = [X, X + 1, X + 2]
    compiled = dynamo.optimize("eager", options=STRICT)(function)
    assert same(compiled(items, X), function(items, X))
    assert log == [0, 1, 2, 0, 1, 2]


def numbers(x, log):
    """A generator with state, handlers and a closure."""
    total = 0

    def scaled(value):
        return value * x + total

    try:
        for i in range(5):
            got = yield scaled(i)
            total += i
            if got is not None:
                log.append(got)
                yield total
    except KeyError as error:
        log.append(str(error))
        yield x * 100
    finally:
        log.append("closed")


def delegating(x, log):
    log.append("start")
    last = yield from numbers(x, log)
    yield x if last is None else last
    log.append("end")


def used(generator, x, log):
    first = next(generator)
    dynamo.graph_break()
    second = next(generator)
    sent = generator.send("sent")
    dynamo.graph_break()
    return first + second, sent, list(generator), log


def thrown_into(generator, x, log):
    first = next(generator)
    dynamo.graph_break()
    caught = generator.throw(KeyError("k"))
    dynamo.graph_break()
    generator.close()
    return first, caught, log


def not_started(generator, x, log):
    dynamo.graph_break()
    return list(generator), log


def closed(generator, x, log):
    next(generator)
    generator.close()
    dynamo.graph_break()
    return list(generator), log


def in_a_loop(generator, x, log):
    for value in generator:
        x = x + value
        dynamo.graph_break()
        log.append("body")
    return x, log


@pytest.mark.parametrize("make", [numbers, delegating])
@pytest.mark.parametrize("use", [used, thrown_into, not_started, closed, in_a_loop])
def test_a_generator_lives_across_breaks(make, use):
    def function(x):
        log = []
        return use(make(x, log), x, log)

    check(function, lambda: (X,))


def test_a_generator_is_returned():
    def function(x):
        log = []
        generator = numbers(x, log)
        return next(generator), generator, (value * 2 for value in [x, x + 1])

    compiled = dynamo.optimize("eager", options=STRICT, fullgraph=True)(function)
    (first, one, two), (expected, other, plain) = compiled(X), function(X)
    assert same((first, list(one), list(two)), (expected, list(other), list(plain)))
    assert type(one) is type(other)


class Sequence:
    def __init__(self, items):
        self.items = items

    def __getitem__(self, index):
        return self.items[index]


def test_other_iterators_live_across_breaks():
    def function(x):
        one, two = iter(Sequence([x, x + 1, x + 2])), map(lambda v: v * 2, [x, x + 1, x + 2])
        three = filter(None, [1, 0, 2])
        a = next(one), next(two), next(three)
        dynamo.graph_break()
        return a, list(one), list(two), list(three)

    check(function, lambda: (X,))


def test_a_generator_that_is_dropped_is_closed():
    def function(x):
        log = []
        value = None
        for value in numbers(x, log):  # noqa: B007 - read after it
            log.append("one")
            break
        log.append("after the loop")
        kept = numbers(x, log)
        next(kept)
        dynamo.graph_break()
        log.append("after the break")
        return value, log

    check(function, lambda: (X,))
