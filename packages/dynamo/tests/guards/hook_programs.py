"""Run by test_hook on each interpreter: the C extension by itself, without torch.

Guards need torch; here an entry's program is a small stand-in with the two things that the
extension asks of it.
"""

import gc
import importlib.util
import sys
import tempfile
import threading
import traceback
import types
from dataclasses import replace
from pathlib import Path

source = Path(sys.argv[1])
package = types.ModuleType("dynamo")
package.__path__ = [str(source)]
sys.modules["dynamo"] = package


def loaded(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


build_hook = loaded("hatch_build", source.parents[1] / "hatch_build.py")
folder = tempfile.TemporaryDirectory()
fast = loaded("dynamo._fast", build_hook.build(Path(folder.name)))
assert "torch" not in sys.modules

from dynamo.bytecode import INPUTS, Instruction, assemble, build, decode, flat_header  # noqa: E402
from dynamo.bytecode.build import load_const, load_fast, return_value  # noqa: E402


class Program:
    native = None

    def __init__(self, code, holds=True, inputs=()):
        self.code, self.holds, self.inputs = code, holds, inputs

    def match(self, slots, function):
        holds = self.holds(*slots) if callable(self.holds) else self.holds
        return list(self.inputs) if holds else None


def replacement(code, extra_stack=0):
    """The same code, which returns ("new", result, inputs)."""
    header = flat_header(code)
    made = []
    for instruction in decode(code):
        if instruction.opname == "RETURN_CONST":
            made += [load_const(instruction.argval)]
        if instruction.opname in ("RETURN_VALUE", "RETURN_CONST"):
            made += [load_const("new"), build.swap(2), load_fast(INPUTS), build.build_tuple(3)]
            made += [return_value()]
        else:
            made.append(instruction)
    if extra_stack:
        made_code = assemble(made, header)
        return made_code.replace(co_stacksize=made_code.co_stacksize + extra_stack)
    return assemble(made, header)


class Recorder:
    """A callback that compiles the functions it is told to, and remembers all that it was asked."""

    def __init__(self, *functions, holds=True, inputs=("i",), extra_stack=0, graph=None):
        self.codes = {function.__code__ for function in functions}
        self.asked = []
        self.holds, self.inputs, self.extra_stack, self.graph = holds, inputs, extra_stack, graph

    def __call__(self, function, slots, cache):
        assert not fast.is_hooked()
        self.asked.append((function.__name__, slots))
        if function.__code__ not in self.codes:
            return None
        if cache is not None:
            return False
        cache = fast.CodeCache(function.__code__)
        program = Program(function.__code__, self.holds, self.inputs)
        if self.graph is not None:
            cache.add(fast.Entry(program, graph=self.graph, pick=0))
        else:
            code = replacement(function.__code__, self.extra_stack)
            cache.add(fast.Entry(program, code=code))
        return cache


def hooked(*functions, **options):
    fast.forget_codes()
    recorder = Recorder(*functions, **options)
    return recorder, fast.FrameHook(recorder)


def call(function, *args, **kwargs):
    """Called by C: its own frame is seen by the hook, and what it calls."""
    return function(*args, **kwargs)


def expect(value, wanted):
    assert value == wanted, (value, wanted)


# --------------------------------------------------------------------------------------- signatures
def plain(a, b):
    return a + b


def defaults(a, b=2, *, c=3):
    return (a, b, c)


def spread(a, *rest, k, **more):
    return (a, rest, k, more)


def celled(a):
    inner = lambda: a
    return inner()


def outer(z):
    def closed(a):
        def inner():
            return a + z

        return inner()

    return closed


def signatures():
    for function, args, kwargs, result in (
        (plain, (1, 2), {}, 3),
        (defaults, (1,), {}, (1, 2, 3)),
        (defaults, (1, 5), {"c": 6}, (1, 5, 6)),
        (spread, (1, 2, 3), {"k": 4, "j": 5}, (1, (2, 3), 4, {"j": 5})),
        (celled, (7,), {}, 7),
        (outer(10), (7,), {}, 17),
    ):
        for extra in (0, 40):
            recorder, hook = hooked(function, extra_stack=extra)
            for _ in range(30):  # long enough to be specialised
                expect(hook(call, function, *args, **kwargs), ("new", result, ["i"]))
            names = [name for name, _ in recorder.asked]
            assert names.count(function.__name__) == 1
            expect(function(*args, **kwargs), result)  # outside nothing is hooked


def graphs():
    _recorder, hook = hooked(plain, graph=lambda inputs: ("from the graph", inputs))
    for _ in range(5):
        expect(hook(call, plain, 1, 2), "from the graph")

    def fails(inputs):
        raise KeyError("graph")

    _recorder, hook = hooked(plain, graph=fails)
    for _ in range(5):
        try:
            hook(call, plain, 1, 2)
        except KeyError as error:
            expect(error.args, ("graph",))  # no pytest on the other interpreters
        else:
            raise AssertionError("nothing was raised")


def guards():
    recorder, hook = hooked(plain, holds=lambda a, b: a > b)
    expect(hook(call, plain, 2, 1)[0], "new")
    expect(hook(call, plain, 1, 2), 3)
    expect(hook(call, plain, 2, 1)[0], "new")
    asked = [slots for name, slots in recorder.asked if name == "plain"]
    expect(asked, [(2, 1), (1, 2)])  # when first seen, and when no entry held


def untouched():
    def generator():
        yield from (1, 2)

    async def coroutine():
        return 1

    recorder, hook = hooked()
    expect(hook(list, generator()), [1, 2])
    try:
        hook(coroutine().send, None)
    except StopIteration as stop:
        expect(stop.value, 1)
    hook(exec, "class C:\n  x = 1\nx = [i for i in range(3)]", {})
    names = {name for name, _ in recorder.asked}
    assert not names & {"generator", "coroutine", "C", "<module>"}, names


def skipped():
    recorder, hook = hooked()
    for _ in range(3):
        expect(hook(call, plain, 1, 2), 3)
    expect(sorted(name for name, _ in recorder.asked), ["call", "plain"])
    assert fast.hooked_cache(plain.__code__) is False
    fast.forget_codes()
    assert fast.hooked_cache(plain.__code__) is None
    hook(call, plain, 1, 2)
    expect(len(recorder.asked), 4)
    fast.forget_codes()
    fast.never_hook(call.__code__)
    hook(call, plain, 1, 2)
    expect([name for name, _ in recorder.asked[4:]], ["plain"])


# -------------------------------------------------------------------------------------- exceptions
def raising(n):
    if n:
        return raising(n - 1)
    raise ValueError("deep")


def exceptions():
    _recorder, hook = hooked(raising)
    try:
        hook(raising, 5)
    except ValueError:
        frames = traceback.extract_tb(sys.exc_info()[2])
        expect([frame.name for frame in frames], ["exceptions"] + ["raising"] * 6)
    assert not fast.is_hooked()

    def broken(function, slots, cache):
        raise LookupError("in the callback")

    fast.forget_codes()
    for _ in range(3):
        try:
            fast.FrameHook(broken)(plain, 1, 2)
        except LookupError as error:
            expect(error.args, ("in the callback",))
        else:
            raise AssertionError("nothing was raised")
        expect(plain(1, 2), 3)
    try:
        fast.FrameHook(lambda *_: 3)(plain, 1, 2)
    except TypeError as error:
        assert "CodeCache" in str(error)  # noqa: PT017  # no pytest there
    else:
        raise AssertionError("nothing was raised")


def deep(n):
    return 0 if n == 0 else 1 + deep(n - 1)


def recursion():
    """Compiled code is not hooked itself, so a replacement recurses as deep as the original."""
    _recorder, hook = hooked(plain)
    for depth in (10, 300, 900):
        expect(deep(depth), depth)
    expect(hook(deep, 300), 300)
    for _ in range(3):
        try:
            hook(deep, 10**6)
        except RecursionError:
            pass
        else:
            raise AssertionError("no limit")
    assert not fast.is_hooked()
    expect(deep(900), 900)


def many_arguments():
    """Frames larger than what is left of a chunk of the data stack: the result comes by a call."""
    names = [f"a{i}" for i in range(120)]
    scope = {}
    exec(f"def wide({', '.join(names)}): return {' + '.join(names)}", scope)
    wide = scope["wide"]

    def descend(n):
        return hook(wide, *range(120)) if n == 0 else descend(n - 1)

    for extra in (0, 2000, 20_000):
        _recorder, hook = hooked(wide, extra_stack=extra)
        for depth in range(0, 200, 7):
            fast.never_hook(descend.__code__)
            expect(descend(depth), ("new", sum(range(120)), ["i"]))


# ------------------------------------------------------------------------------------ on and off
def threads():
    _recorder, hook = hooked(plain)
    inside, done = threading.Event(), threading.Event()
    results = []

    def other():
        inside.wait(10)
        results.append((fast.is_hooked(), plain(1, 2)))
        results.append(hook(call, plain, 3, 4)[0])
        results.append((fast.is_hooked(), plain(1, 2)))
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    with hook:
        inside.set()
        assert done.wait(10)
        expect(plain(1, 2)[0], "new")
        assert fast.is_hooked()
    thread.join()
    expect(results, [(False, 3), "new", (False, 3)])
    expect(plain(1, 2), 3)


def nesting():
    _recorder, hook = hooked(plain)
    other_recorder = Recorder()
    other = fast.FrameHook(other_recorder)
    with hook:
        expect(plain(1, 2)[0], "new")
        expect(fast.unhooked(plain, 1, 2), 3)
        with other, hook:
            expect(plain(1, 2)[0], "new")
        expect(fast.unhooked(hook, plain, 1, 2)[0], "new")
        expect(other(plain, 1, 2), 3)  # each hook has its own answers
        expect([name for name, _ in other_recorder.asked], ["plain"])
        expect(plain(1, 2)[0], "new")
    expect(plain(1, 2), 3)
    try:
        hook.__exit__(None, None, None)
    except RuntimeError:
        pass
    else:
        raise AssertionError("it was never entered")
    for wrong in (hook, fast.unhooked, lambda: fast.FrameHook(3)):
        try:
            wrong()
        except TypeError:
            pass
        else:
            raise AssertionError("it makes no sense")


def tracing():
    """A debugger sees the code that the user wrote."""
    _recorder, hook = hooked(plain)
    seen = []

    def tracer(frame, event, argument):
        seen.append(frame.f_code.co_name)

    sys.settrace(tracer)
    try:
        result = hook(call, plain, 1, 2)
    finally:
        sys.settrace(None)
    expect(result, 3)
    assert "plain" in seen
    expect(hook(call, plain, 1, 2)[0], "new")


def compiled_functions():
    """A compiled function runs unhooked inside: its code says itself what is hooked."""

    def user(a):
        return plain(a, 1)

    cache = fast.CodeCache(user.__code__)
    cache.add(fast.Entry(Program(user.__code__, inputs=()), code=replacement(user.__code__)))
    compiled = fast.CompiledFunction(user, cache)
    recorder, hook = hooked(plain)
    expect(hook(compiled, 4), ("new", 5, []))
    expect(recorder.asked, [])
    inner = lambda inputs: (hook(plain, 1, 2),)
    cache.clear()
    cache.add(fast.Entry(Program(user.__code__), graph=inner, pick=0))
    expect(compiled(4)[0], "new")
    expect(hook(compiled, 4)[0], "new")


def leaks():
    class Thing:
        pass

    def use(thing, *rest, k=None):
        return None

    def graph(inputs):
        return (None,)

    for options in ({}, {"extra_stack": 60_000}, {"graph": graph}):
        recorder, hook = hooked(use, **options)
        thing = Thing()
        hook(use, thing, thing, k=thing)
        recorder.asked.clear()
        before = sys.getrefcount(thing)
        for _ in range(1000):
            hook(use, thing, thing, k=thing)
        expect(sys.getrefcount(thing), before)
    code = use.__code__
    fast.forget_codes()
    before = sys.getrefcount(code)
    for _ in range(100):
        recorder, hook = hooked(use)
        hook(use, 1)
        del recorder, hook
    fast.forget_codes()
    hooked()[1](use, 1)
    gc.collect()
    assert sys.getrefcount(code) <= before + 5, (sys.getrefcount(code), before)


def own_inputs():
    def function(x):
        return x

    header = flat_header(function.__code__)
    body = [*build.prologue(), load_fast(INPUTS), load_fast("x"), build.build_tuple(2)]
    code = assemble([*body, return_value()], replace(header, name="made"))
    cache = fast.CodeCache(function.__code__)
    cache.add(fast.Entry(Program(function.__code__, inputs=(1, 2)), code=code))
    fast.forget_codes()
    hook = fast.FrameHook(lambda f, slots, c: cache if f is function else None)
    expect(hook(call, function, "x"), ([1, 2], "x"))
    assert fast.hooked_cache(function.__code__) is cache
    assert fast.hooked_cache(code) is False
    assert isinstance(body[0], Instruction)


for part in (
    signatures,
    graphs,
    guards,
    untouched,
    skipped,
    exceptions,
    recursion,
    many_arguments,
    threads,
    nesting,
    tracing,
    compiled_functions,
    leaks,
    own_inputs,
):
    part()
    assert not fast.is_hooked(), part
sys.stdout.write("all right\n")
