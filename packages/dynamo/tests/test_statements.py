# ruff: noqa: PLW1641, PTH122 - the captured programs are written as users do
"""Statements of the library that have effects or run the program's code from C, in one graph."""

import collections
import copy
import dataclasses
import datetime as dt
import decimal
import functools
import os
import typing
import warnings

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter, same

STRICT = dynamo.DynamoOptions(strict=True)
X = torch.linspace(-1, 1, 3)
T = typing.TypeVar("T")


def whole(function, backend="eager"):
    return dynamo.optimize(backend, fullgraph=True, options=STRICT)(function)


# -- warnings --------------------------------------------------------------------------------------------


def warned(function, *, times=2, action="always"):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter(action)
        for _ in range(times):
            function(X)
    return [(str(w.message), w.category, w.filename, w.lineno) for w in found]


def helper(x):
    warnings.warn("of the helper", stacklevel=2)
    return x + 1


def warns(x):
    warnings.warn("careful")  # noqa: B028
    warnings.warn("old", DeprecationWarning, stacklevel=1)
    warnings.warn(FutureWarning("as an object"), stacklevel=1)
    return helper(x) * 2


def warns_its_caller(x):
    warnings.warn("you", stacklevel=2)
    return x * 2


@pytest.mark.parametrize("program", [warns, warns_its_caller])
@pytest.mark.parametrize("action", ["always", "default", "once", "ignore"])
def test_warnings_are_issued_as_in_eager(program, action):
    def forget():
        for names in (globals(),):
            names.pop("__warningregistry__", None)

    forget()
    expected = warned(program, action=action)
    forget()
    assert warned(whole(program), action=action) == expected
    forget()


def test_a_warning_that_is_an_error_is_raised():
    compiled = whole(warns)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for function in (warns, compiled):
            with pytest.raises(UserWarning, match="careful"):
                function(X)


def test_a_warning_that_the_program_may_catch_breaks():
    def catches(x):
        try:
            warnings.warn("careful", stacklevel=1)
        except UserWarning:
            return x
        return x + 1

    with pytest.raises(dynamo.CaptureError, match="inside of a block"):
        whole(catches)(X)
    compiled = dynamo.optimize("eager", options=STRICT)(catches)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(compiled(X), X)
        warnings.simplefilter("ignore")
        assert same(compiled(X), X + 1)


# -- seeds -----------------------------------------------------------------------------------------------


def seeded(x):
    before = torch.rand(3)
    torch.manual_seed(3)
    first, second = torch.rand(3), torch.rand(2)
    torch.manual_seed(3)
    return x + first, second, torch.rand(3), before


def test_seeds_are_set_in_order():
    found = []
    for function in (seeded, whole(seeded), whole(seeded, CompileCounter())):
        for _ in range(2):
            torch.manual_seed(0)
            found.append((*function(X), torch.rand(1)))
    assert all(same(one, found[0]) for one in found)


def test_a_seed_alone_is_set():
    import torch._dynamo  # it puts a function of its own in place of `torch.manual_seed`

    def sets(x):
        torch.manual_seed(x.shape[0])
        return 5

    compiled = whole(sets)
    for _ in range(2):
        torch.manual_seed(0)
        assert compiled(X) == 5
        assert torch.initial_seed() == 3


# -- keys, comparisons -----------------------------------------------------------------------------------


class Key:
    def __init__(self, name):
        self.name = name

    def __hash__(self):
        return hash(self.name)

    def __eq__(self, other):
        return isinstance(other, Key) and self.name == other.name


KEY = Key("c")
TABLE = {Key("a"): 2.0, Key("b"): 3.0}


def own_keys(x):
    made = {Key("a"): x, Key("b"): x * 2, (1, Key("c")): 4.0}
    made[Key("a")] = x * 3
    names = {Key("a"), Key("a"), Key("d")}
    counted = collections.Counter([key.name for key in names])
    return (
        made[Key("a")] + TABLE[Key("b")] * made[1, Key("c")],
        len(made),
        Key("b") in TABLE,
        TABLE.get(Key("z")),
        len(names),
        counted["a"],
        Key("a") == Key("a"),
    )


def test_objects_with_a_hash_of_their_own_are_keys():
    assert same(whole(own_keys)(X), own_keys(X))


def test_what_a_key_is_made_of_is_guarded():
    def call(x):
        return x * {Key("c"): 2.0, Key("d"): 3.0}[KEY]

    compiled = whole(call)
    assert same(compiled(X), X * 2)
    KEY.name = "d"
    try:
        assert same(compiled(X), X * 3)
    finally:
        KEY.name = "c"
    assert same(compiled(X), X * 2)


def test_a_hash_that_is_computed_from_the_address_breaks():
    class Odd:
        def __hash__(self):
            return id(self) // 16

    def call(x):
        return x * {Odd(): 1, Odd(): 2}.__len__()

    assert same(dynamo.optimize("eager", options=STRICT)(call)(X), X * 2)


@functools.total_ordering
class Version:
    def __init__(self, *parts):
        self.parts = parts

    def __eq__(self, other):
        return self.parts == other.parts

    def __lt__(self, other):
        return self.parts < other.parts


@dataclasses.dataclass(order=True)
class Ranked:
    rank: int
    name: str = dataclasses.field(compare=False)


def own_order(x):
    versions = [Version(1, 2), Version(0, 9), Version(1, 0)]
    ranked = [Ranked(2, "a"), Ranked(1, "b"), Ranked(2, "c"), Ranked(1, "d")]
    by_rank = sorted(ranked, reverse=True)
    ranked.sort()
    versions.sort(key=lambda v: v, reverse=True)
    return (
        x * max(versions).parts[1],
        [v.parts for v in sorted(versions)],
        [v.parts for v in versions],
        [r.name for r in by_rank],
        [r.name for r in ranked],
        Version(1) >= Version(1),
    )


def test_objects_with_an_order_of_their_own_are_sorted():
    assert same(whole(own_order)(X), own_order(X))


# -- values ----------------------------------------------------------------------------------------------

DAY = dt.datetime(2020, 1, 2, tzinfo=dt.UTC)
SPAN = dt.timedelta(days=3)


class Box(typing.Generic[T]):
    def __init__(self, value):
        self.value = value


class Path:
    def __fspath__(self):
        return "a/b.txt"


def library_values(x):
    price = decimal.Decimal("1.5") + decimal.Decimal(2)
    later = DAY + SPAN
    box = Box[int](x)
    return (
        x * later.day + SPAN.total_seconds() + float(price) + box.value,
        later,
        later.isoformat(),
        price,
        type(box) is Box,
        box.__orig_class__ is Box[int],
        os.path.splitext(Path()),
        "a-b_c".translate(str.maketrans("-_", "xx")),
    )


def copied_tensors(x):
    shallow, deep = copy.copy(x), copy.deepcopy(x)
    deep.add_(1)
    return shallow * 2, deep


@pytest.mark.parametrize("program", [library_values, copied_tensors])
def test_values_of_the_library(program):
    assert same(whole(program)(X), program(X))


def test_a_shallow_copy_has_the_same_memory():
    def call(x):
        copied = copy.copy(x)
        copied.add_(1)
        return copied

    x = X.clone()
    out = whole(call)(x)
    assert out.data_ptr() == x.data_ptr()
    assert same(x, X + 1)


def test_the_time_now_is_not_captured():
    def now(x):
        return x, dt.datetime.now(tz=dt.UTC)

    compiled = dynamo.optimize("eager", options=STRICT)(now)
    first, second = compiled(X)[1], compiled(X)[1]
    assert first < second
