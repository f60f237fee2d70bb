"""Calls are bound as Python binds them, find their entry, or go to `miss`."""

import dataclasses
import gc
import inspect
import itertools
import re
import weakref

import pytest
import torch

from dynamo._native import CodeCache, CompiledFunction, Entry, run_original
from dynamo.bytecode import INPUTS, assemble, build, flat_header
from dynamo.guards import Guard, GuardKind, TensorGuard, compile_program
from dynamo.source import ClosureSource, LocalSource


def slots_of(function):
    """A compiled function that returns the slots of each call."""
    cache = CodeCache(function.__code__, lambda cache, function, slots: slots)
    return CompiledFunction(function, cache)


def everything(a, b=2, /, c=3, *rest, d, e=5, **more):
    return (a, b, c, d, e, rest, more)


def plain(a, b=2, c=3):
    return (a, b, c)


def keywords(a, *, d, e=5):
    return (a, d, e)


def spread(*rest, **more):
    return (rest, more)


FUNCTIONS = (everything, plain, keywords, spread)
ARGS = [tuple(range(n)) for n in range(5)]
KWARGS = [
    dict(chosen)
    for names in (("a", "b"), ("c", "d"), ("d", "e"), ("d", "z"), ("b", "d", "e", "z"))
    for size in range(len(names) + 1)
    for chosen in itertools.combinations([(n, n * 2) for n in names], size)
]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_call_is_bound_as_python_binds_it(function):
    compiled = slots_of(function)
    for args, kwargs in itertools.product(ARGS, KWARGS):
        try:
            expected = function(*args, **kwargs)
        except TypeError as error:
            with pytest.raises(TypeError, match=re.escape(str(error)) + "$"):
                compiled(*args, **kwargs)
        else:
            assert compiled(*args, **kwargs) == expected
            assert run_original(function, compiled(*args, **kwargs)) == expected


def test_defaults_are_read_at_each_call():
    def function(a, b=1, *, c=2):
        return a, b, c

    compiled = slots_of(function)
    assert compiled(0) == (0, 1, 2)
    function.__defaults__, function.__kwdefaults__ = (7,), {"c": 8}
    assert compiled(0) == (0, 7, 8)
    function.__defaults__ = None
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'b'"):
        compiled(0)


def add_one_entry(function, shape, result):
    guards = [Guard(LocalSource("x"), GuardKind.TENSOR, TensorGuard.of(torch.ones(shape)))]
    program = compile_program(guards, code=function.__code__, inputs=[LocalSource("x")])
    return Entry(program, graph=lambda inputs: (result, inputs.pop()), pick=0)


def test_the_entry_that_matches_runs_and_moves_to_the_front():
    def function(x):
        return "original"

    cache = CodeCache(function.__code__, lambda *_: "miss")
    compiled = CompiledFunction(function, cache)
    first, second = add_one_entry(function, 2, "two"), add_one_entry(function, 3, "three")
    cache.add(first)
    cache.add(second)
    assert tuple(cache.entries) == (second, first)
    assert compiled(torch.ones(2)) == "two"
    assert tuple(cache.entries) == (first, second)
    assert compiled(torch.ones(3)) == "three"
    assert compiled(x=torch.ones(4)) == "miss"
    assert compiled(4) == "miss"
    assert first.hits == second.hits == 1
    cache.remove(first)
    assert compiled(torch.ones(2)) == "miss"
    cache.clear()
    assert cache.entries == ()
    assert compiled(torch.ones(3)) == "miss"
    cache.miss = None
    assert compiled(torch.ones(3)) == "original"


def test_a_tensor_that_the_guards_loaded_is_the_graphs_input():
    def function(x, y):
        return x, y

    guards = [Guard(LocalSource("x"), GuardKind.TENSOR, TensorGuard.of(torch.ones(2)))]
    inputs = [LocalSource("y"), LocalSource("x")]
    program = compile_program(guards, code=function.__code__, inputs=inputs)
    cache = CodeCache(function.__code__)
    cache.add(Entry(program, graph=tuple))
    x, y = torch.ones(2), object()
    result = CompiledFunction(function, cache)(x, y=y)
    assert result[0] is y
    assert result[1] is x


