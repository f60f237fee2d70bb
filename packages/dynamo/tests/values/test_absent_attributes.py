"""An attribute that is not there is guarded as one that is: what comes later is seen by the next call."""

import functools
import re
import struct
import types

import pytest
import torch

import dynamo

STRICT = dynamo.DynamoOptions(strict=True)
X = torch.ones(1)


class Plain:
    pass


class Slotted:
    __slots__ = ("later",)


class Asking:
    def __getattr__(self, name):
        raise AttributeError(name)


class Meta(type):
    pass


class AskingMeta(type):
    def __getattr__(cls, name):
        if name == "answered":
            return 7
        raise AttributeError(name)


def a_function():
    def function():
        pass

    return function


OWNERS = {
    "function": a_function,
    "wrapped function": lambda: functools.wraps(a_function())(a_function()),
    "partial": lambda: functools.partial(print),
    "module of Python": lambda: types.ModuleType("some"),
    "class": lambda: type("Some", (), {}),
    "class of a metaclass": lambda: Meta("Some", (), {}),
    "class of a metaclass that is asked": lambda: AskingMeta("Some", (), {}),
    "object": Plain,
    "slot": Slotted,
    "object that is asked": Asking,
    "layer": lambda: torch.nn.Linear(2, 2),
    "tensor": lambda: torch.ones(1),
    "parameter": lambda: torch.nn.Parameter(torch.ones(1)),
    "error": lambda: ValueError("a"),
    "dictionary": type("Some", (dict,), {}),
}


@pytest.mark.parametrize("make", OWNERS.values(), ids=OWNERS)
def test_what_comes_later_is_seen(make):
    owner = make()

    def function(x):
        return x * getattr(owner, "later", 1) + hasattr(owner, "later") * 100

    fast = dynamo.optimize("eager", fullgraph=True, options=STRICT)(function)
    assert fast(X).item() == 1
    owner.later = 5
    assert fast(X).item() == 105
    del owner.later
    assert fast(X).item() == 1


@pytest.mark.parametrize("make", [lambda: Meta("Some", (), {}), Plain, Asking])
def test_what_its_class_gets_later_is_seen(make):
    owner = make()
    fast = dynamo.optimize("eager", fullgraph=True, options=STRICT)(
        lambda x: x * getattr(owner, "common", 1)
    )
    assert fast(X).item() == 1
    type(owner).common = 5
    try:
        assert fast(X).item() == 5
    finally:
        del type(owner).common
    assert fast(X).item() == 1


def test_a_metaclass_is_asked():
    owner = AskingMeta("Some", (), {})
    fast = dynamo.optimize("eager", fullgraph=True, options=STRICT)(lambda x: x * owner.answered)
    assert fast(X).item() == 7
    owner.answered = 8
    assert fast(X).item() == 8


def test_a_function_counts_its_calls():
    def function(x):
        function.calls = getattr(function, "calls", 0) + 1
        return x * function.calls

    fast = dynamo.optimize("eager", options=STRICT)(function)
    assert [fast(X).item() for _ in range(4)] == [1, 2, 3, 4]


def test_a_cached_property_is_in_the_dictionary_of_its_module():
    class Cached(torch.nn.Module):
        @functools.cached_property
        def table(self):
            return torch.arange(3.0)

        def forward(self, x):
            before = "table" in self.__dict__
            return x + self.table, before, "table" in self.__dict__

    module = Cached()
    fast = dynamo.optimize("eager", fullgraph=True, options=STRICT)(module)
    assert fast(X)[1:] == (False, True)
    assert fast(X)[1:] == (True, True)
    del module.table
    assert fast(X)[1:] == (False, True)


