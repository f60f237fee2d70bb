# ruff: noqa: B009, BLE001, FURB192, PLE0643, PLW0108, PLC3002 - the captured programs are written as users do
"""Faults of capture itself are reported as such, whatever the captured program would make of the exception."""

import logging

import pytest
import torch

import dynamo
from dynamo import DynamoOptions
from dynamo.errors import InternalError
from dynamo.graph.recorder import Recorder
from dynamo.values import attributes, rules, subscripts, wrap

X = torch.arange(1.0, 4.0)


class Thing:
    size = 3

    def __init__(self):
        self.items = {"a": 1}


THING = Thing()


def attribute_error(*_args, **_kwargs):
    return None.absent


def key_error(*_args, **_kwargs):
    return {}["absent"]


def name_error(*_args, **_kwargs):
    return no_such_name  # noqa: F821


def misfit(*_args, **_kwargs):
    return rules.type_of()


# Not rewritten by pytest, as our own asserts are not.
_SCOPE = {}
exec("def failed_assertion(*args, **kwargs):\n    assert args is None, 'cannot be'\n", _SCOPE)
failed_assertion = _SCOPE["failed_assertion"]


FAULTS = {
    "attribute": attribute_error,
    "key": key_error,
    "name": name_error,
    "misfit": misfit,
    "assertion": failed_assertion,
}


def asks(x):
    return x * 2 if hasattr(THING, "size") else x


def asks_with_default(x):
    return x * getattr(THING, "size", 5)


def catches_all(x):
    try:
        count = len(THING.items)
    except Exception:
        count = 100
    return x * count


def catches_one(x):
    try:
        return x + sorted([3, 1, 2])[0]
    except (AttributeError, KeyError, NameError, TypeError, AssertionError):
        return x


def in_a_generator(x):
    def numbers():
        try:
            yield max(1, 2)
        except BaseException:
            yield 7

    return x + sum(numbers())


PLACES = {
    "attributes": (attributes, "load", asks),
    "attributes, with a default": (attributes, "load", asks_with_default),
    "length": (subscripts, "length", catches_all),
    "wrapping": (wrap, "_container", catches_all),
    "call": (rules.RULES, max, in_a_generator),
    "sorting": (subscripts, "subscript", catches_one),
    "recorder": (Recorder, "intercept", catches_one),
}


def inject(monkeypatch, place, fault):
    """Put the fault where capture's own code would have it: in a file of this package."""
    owner, name, _ = PLACES[place]
    code = fault.__code__.replace(co_filename=subscripts.__file__)
    broken = type(fault)(code, fault.__globals__, fault.__name__)
    if isinstance(owner, dict):
        monkeypatch.setitem(owner, name, broken)
    elif owner is wrap:
        monkeypatch.setitem(wrap._WRAPPERS, dict, broken)
    else:
        monkeypatch.setattr(owner, name, broken)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("place", PLACES)
def test_a_fault_is_no_exception_of_the_program(monkeypatch, caplog, place, fault):
    program = PLACES[place][2]
    expected = program(X)
    inject(monkeypatch, place, FAULTS[fault])
    with pytest.raises(dynamo.InternalError, match=r"subscripts\.py:\d+"):
        dynamo.optimize("eager", options=dynamo.DynamoOptions(strict=True))(program)(X)
    compiled = dynamo.optimize("eager")(program)
    with caplog.at_level(logging.WARNING, logger="dynamo"):
        assert torch.equal(compiled(X), expected)
        assert torch.equal(compiled(X), expected)
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 1
    assert "fault of the compiler" in warnings[0]
    assert "subscripts.py:" in warnings[0]
    assert "test_own_faults.py" in warnings[0]


def test_an_exception_that_only_capture_raises_is_told(monkeypatch, caplog):
    """Of a kind that the program's operations raise, too: seen when the call, run eagerly, does not raise it."""

    def wrong(machine, args, kwargs):
        raise ValueError("emulated where eager does not raise")

    monkeypatch.setitem(rules.RULES, max, wrong)

    def program(x):
        return x * max(1, 2)

    with pytest.raises(dynamo.InternalError, match="running it does not"):
        dynamo.optimize("eager", options=dynamo.DynamoOptions(strict=True))(program)(X)
    compiled = dynamo.optimize("eager")(program)
    with caplog.at_level(logging.WARNING, logger="dynamo"):
        for _ in range(3):
            assert torch.equal(compiled(X), program(X))
    assert len(caplog.records) == 1


def raising(x, kind):
    """What the program's own operations raise, caught by it."""
    found = []
    for attempt in (
        lambda: THING.absent,
        lambda: getattr(THING, "absent"),
        lambda: THING.items["absent"],
        lambda: [1, 2][5],
        lambda: {}[kind],
        lambda: absent_name,  # noqa: F821
        lambda: len(5),
        lambda: len(),
        lambda: max(),
        lambda: int("no"),
        lambda: 1 // 0,
        lambda: "a" + 1,
        lambda: sorted([1, "a"]),
        lambda: {[]: 1},
        lambda: (lambda a: a)(),
        lambda: next(iter([])),
        lambda: setattr(5, "a", 1),
        lambda: object().a,
        lambda: isinstance(1, 2),
        lambda: [].pop(),
        lambda: {}.popitem(),
        lambda: "".index("a"),
        lambda: torch.Size([1])[3],
        lambda: THING.items.pop("absent"),
        lambda: x.absent,
        lambda: __import__("absent_module"),
        lambda: dict([1]),
        lambda: zip([1], [1, 2], strict=True).__next__().absent,
        lambda: (_ for _ in ()).throw(KeyError("own")),
    ):
        try:
            attempt()
        except Exception as error:
            found.append(type(error).__name__)
    assert found
    return x + len(found), found


def test_exceptions_of_the_program_stay_its_own():
    compiled = dynamo.optimize("eager", options=dynamo.DynamoOptions(strict=True))(raising)
    (out, found), (expected, kinds) = compiled(X, "k"), raising(X, "k")
    assert found == kinds
    assert torch.equal(out, expected)


@pytest.mark.parametrize("times", [1, 2])
def test_what_compiling_changes_is_captured_again(times):
    known, changes = [1], [None] * times

    def backend(module, _examples):
        if changes:
            known.append(changes.pop() or 1)
        return module.forward

    def function(x):
        return x * len(known)

    compiled = dynamo.optimize(backend, options=DynamoOptions(strict=True))(function)
    x = torch.ones(2)
    if times == 2:  # it would go on for ever
        with pytest.raises(InternalError, match="don't hold for the call that made them"):
            compiled(x)
    assert torch.equal(compiled(x), function(x))
