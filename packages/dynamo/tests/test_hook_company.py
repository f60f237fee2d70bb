"""The frame hook among others: torch's compiler in both orders, threads, errors, deep and odd frames."""

import asyncio
import copy
import importlib
import sys
import threading

import pytest
import torch

import dynamo
from dynamo._native import HAVE_C, is_hooked
from dynamo.testing import CompileCounter, same

STRICT = dynamo.DynamoOptions(strict=True)
X = torch.randn(4)
pytestmark = pytest.mark.skipif(not HAVE_C, reason="frames are hooked by the C extension")


def compiled_with(function):
    counter = CompileCounter()
    return counter, dynamo.optimize(counter, options=STRICT)(function)


def inner(x):
    return (x * 2 + 1).relu()


def called_by(body):
    """A function that compiled code calls without inlining it; frames below it are hooked."""
    outside = dynamo.disable(body, recursive=False)
    return lambda x: outside(x) + 1


@pytest.fixture
def theirs():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    yield graphs, lambda function: torch.compile(function, backend=backend)
    torch._dynamo.reset()


@pytest.mark.parametrize("ours_first", [True, False])
def test_both_compilers_go_on_after_an_error_in_either(theirs, ours_first):
    graphs, torch_compile = theirs

    def body(x):
        y = inner(x)
        if x.shape[0] == 3:
            raise KeyError("three")
        return y

    function = called_by(body)
    counter, ours = compiled_with(function)
    other = torch_compile(body)
    pair = (ours, function), (other, body)
    for compiled, eager in pair if ours_first else pair[::-1]:
        assert same(compiled(X), eager(X))
        with pytest.raises(KeyError, match="three"):
            compiled(torch.randn(3))
        assert not is_hooked()
    before = counter.frame_count
    for _ in range(2):
        for compiled, eager in pair:
            assert same(compiled(X), eager(X))
    assert counter.frame_count == before
    assert graphs


@pytest.mark.parametrize("ours_outside", [True, False])
def test_one_compiler_inside_a_call_of_the_other(theirs, ours_outside):
    graphs, torch_compile = theirs
    if ours_outside:
        inside = torch._dynamo.disable(torch_compile(inner))
        counter, outer = compiled_with(called_by(lambda x: inside(x) * 2))
    else:
        counter, ours = compiled_with(called_by(inner))
        inside = torch._dynamo.disable(ours)
        outer = torch_compile(lambda x: inside(x + 1) * 2)
    results = [outer(X) for _ in range(3)]
    expected = inner(X) * 2 + 1 if ours_outside else (inner(X + 1) + 1) * 2
    assert all(same(result, expected) for result in results)
    assert counter.frame_count >= 1
    made = counter.frame_count, len(graphs)
    outer(X)
    assert (counter.frame_count, len(graphs)) == made
    assert not is_hooked()


@pytest.mark.parametrize("kind", ["function", "module", "method"])
def test_what_torch_compiled_is_part_of_what_we_compile(theirs, kind):
    _, torch_compile = theirs
    layer = torch.nn.Linear(4, 4)
    if kind == "function":
        inside, eager = torch_compile(inner), inner
    elif kind == "module":
        inside, eager = torch_compile(layer), layer
    else:
        eager = torch.nn.Linear(4, 4)
        eager.load_state_dict(layer.state_dict())
        inside = layer
        inside.compile(backend="eager")
    counter, outer = compiled_with(lambda x: inside(x.reshape(-1, 4)) * 2)
    x = torch.randn(4)
    for _ in range(2):
        assert same(outer(x), eager(x.reshape(-1, 4)) * 2)
    assert counter.frame_count == 1
    _, again = compiled_with(inside)  # already compiled, by torch: it goes on by itself
    assert same(again(x.reshape(-1, 4)), eager(x.reshape(-1, 4)))
    assert not is_hooked()


def test_functions_of_pybind11_are_values():
    """Their `__self__` is a record of pybind11's, without the method's name."""

    class Holder:
        def __init__(self):
            self.ask = torch._C._get_tracing_state

    def program(x, holder, ask):
        x = x + 1
        print(end="")
        return x if holder.ask() is None and ask() is None else -x

    assert type(torch._C._get_tracing_state.__self__).__name__ != "module"
    _, fast = compiled_with(program)
    x = torch.ones(2)
    for _ in range(2):
        assert same(fast(x, Holder(), torch._C._get_tracing_state), x + 1)


