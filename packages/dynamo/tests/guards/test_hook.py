"""The frame hook: on every installed interpreter by itself, and beside torch's own evaluator."""

import subprocess
from pathlib import Path

import pytest
import torch

from dynamo._native import HAVE_C, CodeCache, CompiledFunction, Entry, FrameHook, forget_codes
from dynamo.bytecode import assemble, build, flat_header
from dynamo.guards import Guard, GuardKind, compile_program
from dynamo.source import LocalSource

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src" / "dynamo"

pytestmark = pytest.mark.skipif(not HAVE_C, reason="the extension is not built")


def test_the_extension_by_itself(version, python):
    command = [python, "-X", "faulthandler", str(HERE / "hook_programs.py"), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all right" in done.stdout


def helper(x):
    return x + 1


def hook_of(function):
    """A hook under which `function` returns ("ours", its argument)."""
    forget_codes()
    header = flat_header(function.__code__)
    body = [*build.prologue(), build.load_const("ours"), build.load_fast("x")]
    code = assemble([*body, build.build_tuple(2), build.return_value()], header)
    guard = Guard(LocalSource("x"), GuardKind.TYPE, torch.Tensor)
    cache = CodeCache(function.__code__)
    cache.add(Entry(compile_program([guard], code=function.__code__), code=code))
    return FrameHook(lambda f, slots, known: cache if f is function and known is None else None)


def call(x):
    return helper(x)


def test_with_real_guards():
    hook = hook_of(helper)
    x = torch.ones(2)
    assert hook(call, x) == ("ours", x)
    assert hook(call, 2) == 3
    assert helper(2) == 3


@pytest.fixture(scope="module")
def theirs():
    """A function under torch's own compiler, whose evaluator stays installed for the rest."""
    import torch._dynamo

    count = []

    def backend(graph, inputs):
        count.append(graph)
        return graph.forward

    @torch.compile(backend=backend)
    def compiled(x):
        return (x * 2).relu()

    x = torch.ones(3)
    assert torch.equal(compiled(x), x * 2)
    return compiled, count


def test_torchs_compiler_inside_our_hook(theirs):
    compiled, count = theirs
    hook = hook_of(helper)
    x = torch.ones(3)

    def both(x):
        return compiled(x), helper(x), compiled(x)

    for _ in range(3):
        first, ours, second = hook(both, x)
        assert ours == ("ours", x)
        assert torch.equal(first, x * 2)
        assert torch.equal(second, x * 2)
    assert len(count) == 1
    assert torch.equal(helper(x), x + 1)
    assert torch.equal(compiled(x), x * 2)


def test_our_hook_inside_torchs_compiler(theirs):
    compiled, _count = theirs
    hook = hook_of(helper)
    x = torch.ones(3)
    seen = []

    @torch._dynamo.disable
    def ours(x):
        seen.append(hook(call, x))
        return x + 1

    @torch.compile(backend=lambda graph, inputs: graph.forward)
    def outer(x):
        y = x * 3
        z = ours(y)
        return z - 1

    for _ in range(3):
        assert torch.equal(outer(x), x * 3)
        assert torch.equal(compiled(x), x * 2)
    assert [name for name, _ in seen] == ["ours"] * 3
    assert torch.equal(helper(x), x + 1)


def test_our_entry_calls_torchs_compiler(theirs):
    compiled, _ = theirs

    def function(x):
        return x

    hook = hook_of(helper)
    program = compile_program([], code=function.__code__, inputs=[LocalSource("x")])
    cache = CodeCache(function.__code__)
    cache.add(Entry(program, graph=lambda inputs: (compiled(inputs[0]), hook(call, inputs[0]))))
    mine = CompiledFunction(function, cache)
    x = torch.ones(3)
    for _ in range(3):
        first, second = mine(x)
        assert torch.equal(first, x * 2)
        assert second == ("ours", x)
        with pytest.raises(TypeError):
            mine()
    assert torch.equal(helper(x), x + 1)


def test_errors_leave_torchs_evaluator_in_place(theirs):
    compiled, count = theirs
    hook = hook_of(helper)
    before = len(count)

    def fails(x):
        compiled(x)
        raise ZeroDivisionError

    x = torch.ones(3)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            hook(fails, x)
        assert torch.equal(compiled(x), x * 2)
    assert torch.equal(compiled(torch.ones(3, 3)), torch.full((3, 3), 2.0))
    assert len(count) == before + 1
