# ruff: noqa: C416, B905, C417, TRY301, PYI024, UP032, UP031, FURB - the captured programs are written as users do
"""Functions and modules without breaks: one graph, eager's values, types and identities."""

import collections
import dataclasses

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter, same

STRICT = dynamo.DynamoOptions(strict=True)


def check(function, *args, graphs=1, calls=2):
    counter = CompileCounter()
    compiled = dynamo.optimize(counter, fullgraph=True, options=STRICT)(function)
    for _ in range(calls):
        expected = function(*args)
        assert same(compiled(*args), expected)
    assert counter.frame_count == graphs
    return counter


X = torch.arange(6.0).reshape(2, 3)


def containers(x):
    pair = (x + 1, [x * 2])
    table = {"a": pair[0], "b": pair}
    table["c"] = len(table)
    return table, [k for k in table], {**table}


def closures(x):
    scale = 3

    def inner(y, *rest, k=2, **more):
        nonlocal scale
        scale += 1
        return y * scale + k + len(rest) + len(more)

    return inner(x, 1, 2, z=4) + inner(x), scale


def generators(x):
    def numbers(n):
        for i in range(n):
            got = yield i * x
            if got is not None:
                yield got

    g = numbers(3)
    first = next(g)
    sent = g.send(x + 10)
    return first, sent, list(g), sum(v for v in numbers(3))


def iteration(x):
    rows = list(x)
    pairs = list(zip(rows, range(5)))
    ordered = sorted([3, 1, 2], key=lambda v: -v)
    return pairs, ordered, list(map(lambda r: r + 1, rows)), max([1, 5, 2], key=lambda v: v % 4)


def errors(x):
    log = []
    try:
        {}["missing"]
    except KeyError as error:
        log.append(str(error))
    finally:
        log.append("end")
    try:
        raise ValueError("v") from TypeError("t")
    except ValueError as error:
        log.append(type(error.__cause__).__name__)
    return x + len(log), log


class Point:
    count = 2

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __add__(self, other):
        return Point(self.x + other.x, self.y + other.y)

    @property
    def norm(self):
        return (self.x * self.x + self.y * self.y).sqrt()

    @classmethod
    def origin(cls, like):
        return cls(torch.zeros_like(like), torch.zeros_like(like))


def objects(x):
    p = Point(x, x + 1) + Point.origin(x)
    return p, p.norm * Point.count


@dataclasses.dataclass
class Record:
    value: torch.Tensor
    tags: list = dataclasses.field(default_factory=list)


def records(x):
    r = Record(x + 1)
    r.tags.append("t")
    return r, dataclasses.replace(r, value=r.value * 2) if False else r.value


Pair = collections.namedtuple("Pair", "left right")


def standard_containers(x):
    queue = collections.deque([1, 2], maxlen=3)
    queue.append(x)
    groups = collections.defaultdict(list)
    groups["a"].append(x + 1)
    ordered = collections.OrderedDict(b=1)
    ordered["a"] = x
    ordered.move_to_end("b")
    return x + 1, queue, groups, ordered, Pair(x, 1)._replace(right=2), {1, 2} | {3}


def text(x):
    n = x.shape[1]
    return x + 1, f"{n:03d}|{n!r}|{'a'.upper()}", "{} {}".format(1, 2), "%d" % n


def matching(x):
    out = [x + 1]
    for value in (1, "s", [1, 2, 3], {"k": 5}, Point(x, x)):
        match value:
            case int():
                out.append("int")
            case [first, *rest]:
                out.append((first, rest))
            case {"k": k}:
                out.append(k)
            case Point(x=px):
                out.append(px)
            case _:
                out.append("other")
    return out


def grad_modes(x):
    with torch.no_grad():
        y = x * 2
        inside = torch.is_grad_enabled()
    return y, inside, torch.is_grad_enabled()


def walrus(x):
    if (n := x.shape[0]) > 1 and not (m := n - 2):
        return x + n + m
    return x


@pytest.mark.parametrize(
    "function",
    [
        containers,
        closures,
        generators,
        iteration,
        errors,
        objects,
        records,
        standard_containers,
        text,
        matching,
        grad_modes,
        walrus,
    ],
)
def test_function_is_one_graph(function):
    check(function, X)


def test_outputs_keep_identity():
    def function(x):
        shared = [x + 1]
        return shared, shared, shared[0]

    first, second, third = dynamo.optimize("eager", options=STRICT)(function)(X)
    assert first is second
    assert first[0] is third


def test_input_comes_back_itself():
    x = torch.ones(2)
    compiled = dynamo.optimize("eager", options=STRICT)(lambda t: (t.add_(1), t))
    first, second = compiled(x)
    assert first is x
    assert second is x
    assert x.tolist() == [2, 2]


def test_side_effects_are_replayed():
    class Box:
        pass

    def function(x, items, table, box):
        items.append(x + 1)
        items[0] = "first"
        table["new"] = items
        del table["old"]
        box.value = x * 2
        box.items = items
        return len(items)

    for run in (function, dynamo.optimize("eager", fullgraph=True, options=STRICT)(function)):
        items, table, box = [0], {"old": 1, "kept": 2}, Box()
        assert run(X, items, table, box) == 2
        assert items[0] == "first"
        assert torch.equal(items[1], X + 1)
        assert list(table) == ["kept", "new"]
        assert table["new"] is items
        assert box.items is items
        assert torch.equal(box.value, X * 2)


def test_module_with_buffer_update():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 3)
            self.norm = torch.nn.BatchNorm1d(3)
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return self.norm(self.layer(x))

    torch.manual_seed(0)
    net, reference = Net(), Net()
    reference.load_state_dict(net.state_dict())
    compiled = dynamo.optimize("eager", fullgraph=True, options=STRICT)(net)
    for _ in range(3):
        assert torch.allclose(compiled(X), reference(X))
    assert net.calls == 3
    assert torch.equal(net.norm.running_mean, reference.norm.running_mean)
    assert net.norm.num_batches_tracked == 3


def test_guards_see_changes():
    counter = CompileCounter()

    def function(x, k):
        return x * k

    compiled = dynamo.optimize(counter, options=STRICT)(function)
    assert torch.equal(compiled(X, 2.0), X * 2.0)
    assert torch.equal(compiled(X, 3.0), X * 3.0)
    assert torch.equal(compiled(X.double(), 3.0), X.double() * 3.0)
    assert torch.equal(compiled(X, 2.0), X * 2.0)
    assert counter.frame_count == 3


def test_fullgraph_names_the_line():
    def function(x):
        y = x + 1
        if y.sum() > 0:
            return y
        return x

    with pytest.raises(dynamo.CaptureError, match="data-dependent-branch") as error:
        dynamo.optimize("eager", fullgraph=True, options=STRICT)(function)(X)
    assert "if y.sum() > 0:" in str(error.value)
    assert "torch.where" in str(error.value)


def test_unknown_backend_names_the_nearest():
    with pytest.raises(dynamo.UsageError, match="did you mean 'eager'"):
        dynamo.optimize("eagre")
