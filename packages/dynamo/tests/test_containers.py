"""Containers from outside are guarded by what the program reads of them; what it adds goes to the live object.

`nox -s random_programs` runs more of the random programs.
"""

import collections
import sys
import types
from pathlib import Path

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter, same

sys.path.append(str(Path(__file__).parent))

from container_programs import difference

STRICT = dynamo.DynamoOptions(strict=True)
CHUNK = 25
GLOBAL_LOG = []


@pytest.mark.parametrize("first", range(0, 150, CHUNK))
def test_programs_that_only_add_take_two_compiles(first):
    for seed in range(first, first + CHUNK):
        text = difference(seed, grow=True)
        assert not text, text


@pytest.mark.parametrize("first", range(0, 150, CHUNK))
def test_programs_do_the_same(first):
    for seed in range(first, first + CHUNK):
        text = difference(seed, grow=False)
        assert not text, text


class Log(list):
    """A list of the program's own."""

    def __init__(self, *items):
        super().__init__(items)
        self.count = 0

    def note(self, value):
        self.count += 1
        self.append(value)


class Recorder(torch.nn.Module):
    """Keeps what it has put out."""

    def __init__(self):
        super().__init__()
        self.outputs = []
        self.steps = 0

    def forward(self, x):
        self.steps += 1
        self.outputs.append(x * self.steps)
        return self.outputs[-1] + 1


def appends(x, log):
    log.append(x + 1)
    return x * 2


def notes(x, log):
    log.note(x + 1)
    return x * log.count


def looks_back(x, log):
    if log:
        x = x + log[-1]
    log.append(x)
    return x


def a_window(x, log):
    log.append(x)
    if len(log) > 3:
        log.pop(0)
    return x + len(log)


def counts(x, log):
    log["calls"] = log.get("calls", 0) + 1
    return x + log["calls"]


def groups(x, log):
    log["all"].append(x)
    return x + 1


def adds(x, log):
    log.add(x.dim())
    log.add("seen")
    return x + 1


def throws_away(x, log):
    log.clear()
    log.append(x)
    return x + 1


def to_global(x, log):
    del log
    GLOBAL_LOG.append(x + 1)
    return x * len(GLOBAL_LOG)


def a_number_in_a_list(x, log):
    log[0] += 1
    return x * log[0]


@pytest.mark.parametrize(
    ("function", "make", "most"),
    [
        (appends, list, 1),
        (appends, lambda: collections.deque(maxlen=4), 1),
        (appends, lambda: collections.deque(range(9)), 1),
        (notes, Log, 1),
        (looks_back, list, 2),
        (a_window, list, 2),
        (a_window, lambda: Log(1, 2), 2),
        (counts, dict, 2),
        (counts, collections.OrderedDict, 2),
        (groups, lambda: collections.defaultdict(list), 2),
        (adds, set, 1),
        (throws_away, list, 1),
        (to_global, list, 1),
        (a_number_in_a_list, lambda: [0], 1),
    ],
)
def test_what_each_call_adds_is_compiled_once(function, make, most):
    counter = CompileCounter()
    compiled = dynamo.optimize(counter, fullgraph=True, options=STRICT)(function)
    mine, theirs = make(), make()
    for call in range(12):
        GLOBAL_LOG.clear()
        GLOBAL_LOG.extend(range(call))
        expected = function(torch.ones(3) * call, theirs)
        del GLOBAL_LOG[call:]
        assert same(compiled(torch.ones(3) * call, mine), expected)
        assert same(mine, theirs)
        assert getattr(mine, "__dict__", None) == getattr(theirs, "__dict__", None)
    assert counter.frame_count <= most


def test_a_module_keeps_its_outputs():
    mine, theirs = Recorder(), Recorder()
    counter = CompileCounter()
    compiled = dynamo.optimize(counter, fullgraph=True, options=STRICT)(mine)
    for call in range(12):
        assert same(compiled(torch.ones(3) * call), theirs(torch.ones(3) * call))
    assert same(mine.outputs, theirs.outputs)
    assert mine.steps == theirs.steps == 12
    assert counter.frame_count == 1


def test_what_others_append_in_between_stays():
    log = []
    compiled = dynamo.optimize("eager", fullgraph=True)(appends)
    for call in range(3):
        compiled(torch.ones(1), log)
        log.append(f"between {call}")
    assert [type(one) for one in log] == [torch.Tensor, str] * 3


def one_added_other_read(x, one, other):
    one.append(x)
    return x + len(other)


def one_set_other_read(x, one, other):
    one.value = 5
    return x + other.value


def one_stored_other_read(x, one, other):
    one["value"] = 5
    return x + other["value"]


class Slotted:
    """An object without a dict."""

    __slots__ = ("value",)

    def __init__(self):
        self.value = 1


def _object():
    return types.SimpleNamespace(value=1)


@pytest.mark.parametrize(
    ("function", "make"),
    [
        (one_added_other_read, list),
        (one_added_other_read, collections.deque),
        (one_set_other_read, _object),
        (one_set_other_read, Slotted),
        (one_stored_other_read, lambda: {"value": 1}),
    ],
)
def test_two_names_that_become_one_object(function, make):
    """Compiled for two objects, called with one: a write by one name is seen by the other."""
    compiled = dynamo.optimize("eager", fullgraph=True, options=STRICT)(function)
    x = torch.zeros(2)
    assert same(compiled(x, make(), make()), function(x, make(), make()))
    mine, theirs = make(), make()
    assert same(compiled(x, mine, mine), function(x, theirs, theirs))
