"""What a program makes and leaves behind, or turns into text: whole, and by its own methods."""

import collections
import dataclasses
import datetime as dt
import operator
import sys
import types

import pytest
import torch

import dynamo
from dynamo.testing import same

STRICT = dynamo.DynamoOptions(strict=True)
X = torch.linspace(-1, 1, 3)


def compiled(function, **settings):
    settings.setdefault("fullgraph", True)
    return dynamo.optimize("eager", options=STRICT, **settings)(function)


def agree(function, **settings):
    fast = compiled(function, **settings)
    for _ in range(2):
        assert same(fast(X), function(X))


def test_immutable_values_of_the_library_leave_the_call():
    day = dt.timedelta(days=1)
    agree(
        lambda x: (
            x + 1,
            dt.datetime(2020, 1, 1, tzinfo=dt.UTC) + day,
            dt.timezone(day / 24),
            dt.date(2020, 2, 3) - dt.date(2020, 1, 1),
        )
    )


def test_a_frozen_set_holds_the_tensors_of_its_call():
    def function(x):
        made = frozenset([x * 2])
        return made, {made: x + 1}, frozenset([1, (2,)]), frozenset()

    (first,) = compiled(function)(X)[0]
    assert type(first) is torch.Tensor
    assert torch.equal(first, X * 2)
    (second,) = compiled(function)(X + 1)[0]
    assert torch.equal(second, X * 2 + 2)


def test_namespaces_and_bytes_are_made_anew():
    def function(x):
        space = types.SimpleNamespace(count=1)
        space.count += 1
        space.value = x * 2
        text = bytearray(b"ab")
        text.append(3)
        return space, vars(space), text, [text]

    fast = compiled(function)
    first, second = fast(X), fast(X)
    assert first[0].count == 2
    assert first[1] is vars(first[0])
    assert torch.equal(first[0].value, X * 2)
    assert first[2] == b"ab\x03"
    assert first[2] is first[3][0]
    assert first[2] is not second[2]


def test_an_object_and_its_dictionary_are_one():
    class Plain:
        pass

    def function(x):
        one, other = Plain(), Plain()
        one.value, other.value = x * 2, x * 3
        return vars(one), one, other, vars(other)

    before, one, other, after = compiled(function)(X)
    before["more"] = after["more"] = 1
    assert one.more == other.more == 1
    assert before is vars(one)
    assert after is vars(other)


def test_what_c_keeps_to_itself_is_a_break():
    class Days(frozenset):
        pass

    def function(x):
        return Days([1]), memoryview(b"ab")[1:], x + 1

    found = compiled(function, fullgraph=False)(X)
    assert type(found[0]) is Days
    assert found[0] == {1}
    assert bytes(found[1]) == b"b"
    with pytest.raises(dynamo.CaptureError, match="state is C's"):
        compiled(function)(X)


def test_the_views_of_a_dictionary_show_that_dictionary():
    def function(x):
        held = {"a": x}
        keys, values, pairs = held.keys(), held.values(), held.items()
        dynamo.graph_break()
        held["b"] = x + 1
        return held, keys, list(values), list(pairs)

    fast = compiled(function, fullgraph=False)
    held, keys, values, pairs = fast(X)
    assert list(keys) == ["a", "b"]
    assert len(values) == len(pairs) == 2
    held["c"] = 1
    assert "c" in keys


@dataclasses.dataclass
class Tree:
    value: int
    below: list = dataclasses.field(default_factory=list)


class Named:
    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return f"<{self.name}>"

    def __str__(self):
        return "other"


def test_texts_of_what_is_in_containers():
    def function(x):
        one = Named("one")
        around = [one]
        around.append(around)
        tree = Tree(1, [Tree(2)])
        tree.below.append(tree)
        return (
            x + 1,
            str(around),
            f"{[one]} {(one,)!r:>12} {one}",
            repr({"k": {one}, one: [(), ([],)]}),
            repr(tree),
            "%s" % ([one],),  # noqa: UP031 - each way has a rule of its own
            str(ValueError("told")),
        )

    agree(function)


def test_the_versions_of_python_and_torch_are_compared():
    def function(x):
        if sys.version_info >= (3, 11) and sys.version_info[:2] < (4, 0):
            x = x + sys.version_info.major
        return x + 1 if torch.__version__ >= "2.0" else x

    agree(function)


def test_a_method_is_called_with_keywords():
    agree(lambda x: (operator.methodcaller("sum", dim=0)(x), operator.methodcaller("add", 1)(x)))