SPECIAL = {
    "__bool__": (lambda owner, x: x * 2 if owner else x, True, False),
    "__contains__": (lambda owner, x: x * (3 in owner), True, False),
    "__eq__": (lambda owner, x: x * (owner == 3), True, False),
    "__add__": (lambda owner, x: x * (owner + 1), 2, 3),
    "__radd__": (lambda owner, x: x * (1 + owner), 2, 3),
    "__int__": (lambda owner, x: x * int(owner), 2, 3),
    "__len__": (lambda owner, x: x * len(owner), 2, 3),
    "__hash__": (lambda owner, x: x * hash(owner), 2, 3),
    "__getitem__": (lambda owner, x: x * owner[0], 2, 3),
    "__format__": (lambda owner, x: x * len(f"{owner}"), "a", "abc"),
    "__repr__": (lambda owner, x: x * len(repr(owner)), "a", "abc"),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_a_special_method_that_is_replaced_is_seen(name):
    program, before, after = SPECIAL[name]
    kind = type("Some", (), {name: lambda self, *args: before})
    owner = kind()
    fast = dynamo.optimize("eager", fullgraph=True, options=STRICT)(lambda x: program(owner, x))
    first = fast(X).item()
    setattr(kind, name, lambda self, *args: after)
    assert first != fast(X).item() == program(owner, X).item()


def test_an_object_of_c_is_another_when_it_is_replaced():
    held = types.SimpleNamespace(pattern=re.compile("a"), packer=struct.Struct("<i"))

    def function(x):
        return x * bool(held.pattern.match("ab")) + held.packer.size

    fast = dynamo.optimize("eager", fullgraph=True, options=STRICT)(function)
    assert fast(X).item() == 5
    held.pattern = re.compile("b")
    assert fast(X).item() == 4
    held.packer = struct.Struct("<q")
    assert fast(X).item() == 8


def test_where_a_tensor_lies_in_its_storage_is_seen_when_asked():
    fast = dynamo.optimize("eager", fullgraph=True, options=STRICT)(
        lambda x: (x + 1, x.storage_offset(), x[1:].storage_offset())
    )
    whole = torch.arange(6.0)
    assert fast(whole[:3])[1:] == (0, 1)
    assert fast(whole[3:])[1:] == (3, 4)


SHOWN = {
    "item": lambda x, shown: x * shown["a"],
    "get": lambda x, shown: x * shown.get("b", 1),
    "contained": lambda x, shown: x * ("b" in shown),
    "length": lambda x, shown: x * len(shown),
    "order": lambda x, shown: x * next(iter(shown)).count("a"),
    "values": lambda x, shown: x * sum(shown.values()),
    "returned": lambda x, shown: (x + 1, dict(shown)),
}


@pytest.mark.parametrize("name", SHOWN)
def test_a_dictionary_that_is_shown_read_only_is_seen_to_change(name):
    behind = {"a": 2}
    shown = types.MappingProxyType(behind)
    fast = dynamo.optimize("eager", fullgraph=True, options=STRICT)(lambda x: SHOWN[name](x, shown))
    changes = [lambda: None, lambda: behind.update(b=3), lambda: behind.update(a=2.0)]
    for change in (*changes, lambda: behind.pop("a"), lambda: behind.update(a=2)):
        change()
        try:
            expected = SHOWN[name](X, shown)
        except KeyError:
            with pytest.raises(KeyError):
                fast(X)
            continue
        found = fast(X)
        assert str(found) == str(expected)


@pytest.mark.parametrize("view", [dict.keys, dict.values, dict.items])
def test_views_of_dictionaries_from_outside_run_as_they_are(view):
    behind = {"a": 2}
    kept = view(behind)
    fast = dynamo.optimize("eager")(lambda x: x * len(kept))
    assert fast(X).item() == 2 * fast(X).item() / 2 == X.item() * len(kept)
    behind["b"] = 3
    assert fast(X).item() == X.item() * 2
    with pytest.raises(dynamo.CaptureError, match="no guard sees its dictionary"):
        dynamo.optimize("eager", fullgraph=True, options=STRICT)(lambda x: x * len(kept))(X)