def test_an_entry_of_code_gets_slots_closure_and_inputs():
    def outer(z):
        def function(x, *rest, k=1, **more):
            return x, rest, k, more, z

        return function

    function = outer("z")
    header = flat_header(function.__code__)
    assert header.local_names == ("x", "k", "rest", "more", INPUTS)
    names = ("more", "rest", "k", "x", INPUTS)
    body = [*build.prologue((), header.free_names), *map(build.load_fast, names)]
    body += [build.load_deref("z"), build.build_tuple(6), build.return_value()]
    code = assemble(body, dataclasses.replace(header, name="replacement"))
    program = compile_program([], code=function.__code__, inputs=[ClosureSource("z")])
    cache = CodeCache(function.__code__)
    cache.add(Entry(program, code=code))
    compiled = CompiledFunction(function, cache)
    assert compiled(1, 2, k=3, j=4) == ({"j": 4}, (2,), 3, 1, ["z"], "z")
    other = CompiledFunction(outer("other"), cache)  # the same code object, another closure
    assert other(1) == ({}, (), 1, 1, ["other"], "other")
    assert compiled(1)[4:] == (["z"], "z")


def test_a_compiled_function_looks_like_the_function():
    def function(x: int) -> int:
        """Its docstring."""
        return x

    compiled = slots_of(function)
    assert compiled.__name__ == "function"
    assert compiled.__doc__ == "Its docstring."
    assert compiled.__wrapped__ is function
    assert compiled.__module__ == __name__
    assert inspect.signature(compiled) == inspect.signature(function)
    compiled.mark = 1
    assert compiled.mark == 1
    assert "function" in repr(compiled)


def test_it_is_a_method_when_found_on_a_class():
    class Thing:
        run = slots_of(lambda self, x: None)

    thing = Thing()
    assert thing.run(3) == (thing, 3)
    assert Thing.run(thing, 4) == (thing, 4)


def test_code_that_the_user_replaced_runs_as_it_is():
    def function(x):
        return "old"

    compiled = slots_of(function)
    function.__code__ = (lambda x: "new").__code__
    assert compiled(1) == "new"


def test_what_makes_no_sense_is_refused():
    program = compile_program([], code=plain.__code__)
    with pytest.raises(TypeError, match="either a graph or a code"):
        Entry(program)
    with pytest.raises(TypeError, match="argument slots"):
        Entry(program, code=plain.__code__)
    with pytest.raises(TypeError, match="another code object"):
        CompiledFunction(everything, CodeCache(plain.__code__))


def test_errors_of_the_graph_and_of_miss_reach_the_caller():
    def function(x):
        return x

    def fail(*_):
        raise KeyError("from below")

    cache = CodeCache(function.__code__, fail)
    compiled = CompiledFunction(function, cache)
    with pytest.raises(KeyError, match="from below"):
        compiled(1)
    cache.add(Entry(compile_program([], code=function.__code__), graph=fail))
    with pytest.raises(KeyError, match="from below"):
        compiled(1)


def test_what_nobody_holds_is_freed():
    """A compiled function, its cache and its entries are part of a cycle like any function."""

    class Held:
        pass

    def make():
        held = Held()

        def function(x):
            return compiled, held

        program = compile_program([], code=function.__code__)
        cache = CodeCache(function.__code__, lambda cache, function, slots: held)
        cache.add(Entry(program, graph=lambda inputs: (held, compiled)))
        compiled = CompiledFunction(function, cache)
        compiled.itself = compiled
        compiled(1)
        return weakref.ref(held), weakref.ref(compiled)

    references = make()
    gc.collect()
    assert [reference() for reference in references] == [None, None]
