"""What a user can hand over wrongly, and calls at awkward moments: a clear error, or what eager does."""

import asyncio
import copy
import functools
import gc
import pickle
import sys
import threading
import weakref

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter, same

STRICT = dynamo.DynamoOptions(strict=True)
X = torch.ones(3)


def compiled_with(function, backend="eager", **settings):
    return dynamo.optimize(backend, options=STRICT, **settings)(function)


def plus_one(x):
    return x + 1


@dynamo.optimize("eager")
def decorated(x):
    return x + 2


class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x):
        return self.linear(x)


# -- what is compiled ----------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [3, None, [], "name", classmethod(lambda cls, x: x)])
def test_what_is_no_callable_is_refused(target):
    with pytest.raises(dynamo.UsageError, match=f"{type(target).__name__} is not callable"):
        dynamo.optimize("eager")(target)


@pytest.mark.parametrize(
    ("target", "args"),
    [
        (torch.sin, (X,)),
        (len, ([1, 2],)),
        (functools.partial(torch.add, X), (X,)),
        (staticmethod(plus_one), (X,)),
        (Plain().forward, (X,)),
        (complex, (1, 2)),
        (dynamo.optimize("eager")(plus_one), (X,)),
    ],
    ids=["operator", "builtin", "partial", "static method", "method", "class", "compiled"],
)
def test_every_kind_of_callable_means_what_it_means(target, args):
    assert same(compiled_with(target)(*args), target(*args))


def test_coroutines_and_generators_run_as_they_are():
    async def later(x):
        return plus_one(x)

    def several(x):
        yield x + 1
        yield x + 2

    assert same(asyncio.run(compiled_with(later)(X)), X + 1)
    assert same(list(compiled_with(several)(X)), [X + 1, X + 2])


def test_a_wrong_call_raises_pythons_own_error():
    compiled = compiled_with(plus_one)
    with pytest.raises(
        TypeError, match=r"plus_one\(\) takes 1 positional argument but 2 were given"
    ):
        compiled(X, X)
    with pytest.raises(TypeError, match="unexpected keyword argument 'y'"):
        compiled(y=X)


# -- settings ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backend": "egaer"}, "did you mean 'eager'"),
        ({"backend": 3}, "a name or a callable, not int"),
        ({"dynamic": "yes"}, "dynamic is None, True or False, not 'yes'"),
        ({"fullgraph": "yes"}, "fullgraph is True or False, not 'yes'"),
        ({"options": {"strict": True}}, "options is a DynamoOptions, not dict"),
    ],
)
def test_settings_of_the_wrong_kind_are_refused(settings, message):
    with pytest.raises(dynamo.UsageError, match=message):
        dynamo.optimize(**settings)(plus_one)


@pytest.mark.parametrize("mark", [dynamo.mark_dynamic, dynamo.mark_static, dynamo.mark_unbacked])
@pytest.mark.parametrize(
    ("tensor", "index", "message"),
    [
        ([1], 0, "not of list"),
        (X, "a", "an int or a tuple of ints, not 'a'"),
        (X, 1, "dimension 1 of a tensor with 1 dimensions"),
        (X, (0, -2), "dimension -2 of a tensor with 1 dimensions"),
    ],
)
def test_marks_on_what_is_no_dimension_are_refused(mark, tensor, index, message):
    with pytest.raises(dynamo.UsageError, match=message):
        mark(tensor, index)


@pytest.mark.parametrize("limits", [{"min": 5, "max": 2}, {"min": "a"}, {"max": -1}, {"min": 1.5}])
def test_limits_that_are_none_are_refused(limits):
    with pytest.raises(dynamo.UsageError, match="min and max are sizes"):
        dynamo.mark_dynamic(torch.ones(3), 0, **limits)


