# ruff: noqa: PYI024, PLW0108, TRY301 - the captured programs are written as users do
"""Library protocols that programs rely on: captured in one graph, or broken cleanly."""

import collections
import contextlib
import copy
import functools
import sys
import weakref

import numpy as np
import pytest
import torch
from torch.func import jvp, vjp, vmap

import dynamo
from dynamo.testing import CompileCounter, same

STRICT = dynamo.DynamoOptions(strict=True)
X = torch.arange(1.0, 7.0).reshape(2, 3)
W = torch.linspace(-1, 1, 6).reshape(3, 2)


class Key:
    pass


class Wrapped:
    """No tensor, but torch's functions take it."""

    def __init__(self, value):
        self.value = value

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        given = [item.value if isinstance(item, Wrapped) else item for item in args]
        return func(*given, **(kwargs or {})) + len(types)


KEY = Key()
BY_KEY = weakref.WeakKeyDictionary({KEY: 4.0})
BY_NAME = weakref.WeakValueDictionary({"key": KEY})


def weak_containers(x):
    return x * BY_KEY[KEY], BY_NAME["key"] is KEY, KEY in BY_KEY


def torch_function_objects(x):
    return torch.add(Wrapped(x), x), torch.sum(Wrapped(x)), torch.stack([Wrapped(x).value, x])


def no_exception(x):
    return x + 1, sys.exc_info()


def pulled_back(x):
    out, pull_back = vjp(lambda v: v.sin() @ W, x)
    return out, pull_back(torch.ones_like(out)), pull_back(out)


def pulled_back_trees(x):
    out, pull_back = vjp(lambda p, q: (p * q, {"s": p.sum()}), x, x + 1)
    return out, pull_back((x, {"s": torch.tensor(2.0)}))


def pulled_back_in_vmap(x):
    _, pull_back = vjp(torch.sin, x)
    return vmap(lambda v: pull_back(v)[0])(torch.stack([x, x]))


def pushed_forward(x):
    return jvp(lambda p, q: [p.sin() * q, p - q], (x, x + 1), (x, x * 2))


def pushed_through_a_gradient(x):
    return jvp(lambda v: torch.func.grad(lambda q: (q**3).sum())(v), (x,), (torch.ones_like(x),))


def mapped_in_chunks(x):
    y = torch.stack([x, x + 1, x * 2, x - 1, x])
    sums = vmap(lambda a, b: (a.sum(), a * b), in_dims=(0, None), out_dims=(0, 1), chunk_size=2)
    return vmap(lambda a: a * 2, chunk_size=9)(y), sums(y, x)


def mapped_structures(x):
    return vmap(lambda d, e: d["a"] * d["b"] + e[0], in_dims=({"a": 0, "b": None}, (0,)))(
        {"a": x, "b": x[0]}, (x,)
    )


def copied(x):
    y = copy.deepcopy({"a": [x * 2, 1]})
    return y, copy.deepcopy(y)["a"][0] + 1


ONE_GRAPH = [
    weak_containers, torch_function_objects, no_exception, pulled_back, pulled_back_trees,
    pulled_back_in_vmap, pushed_forward, pushed_through_a_gradient, mapped_in_chunks,
    mapped_structures, copied,
]  # fmt: skip


@pytest.mark.parametrize("function", ONE_GRAPH)
def test_one_graph(function):
    counter = CompileCounter()
    compiled = dynamo.optimize(counter, fullgraph=True, options=STRICT)(function)
    for _ in range(2):
        assert same(compiled(X), function(X))
    assert counter.frame_count == 1


def hooks_come_and_go(x):
    module = torch.nn.Linear(3, 3)
    with torch.no_grad():
        module.weight.fill_(1), module.bias.fill_(0)
    handle = module.register_forward_hook(lambda m, i, o: o + 1)
    y = module(x)
    handle.remove()
    return y, module(x)


def class_made_inside(x):
    pair = collections.namedtuple("pair", "a b")(x, 2)

    class Local:
        scale = 2

        def run(self, v):
            return v * self.scale

    return pair.a * pair.b, Local().run(x)


def class_dict(x):
    return x * Key.__dict__.get("scale", 2)


def group_of_exceptions(x):
    try:
        raise ExceptionGroup("g", [ValueError(1), KeyError(2)])
    except ExceptionGroup as group:
        dynamo.graph_break()
        return x + len(group.exceptions), str(group)