def test_a_descriptor_deletes():
    class Counted:
        def __set_name__(self, owner, name):
            self.name = "_" + name

        def __get__(self, owner, kind=None):
            return owner.__dict__[self.name]

        def __set__(self, owner, value):
            owner.__dict__[self.name] = value

        def __delete__(self, owner):
            owner.deleted = owner.__dict__.pop(self.name)

    class Owner:
        field = Counted()

    def function(x):
        owner = Owner()
        owner.field = x * 2
        del owner.field
        return owner.deleted, hasattr(owner, "_field")

    agree(function)


@pytest.mark.parametrize("kind", ["vmap", "grad", "jacrev", "hessian"])
def test_what_a_transform_returned_is_compiled(kind):
    transformed = getattr(torch.func, kind)(lambda row: (row * row).sin().sum())
    x = torch.linspace(0, 1, 6).reshape(2, 3)
    assert same(compiled(transformed)(x), transformed(x))


def test_a_transform_that_is_not_captured_leaves_no_trace():
    function = torch.func.functionalize(lambda x: x.clone().add_(1))
    assert same(compiled(function, fullgraph=False)(X), X + 1)
    with pytest.raises(dynamo.CaptureError, match="functionalize"):
        compiled(function)(X)
    assert torch._C._functorch.maybe_current_level() is None


@pytest.mark.parametrize(
    "made",
    [
        lambda: torch.nn.LayerNorm(3),
        lambda: torch.nn.BatchNorm1d(3),
        lambda: torch.nn.MultiheadAttention(3, 1),
        lambda: torch.nn.init.xavier_normal_(torch.nn.Parameter(torch.empty(3, 3))),
        lambda: torch.nn.init.orthogonal_(torch.nn.Parameter(torch.empty(3, 3))),
    ],
)
@pytest.mark.parametrize("broken", [False, True])
def test_layers_made_in_the_call_start_as_they_do(made, broken):
    def function(x):
        layer = made()
        if broken:
            dynamo.graph_break()
        if isinstance(layer, torch.Tensor):
            return layer @ x
        rows = x.expand(2, 3) * 2
        return layer(rows, rows, rows)[0] if "Multihead" in type(layer).__name__ else layer(rows)

    torch.manual_seed(0)
    expected = function(X)
    torch.manual_seed(0)
    assert same(compiled(function, fullgraph=not broken)(X), expected)


def test_a_mistake_of_the_program_is_told_by_eager_under_fullgraph():
    steps = []
    counts = torch.zeros(1)

    def function(x, rows):
        steps.append(rows)
        counts.add_(1)
        with torch.no_grad():
            return x @ torch.ones(rows, 2)

    fast = compiled(function)
    with pytest.raises(RuntimeError, match="cannot be multiplied|size mismatch") as raised:
        fast(X, 4)
    assert raised.value.__context__ is None
    assert raised.traceback[-1].frame.code.name == "function"
    assert torch.equal(fast(X, 3), X @ torch.ones(3, 2))
    with pytest.raises(RuntimeError, match="cannot be multiplied|size mismatch"):
        fast(X, 5)
    assert steps == [4, 3, 5]
    assert counts.item() == 3


def test_a_mistake_that_the_program_catches_is_a_break_under_fullgraph():
    def function(x):
        try:
            return x @ torch.ones(4, 2)
        except RuntimeError:
            return x

    with pytest.raises(dynamo.CaptureError, match="operator-failed"):
        compiled(function)(X)


def test_the_views_of_an_ordered_dictionary_show_it():
    def function(x):
        held = collections.OrderedDict(a=x)
        return held, held.keys(), x + 1

    held, keys, _ = compiled(function)(X)
    held["b"] = 2
    assert list(keys) == ["a", "b"]


def test_factories_fill_an_out_tensor():
    def function(x):
        held = torch.empty(3, dtype=torch.float64)
        torch.randn(3, out=held)
        return held, torch.empty(2, out=held[:2]), torch.zeros(3, out=x + 1)

    torch.manual_seed(0)
    expected = function(X)[0]
    torch.manual_seed(0)
    held, window, zeros = compiled(function)(X)
    assert torch.equal(held, expected)
    assert window.data_ptr() == held.data_ptr()
    assert torch.equal(zeros, torch.zeros(3))


@pytest.mark.parametrize("fullgraph", [True, False])
def test_a_lazy_module_gets_its_sizes_in_its_first_call(fullgraph):
    log = []

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.LazyLinear(4)
            self.second = torch.nn.LazyBatchNorm1d()

        def forward(self, x):
            log.append(len(log))
            return self.second(self.first(x.expand(2, 3) * torch.arange(1.0, 3)[:, None]))

    torch.manual_seed(0)
    plain = Net()
    expected = [plain(X), plain(X)]
    log.clear()
    torch.manual_seed(0)
    net = Net()
    fast = compiled(net, fullgraph=fullgraph)
    assert same([fast(X), fast(X)], expected)
    assert log == [0, 1]
    assert same(net.state_dict(), plain.state_dict())
