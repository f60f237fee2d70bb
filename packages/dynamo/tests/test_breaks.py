# ruff: noqa: TRY301, FURB, SIM108 - the captured programs are written as users do
"""Graph breaks: the statement runs for real, capture resumes after it, in nested frames and blocks too."""

import concurrent.futures
from collections import OrderedDict

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter, same

STRICT = dynamo.DynamoOptions(strict=True)
X = torch.arange(1.0, 7.0).reshape(2, 3)


def inner(x, y):
    z = x * y
    print("inner", float(z.sum()))
    return z + 1


def after_print(x):
    a = x + 1
    print("hello")
    return a * 2, a


def nested(x):
    b = inner(x + 1, 2.0)
    return inner(b, 3.0) * b


def branch(x):
    y = x * 2
    if y.sum() > 0:
        y = y + 1
    else:
        y = y - 1
        y = y * 3
    return y * x


def in_no_grad(x):
    with torch.no_grad():
        y = x * 3
        print("grad", torch.is_grad_enabled())
        z = y + 1
    return z, torch.is_grad_enabled()


def caught(x):
    log = []
    try:
        y = x.sum(dim=9)
    except IndexError:
        y = x.sum()
        log.append("caught")
    finally:
        log.append("end")
    return y + 1, log


def in_handler(x):
    try:
        raise ValueError("v")
    except ValueError as error:
        print("handling", error)
        y = x + 1
    return y * 2


def shared_cell(x):
    count = 0

    def bump(y):
        nonlocal count
        count += 1
        return y * count

    a = bump(x)
    print("count", count)
    return bump(a), count


def live_containers(x):
    items = [x]
    alias = items
    print(len(items))
    alias.append(x + 1)
    return items is alias, items


def in_loop(x):
    for i in range(3):
        x = x + i
        print(i)
        x = x * 2
    return x


def until_large(x):
    """Python 3.11 goes back to the head of such a loop by a jump that looks at the value."""
    while x.sum() < 60:
        x = x + 7
        if x.max() > 20:
            x = x * 2
    return x - 1


def until_all_are(x):
    done = torch.zeros(x.shape, dtype=torch.bool)
    while not done.all():
        x = x + 3
        if (x > 4).any():
            done = done | (x > 4)
    return x, done


def short_circuit(x):
    y = x + 1
    return (y.sum() > 0 and y) if (y.min() > 100 or y.max() > 2) else x


def with_keywords(x):
    print("a", "b", sep="-", end="!\n")
    return x + 1


def in_callback(x):
    return [v + 1 for v in sorted([3, 1], key=lambda n: float(x.sum()) * n)], x * 2


@pytest.mark.parametrize(
    "function",
    [
        after_print,
        nested,
        branch,
        in_no_grad,
        caught,
        in_handler,
        shared_cell,
        live_containers,
        in_loop,
        until_large,
        until_all_are,
        short_circuit,
        with_keywords,
        in_callback,
    ],
)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_same_as_eager(function, sign, capsys):
    counter = CompileCounter()
    compiled = dynamo.optimize(counter, options=STRICT)(function)
    for _ in range(2):
        expected = function(X * sign)
        printed = capsys.readouterr().out
        assert same(compiled(X * sign), expected)
        assert capsys.readouterr().out == printed
    assert counter.frame_count >= (function not in (caught, in_handler))


def test_second_call_compiles_nothing():
    counter = CompileCounter()
    compiled = dynamo.optimize(counter, options=STRICT)(nested)
    compiled(X)
    made = counter.frame_count
    compiled(X + 1)
    assert counter.frame_count == made


def test_exception_of_the_program_is_eagers():
    def function(x):
        y = x + 1
        raise KeyError("mine")
        return y

    with pytest.raises(KeyError, match="mine"):
        dynamo.optimize("eager", options=STRICT)(function)(X)


def test_disabled_function_runs_in_python():
    calls = []

    @dynamo.disable
    def outside(x):
        calls.append(type(x))
        return x * 2

    def function(x):
        return outside(x + 1) + 1

    compiled = dynamo.optimize("eager", options=STRICT)(function)
    assert torch.equal(compiled(X), (X + 1) * 2 + 1)
    assert torch.equal(compiled(X), (X + 1) * 2 + 1)
    assert calls == [torch.Tensor, torch.Tensor]


def with_item(x):
    n = x.flatten()[0].item()
    rest = [int(v) for v in x.flatten().tolist()]
    return x * n, rest


def with_resize(x):
    y = x.detach() * 2
    y.resize_(2)
    return y + 1, x * 2


@pytest.mark.parametrize("function", [with_item, with_resize])
def test_methods_of_tensors_run_on_the_real_tensor(function):
    counter = CompileCounter()
    compiled = dynamo.optimize(counter, options=STRICT)(function)
    x = X.clone().requires_grad_()
    for _ in range(2):
        expected, found = function(x), compiled(x)
        assert same(found, expected)
        assert found[0].requires_grad == expected[0].requires_grad
    assert counter.frame_count >= 1


def test_iterator_from_outside_is_used_up():
    def function(x, it):
        first = next(it)
        for a, b in it:
            x = x * a + b
            if a == 2:
                break
        return x + first[1]

    it, reference = (zip(range(5), [10, 20, 30, 40, 50], strict=True) for _ in range(2))
    expected = function(X, reference)
    assert same(dynamo.optimize("eager", options=STRICT)(function)(X, it), expected)
    assert list(it) == list(reference)


def test_autograd_function_keeps_its_backward():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 100

    def function(x):
        return Double.apply(x + 1) * 3

    x = X.clone().requires_grad_()
    dynamo.optimize("eager", options=STRICT)(function)(x).sum().backward()
    assert torch.equal(x.grad, torch.full_like(X, 300.0))


