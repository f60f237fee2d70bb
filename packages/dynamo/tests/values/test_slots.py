"""Attributes in `__slots__`: written, deleted and read in captured code."""

import copy
import weakref

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter, same

STRICT = dynamo.DynamoOptions(strict=True)
X = torch.arange(1.0, 5.0)


class State:
    __slots__ = ("__weakref__", "count", "hidden", "last")

    def __init__(self, count):
        self.count = count
        self.hidden = None


class Derived(State):
    __slots__ = ("extra",)

    def __setattr__(self, name, value):
        super().__setattr__(name, value)


def contents(state):
    return {n: getattr(state, n) for n in ("count", "hidden", "last", "extra") if hasattr(state, n)}


def update(state, x):
    state.count += 1
    state.hidden = x * state.count
    return state.hidden + state.count


def write_twice(state, x):
    state.last = x
    state.last = [state.last, state]
    return state.last[0] + 1


def delete(state, x):
    state.last = x
    del state.last
    missing = hasattr(state, "last")
    try:
        del state.last
    except AttributeError:
        missing = "twice"
    state.hidden = state
    return missing, x + 1


def setattr_and_swap(state, x):
    setattr(state, "last", 3)  # noqa: B010 - the program under test
    state.count, state.hidden = state.hidden, state.count
    object.__setattr__(state, "count", x)
    return getattr(state, "count") + state.last  # noqa: B009 - the program under test


def across_a_break(state, x):
    state.count += 1
    dynamo.graph_break()
    state.hidden = state.count
    return x * state.count


@pytest.mark.parametrize("cls", [State, Derived])
@pytest.mark.parametrize(
    "function", [update, write_twice, delete, setattr_and_swap, across_a_break]
)
def test_slots_are_written(function, cls):
    counter = CompileCounter()
    compiled = dynamo.optimize(counter, fullgraph=function is not across_a_break, options=STRICT)(
        function
    )
    for _ in range(2):
        mine, theirs = cls(3), cls(3)
        assert same(compiled(mine, X), function(theirs, X))
        found, expected = contents(mine), contents(theirs)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            if value is theirs:
                assert found[name] is mine
            elif name != "last" or not isinstance(value, list):
                assert same(found[name], value)


def test_a_written_slot_is_guarded():
    counter = CompileCounter()
    compiled = dynamo.optimize(counter, dynamic=False, options=STRICT)(update)
    state, plain = State(3), State(3)
    for _ in range(4):
        assert same(compiled(state, X), update(plain, X))
    assert counter.frame_count == 4


def test_objects_with_slots_are_copied():
    def function(x):
        state = State(2)
        state.last = [x]
        return copy.copy(state).last[0] + copy.deepcopy(state).count

    compiled = dynamo.optimize("eager", fullgraph=True, options=STRICT)(function)
    assert same(compiled(X), function(X))


def test_weak_references():
    state, gone = State(1), State(2)
    references = [weakref.ref(state), weakref.ref(X)]

    def function(x, lost):
        here = State(4)
        made = weakref.ref(here)
        found = references[0]()
        return x * found.count + references[1]() + made().count, found is state, lost() is None

    compiled = dynamo.optimize("eager", fullgraph=True, options=STRICT)(function)
    lost = weakref.ref(gone)
    assert same(compiled(X, lost), function(X, lost))
    del gone
    assert same(compiled(X, lost), function(X, lost))