def test_threads_with_torchs_compiler_beside_ours(theirs):
    _, torch_compile = theirs
    function = called_by(inner)
    _, ours = compiled_with(function)
    other = torch_compile(lambda x: inner(x) * 3)
    other(X)  # capture itself is torch's business
    wrong, hooked_outside = [], []

    def work(compiled, expected):
        for _ in range(30):
            if not same(compiled(X), expected):
                wrong.append(compiled)
            if is_hooked():
                hooked_outside.append(compiled)

    jobs = [(ours, inner(X) + 1), (other, inner(X) * 3), (inner, inner(X))] * 2
    threads = [threading.Thread(target=work, args=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (wrong, hooked_outside) == ([], [])


def test_the_limit_of_recursion_is_the_programs():
    def depth(n=0):
        try:
            return depth(n + 1)
        except RecursionError:
            return n

    reached = []

    def body(x):
        reached.append(depth())
        return inner(x)

    limit = sys.getrecursionlimit()
    plain = depth()
    _, compiled = compiled_with(called_by(body))
    for _ in range(3):
        assert same(compiled(X), inner(X) + 1)
    assert sys.getrecursionlimit() == limit
    assert min(reached) > plain - 60, (reached, plain)
    assert abs(depth() - plain) <= 1


def test_a_program_that_recurses_too_deeply_raises_as_it_does():
    def endless(x):
        return endless(x + 1)

    _, compiled = compiled_with(endless)
    for _ in range(2):
        with pytest.raises(RecursionError):
            compiled(X)
    assert same(compiled_with(inner)[1](X), inner(X))


def test_coroutines_and_generators_below_a_hooked_call():
    async def later(x):
        await asyncio.sleep(0)
        return inner(x)

    async def several(x):
        for part in (x, x + 1):
            yield inner(part)

    async def main(x):
        return await later(x) + sum([part async for part in several(x)])

    def lazily(x):
        received = yield inner(x)
        yield received + inner(x)

    def body(x):
        generator = lazily(x)
        first = next(generator)
        return asyncio.run(main(x)) + generator.send(first)

    function = called_by(body)
    counter, compiled = compiled_with(function)
    for _ in range(3):
        assert same(compiled(X), function(X))
    assert counter.frame_count >= 1
    assert not is_hooked()


def test_module_and_class_bodies_below_a_hooked_call(tmp_path, monkeypatch):
    (tmp_path / "fresh_module.py").write_text(
        "import torch\nVALUE = torch.ones(2) * 2\nTOTAL = 0\nfor i in range(3):\n    TOTAL += i\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    def body(x):
        sys.modules.pop("fresh_module", None)
        module = importlib.import_module("fresh_module")

        class Local:
            scale = module.TOTAL
            names = [name for name in ("a", "b")]  # noqa: C416 - a frame of its own up to 3.11

        space = {}
        exec("y = 3\ndef f(x):\n    return x * y", space)
        return space["f"](x) * Local.scale + len(Local.names) + module.VALUE.sum()

    function = called_by(body)
    _, compiled = compiled_with(function)
    for _ in range(3):
        assert same(compiled(X), function(X))
    sys.modules.pop("fresh_module", None)


def test_torchs_evaluator_is_what_it_was(theirs):
    """Its callback is a thread's own: ours leaves it alone, before, below and after hooked frames."""
    _, torch_compile = theirs
    other = torch_compile(inner)
    other(X)
    callback = torch._C._dynamo.eval_frame.get_eval_frame_callback
    seen = []

    def body(x):
        seen.append(callback())
        return other(x)

    before = callback()
    _, compiled = compiled_with(called_by(body))
    for _ in range(2):
        assert same(compiled(X), inner(X) + 1)
    assert seen == [before, before]
    assert callback() is before


def test_a_module_is_copied_as_ever_after_torchs_compiler_ran(theirs):
    """It puts functions of its own into `nn.Module`, which note each module that is made or copied."""
    _, torch_compile = theirs
    torch_compile(torch.nn.Linear(2, 2))(torch.ones(2))
    layer = torch.nn.Linear(4, 4)

    def program(x):
        return copy.deepcopy(layer)(x) + copy.copy(layer)(x)

    compiled = dynamo.optimize("eager", fullgraph=True, options=STRICT)(program)
    assert same(compiled(X), program(X))


def test_torchs_compiler_around_what_ours_compiled(theirs):
    """It breaks its graph at the call, and captures nothing of our capture or of what that made."""
    graphs, torch_compile = theirs
    counter, compiled = compiled_with(inner)
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    layer_counter, layers[0] = compiled_with(layers[0])

    def program(x):
        return compiled(x + 1) * 2

    outer, whole = torch_compile(program), torch_compile(layers)
    for size in (4, 4, 5, 6):
        x = torch.randn(size)
        assert same(outer(x), inner(x + 1) * 2)
    assert counter.frame_count == 2
    for _ in range(2):
        x = torch.randn(2, 4, requires_grad=True)
        whole(x).sum().backward()
        assert same(x.grad, torch.autograd.grad(layers(x).sum(), x)[0])
    assert layer_counter.frame_count == 1
    calls = {
        node.target for graph in graphs for node in graph.graph.nodes if node.op.startswith("call")
    }
    assert len(graphs) < 8
    assert torch.relu not in calls  # of `inner`: that is ours
    assert not is_hooked()