# -- backends ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ((), "gave 0 results; a tuple of 1 was promised"),
        ((X, X), "gave 2 results; a tuple of 1 was promised"),
        (torch.ones(1), "gave one Tensor"),
        (None, "gave one NoneType"),
    ],
)
def test_a_backend_that_breaks_its_promise_is_named(result, message):
    def careless(graph_module, example_inputs):
        return lambda *inputs: result

    compiled = compiled_with(plus_one, careless)
    for _ in range(2):
        with pytest.raises(dynamo.BackendError, match=f"careless for plus_one {message}"):
            compiled(X)


def test_a_list_is_as_good_as_a_tuple():
    assert same(compiled_with(plus_one, lambda graph, _: lambda x: [x + 1])(X), X + 1)


# -- awkward moments -----------------------------------------------------------------------------------


@pytest.mark.parametrize("switch", ["settrace", "setprofile"])
def test_under_a_tracer_or_profiler(switch):
    """It sees what runs in Python; capture and compiled calls work as without it."""
    events = []

    def observer(frame, event, argument):
        events.append(frame.f_code.co_name)
        return observer

    def function(x):
        y = plus_one(x)
        dynamo.graph_break()
        return y * 2

    counter = CompileCounter()
    compiled = compiled_with(function, counter)
    before = sys.gettrace(), sys.getprofile()
    getattr(sys, switch)(observer)
    try:
        results = [compiled(X) for _ in range(3)]
        assert getattr(sys, switch.replace("set", "get"))() is observer
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])
    assert all(same(result, (X + 1) * 2) for result in results)
    assert counter.frame_count == 2
    assert events
    assert same(compiled(X), (X + 1) * 2)
    assert counter.frame_count == 2


def test_under_torchs_profiler():
    compiled = compiled_with(plus_one)
    with torch.profiler.profile() as profile:
        assert same(compiled(X), X + 1)
    assert any("add" in event.key for event in profile.key_averages())


def test_capture_while_another_thread_captures():
    """Each thread gets its result; threads that wait for a capture use what it made."""
    start, wrong = threading.Barrier(6), []
    counter = CompileCounter()
    shared = compiled_with(lambda x: x * 3, counter)

    def work(n):
        own = compiled_with(lambda x: x * n + n)
        start.wait()
        right = [same(own(X), X * n + n) and same(shared(X), X * 3) for _ in range(5)]
        wrong.extend([n] * right.count(False))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert counter.frame_count == 1


def test_a_backend_that_calls_a_compiled_function():
    inner = compiled_with(lambda x: x * 2)

    def nested(graph_module, example_inputs):
        assert same(inner(X), X * 2)
        return graph_module.forward

    assert same(compiled_with(plus_one, nested)(X), X + 1)


# -- copies, pickles, the end --------------------------------------------------------------------------


def test_a_compiled_function_is_copied_and_pickled_as_a_function_is():
    compiled = compiled_with(plus_one)
    assert copy.copy(compiled) is compiled
    assert copy.deepcopy(compiled) is compiled
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    with pytest.raises(pickle.PicklingError, match="not the same object"):
        pickle.dumps(compiled)  # its name leads to the function that was compiled


def test_a_compiled_module_is_pickled_as_the_module_and_copied_with_its_compiler():
    module, counter = Plain(), CompileCounter()
    compiled = compiled_with(module, counter)
    expected = compiled(X)
    loaded = pickle.loads(pickle.dumps(compiled))
    assert type(loaded) is Plain
    assert same(loaded(X), expected)
    copied = copy.deepcopy(compiled)
    with torch.no_grad():
        module.linear.weight.zero_()
    assert same(copied(X), expected)
    assert not same(compiled(X), expected)
    assert copied.linear.weight is not module.linear.weight


def test_what_is_deleted_is_freed():
    class Held(torch.nn.Module):
        def forward(self, x):
            return x + 1

    def make():
        def function(x):
            return x + 1

        return function

    module, function = Held(), make()
    gone = [weakref.ref(module), weakref.ref(function)]
    compiled = [compiled_with(module), compiled_with(function)]
    assert all(same(each(X), X + 1) for each in compiled)
    del module, function, compiled
    gc.collect()
    assert [reference() for reference in gone] == [None, None]