def stack_of_contexts(x):
    log = []

    @contextlib.contextmanager
    def noted(name):
        log.append(name)
        yield name
        log.append(f"end {name}")

    with contextlib.ExitStack() as stack:
        stack.enter_context(noted("a"))
        stack.callback(log.append, "called")
        stack.enter_context(torch.no_grad())
        y = x * 2
    return y, log


def effects_under_vjp(x):
    log = []
    out, pull_back = vjp(lambda v: (log.append(1), v * 2)[1], x)
    return pull_back(out), log


def pull_back_returned(x):
    return functools.reduce(lambda a, b: a + b, vjp(torch.cos, x)[1](x))


CLEAN = [
    hooks_come_and_go, class_made_inside, class_dict, group_of_exceptions, stack_of_contexts,
    effects_under_vjp, pull_back_returned,
]  # fmt: skip


@pytest.mark.parametrize("function", CLEAN)
def test_the_same_with_breaks(function):
    compiled = dynamo.optimize("eager", options=STRICT)(function)
    for _ in range(2):
        assert same(compiled(X), function(X))


def test_symbolic_numbers_are_keys_as_numbers():
    def function(x, n):
        table = {n: 1, (n, 2): 2}
        table[n + 1] = 3
        return x + table[n + 1] + len({n, 3}), n in table, table.get(n), table.pop(n), set([n])  # noqa: C405

    compiled = dynamo.optimize(CompileCounter(), fullgraph=True, options=STRICT)(function)
    for n in (2, 3, 4, 5):
        assert same(compiled(X, n), function(X, n))


def test_patterns_see_the_program_s_types():
    def kind(value):
        match value:
            case int(n):
                return n + 1
            case torch.Tensor():
                return "tensor"
            case np.ndarray():
                return "array"

    def function(x, n, a):
        return kind(x), kind(n), kind(a), x + n

    compiled = dynamo.optimize(CompileCounter(), fullgraph=True, options=STRICT)(function)
    for n in (2, 3, 4):
        assert same(compiled(X, n, np.ones(2)), function(X, n, np.ones(2)))


def test_a_compiled_function_under_a_transform():
    compiled = dynamo.optimize("eager", options=STRICT)(lambda v: v.sin() * 2)
    assert same(vmap(compiled)(X), X.sin() * 2)
    assert same(torch.func.grad(lambda v: compiled(v).sum())(X), X.cos() * 2)


def test_two_objects_that_become_one_are_noticed():
    def function(a, b, x):
        return x + a.value if a is b else x * b.value

    compiled = dynamo.optimize("eager", options=STRICT)(function)
    one, other = Wrapped(1), Wrapped(5)
    for a, b in ((one, other), (one, one), (other, other), (other, one)):
        assert same(compiled(a, b, X), function(a, b, X))


class Held:
    def __init__(self, value):
        self.value = value
        self.other = None


def test_a_weak_reference_ends_with_its_object():
    def held(x):
        first, last = Held(x), Held(x * 2)
        last.other = {"first": [first]}
        reference = weakref.ref(first)
        del first
        return reference().value, reference() is not None, last

    def dropped(x):
        made = Held(x)
        reference = weakref.ref(made)
        del made
        return x + 1, reference() is None

    assert same(dynamo.optimize("eager", fullgraph=True, options=STRICT)(held)(X)[:2], held(X)[:2])
    with pytest.raises(dynamo.CaptureError, match="may be gone"):
        dynamo.optimize("eager", fullgraph=True)(dropped)(X)
    assert same(dynamo.optimize("eager", options=STRICT)(dropped)(X), dropped(X))


class _Absent:
    """A descriptor that has nothing to give."""

    def __get__(self, owner, cls=None):
        raise AttributeError("nothing here")


class _Asked:
    """Answers where its descriptor has nothing."""

    scale = _Absent()

    def __getattr__(self, name):
        return len(name)


def test_a_descriptor_without_an_answer_is_followed_by_getattr():
    owner = _Asked()

    def program(x):
        return x * owner.scale

    compiled = dynamo.optimize("eager", fullgraph=True, options=dynamo.DynamoOptions(strict=True))(
        program
    )
    x = torch.ones(2)
    assert same(compiled(x), program(x))