def test_closure_variable_that_cannot_be_followed():
    numpy = pytest.importorskip("numpy")
    table = numpy.arange(3.0)

    def function(x):
        y = x + 1
        return y * 2, float(table.sum())

    counter = CompileCounter()
    compiled = dynamo.optimize(counter, options=STRICT)(function)
    assert same(compiled(X), function(X))
    table += 1
    assert same(compiled(X), function(X))
    assert counter.frame_count >= 1


def test_defaults_of_a_function_made_in_each_call_are_looked_at():
    def function(x, n):
        def scaled(v, k=n, *, shift=n):
            dynamo.graph_break()
            return v * k + shift

        return scaled(x)

    compiled = dynamo.optimize("eager", options=STRICT)(function)
    for n in (1, 2, 3, 1):
        assert same(compiled(X, n), function(X, n))


def test_what_a_call_used_is_let_go_when_it_is_over():
    import weakref

    class Holder:
        def __init__(self, value):
            self.value = value

    def function(holder):
        y = holder.value + 1
        dynamo.graph_break()
        if y is None:
            raise ValueError
        return y * holder.value

    compiled = dynamo.optimize("eager", options=STRICT)(function)
    holder = Holder(X)
    compiled(holder)
    gone = weakref.ref(holder)
    del holder
    assert gone() is None


def test_more_locals_than_a_pair_of_slots_can_name():
    """Since 3.13 one instruction stores two locals, of the first sixteen only."""

    def function(x):
        a0, a1, a2, a3, a4, a5, a6, a7, a8 = range(9)
        dynamo.graph_break()
        b0, b1, b2, b3, b4, b5, b6, b7, b8 = range(9, 18)
        first, second = x + a0, x * b8
        if x.sum() > 100:
            first, second = second, first
        dynamo.graph_break()
        total = a1 + a2 + a3 + a4 + a5 + a6 + a7 + a8 + b0 + b1 + b2 + b3 + b4 + b5 + b6 + b7
        third, fourth = first - second, total
        return first, second, third * fourth

    x = torch.randn(3)
    compiled = dynamo.optimize("eager", options=dynamo.DynamoOptions(strict=True))(function)
    for found, expected in zip(compiled(x), function(x), strict=True):
        assert torch.equal(found, expected)


class _Base:
    def value(self, v):
        return v + 1


class _BehindBreak(_Base):
    def value(self, v):
        dynamo.graph_break()
        return super().value(v) * 2


class _ReceiverInCell(_Base):
    def value(self, v):
        held = v * 3
        read = lambda: (self, held)
        dynamo.graph_break()
        self.read = read()[1]
        dynamo.graph_break()
        return super().value(v) * 2


class _BreakInSuper(_Base):
    def value(self, v):
        w = v * 2
        return w + super().value(v if w.sum() > 0 else -v)


class _ReceiverDeleted(_Base):
    def value(self, v):
        own = super().value
        del self
        dynamo.graph_break()
        return own(v)


@pytest.mark.parametrize("cls", [_BehindBreak, _ReceiverInCell, _BreakInSuper, _ReceiverDeleted])
@pytest.mark.parametrize("nested", [False, True])
def test_super_finds_its_receiver_behind_a_break(cls, nested):
    compiled = dynamo.optimize("eager", options=STRICT)(
        (lambda v: cls().value(v)) if nested else cls().value
    )
    for scale in (1.0, -1.0):
        assert same(compiled(X * scale), cls().value(X * scale))


class Answer(OrderedDict):
    """As transformers' outputs: an item is an attribute, too, and a number picks among the items."""

    def __init__(self, **items):
        super().__init__(**items)
        for name, item in items.items():
            object.__setattr__(self, name, item)

    def __getitem__(self, key):
        if isinstance(key, str):
            return dict(self.items())[key]
        return tuple(self[name] for name in self.keys())[key]


def test_what_a_dict_of_its_own_protocol_holds_may_change_behind_a_break():
    def answer(x):
        print(end="")
        return Answer(last=x + 1, first=x * 2)

    def program(x):
        made = answer(x)
        return made[0] * 3 + made["first"] + made.last

    counter = CompileCounter()
    compiled = dynamo.optimize(counter)(program)
    for _ in range(4):
        x = torch.randn(3, 4)
        assert same(compiled(x), program(x))
    assert counter.frame_count == 2


def test_a_range_made_in_the_call_outlives_a_break():
    def program(x):
        steps = range(1, int(x.shape[0]) * 3, 2)
        print(end="")
        return x * len(steps) + steps[1]

    compiled = dynamo.optimize(CompileCounter())(program)
    for _ in range(2):
        assert same(compiled(X), program(X))


def until_thousands(x):
    turns = 0
    while x.sum() < 3000:
        x = x + 1
        turns += 1
    return x, turns


def many_tries(x):
    for _ in range(2000):
        if x.sum() > 1e9:
            break
        x = x + 1
    return x


@pytest.mark.parametrize("function", [until_thousands, many_tries])
def test_long_loops_end_as_in_eager(function):
    """A turn is a call inside the one before: there is a most, then the loop goes on in one frame."""
    compiled = dynamo.optimize(CompileCounter(), options=STRICT)(function)
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        here = compiled(torch.zeros(1))
        there = threads.submit(compiled, torch.zeros(1)).result()
    assert same(here, function(torch.zeros(1)))
    assert same(there, here)


def test_turns_of_a_loop_share_what_was_compiled():
    counter = CompileCounter()
    compiled = dynamo.optimize(counter, options=STRICT)(until_large)
    for start in (-9.0, -3.0, 1.0):
        assert same(compiled(X + start), until_large(X + start))
    assert 1 <= counter.frame_count <= 8
