"""The autograd node of a compiled graph, in C and in Python: the same in all that a program can see."""

import copy
import gc
import sys
import threading
import weakref

import pytest
import torch

import aot_autograd
from aot_autograd.errors import CompilerContractError

pytestmark = pytest.mark.usefixtures("form")


def leaf(*shape):
    return torch.randn(*shape).requires_grad_()


def boxed_with(graph, count):
    """The graph, with so many outputs as it promised and `count` more."""

    def run(args):
        results = list(graph.forward(*args))
        args.clear()
        return (results + results[:1])[: len(results) + count]

    run.boxed = True
    return run


def test_values_and_gradients(agree):
    agree(lambda x, y: (torch.sin(x) * y, x.detach() + 1, 3), lambda: [leaf(3), leaf(3)])


def test_torch_finds_at_once_what_it_asks_the_class_for(graph_runner):
    compiled = aot_autograd.aot_module_simplified(
        traced(lambda x: (x.sin(),), leaf(3)), [leaf(3)], fw_compiler=graph_runner
    )
    node = type(compiled([leaf(3)])[0].grad_fn)
    function = node._forward_cls
    for name in ("forward", "setup_context", "_backward_cls"):
        assert getattr(function, name) is function._asked[name]
    assert function._backward_cls is node
    assert function.__name__ == "CompiledFunction"
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        function.other  # noqa: B018


@pytest.mark.parametrize("changed", [0, 1, 2])
def test_a_changed_input_is_found_whether_it_is_saved_or_not(changed, graph_runner):
    """Autograd notices changes of what it saves (here two of three), the node those of the others."""

    def function(x, y, bias):
        return (x * y + bias,)

    inputs = [leaf(3), leaf(3), leaf(3)]
    compiled = aot_autograd.aot_module_simplified(
        traced(function, *inputs), inputs, fw_compiler=graph_runner
    )
    for _ in range(2):
        (result,) = compiled([*inputs])
        with torch.no_grad():
            inputs[changed].add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(result.sum(), inputs, create_graph=True)


def test_a_call_without_grad_mode_gives_what_the_trace_gave(graph_runner):
    compiled = aot_autograd.aot_module_simplified(
        traced(lambda x: (x.sin(),), leaf(3)), [leaf(3)], fw_compiler=graph_runner
    )
    x = leaf(3)
    with torch.no_grad():
        (result,) = compiled([x])
        assert not torch.is_grad_enabled()
    assert torch.equal(result, x.sin())
    assert result.requires_grad


def traced(function, *examples):
    graph = torch.fx.Graph()
    inputs = [graph.placeholder(f"x{n}") for n in range(len(examples))]
    result = graph.call_function(function, tuple(inputs))
    graph.output((graph.call_function(lambda r: r[0], (result,)),))
    gm = torch.fx.GraphModule(torch.nn.Module(), graph)
    gm.meta["wire"] = 1
    return gm


def test_two_backwards_where_the_graph_is_retained_and_eagers_error_where_not(graph_runner):
    compiled = aot_autograd.aot_function(lambda x: x.exp() * x, graph_runner)
    x = leaf(3)
    result = compiled(x)
    first = torch.autograd.grad(result.sum(), x, retain_graph=True)
    second = torch.autograd.grad(result.sum(), x)
    assert torch.equal(first[0], second[0])
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(result.sum(), x)


def test_a_second_backward_where_no_tensors_are_saved(graph_runner):
    compiled = aot_autograd.aot_function(lambda x, y: x - y, graph_runner)
    x, y = leaf(3), leaf(3)
    result = compiled(x, y)
    for times in (1.0, 2.0, 3.0):  # as in eager
        result.backward(torch.ones(3))
        assert torch.equal(x.grad, torch.full((3,), times))


def test_a_saved_input_that_changed_is_eagers_error(graph_runner):
    compiled = aot_autograd.aot_function(lambda x, y: x * y, graph_runner)
    x, y = leaf(3), torch.randn(3)
    result = compiled(x, y)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_gradients_of_gradients(graph_runner):
    compiled = aot_autograd.aot_function(lambda x: x.exp().tanh(), graph_runner)
    x = leaf(4)
    for function in (compiled, lambda x: x.exp().tanh()):
        (gradient,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        x.grad = None
        gradient.pow(2).sum().backward()
        if function is compiled:
            ours = x.grad
    torch.testing.assert_close(ours, x.grad)


@pytest.mark.parametrize("differentiated", [(0,), (1,), (0, 1), (2,), (0, 2)])
def test_absent_tangents(graph_runner, differentiated):
    def function(x, y):
        return x * y, y.sin(), x.cos()

    compiled = aot_autograd.aot_function(function, graph_runner)
    gradients = []
    for one in (function, compiled, compiled):
        torch.manual_seed(0)
        x, y = leaf(3), leaf(3)
        values = one(x, y)
        sum(values[n].sum() for n in differentiated).backward()
        gradients.append((x.grad, y.grad))
    for ours in gradients[1:]:
        for one, other in zip(ours, gradients[0], strict=True):
            assert (one is None) == (other is None)
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("count", [-1, 1])
@pytest.mark.parametrize("stage", ["forward", "backward"])
def test_a_wrong_number_of_results_is_refused(graph_runner, stage, count):
    def wrong(graph, _inputs):
        return boxed_with(graph, count)

    compilers = (wrong, graph_runner) if stage == "forward" else (graph_runner, wrong)
    compiled = aot_autograd.aot_function(lambda x, y: x.sin() * y, *compilers)
    x, y = leaf(3), leaf(3)
    compiled(x, y) if stage == "backward" else None  # the first call is Python's in any form
    for _ in range(2):
        with pytest.raises(CompilerContractError, match=f"the compiled {stage} returned"):
            compiled(x, y).sum().backward()


def test_saved_tensor_hooks_see_each_value_once(graph_runner):
    compiled = aot_autograd.aot_function(lambda x, y: (x * y).tanh(), graph_runner)
    x, y = leaf(3), leaf(3)
    for tangent in (torch.ones(3), torch.ones(()).expand(3), torch.randn(6)[::2]):
        packed, unpacked = [], []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, packed=packed: packed.append(1) or t,
            lambda t, unpacked=unpacked: unpacked.append(1) or t,
        ):
            result = compiled(x, y)
        result.backward(tangent)
        assert packed
        assert len(packed) == len(unpacked)


def test_saved_tensors_belong_to_the_compiled_backward_alone(graph_runner):
    alive = []

    def watching(graph, _inputs):
        def run(args):
            own = [weakref.ref(one) for one in args if one is not x and one is not y]
            results = graph.forward(*args)
            args.clear()
            alive.append([ref() is not None for ref in own])
            return results

        run.boxed = True
        return run

    x, y = leaf(3, 3), leaf(3, 3)
    compiled = aot_autograd.aot_function(lambda x, y: x.mm(y).exp().mm(y), graph_runner, watching)
    result = compiled(x, y).mul(2)
    result.backward(torch.ones(3, 3))
    assert len(alive[0]) > 1
    assert alive[0][-1]  # the tangent is autograd's
    assert not any(alive[0][:-1])


def test_nothing_is_leaked(graph_runner):
    compiled = aot_autograd.aot_function(lambda x, y: (x.exp() * y, y + 1), graph_runner)
    x, y, tangent = leaf(3), leaf(3), torch.ones(3)

    def step():
        x.grad = y.grad = None
        compiled(x, y)[0].backward(tangent)

    for _ in range(3):
        step()
    gc.collect()
    before = [sys.getrefcount(one) for one in (x, y, tangent)]
    for _ in range(100):
        step()
    gc.collect()
    after = [sys.getrefcount(one) for one in (x, y, tangent)]
    assert before == after


def test_compiled_parts_go_with_the_last_reference():
    parts = []

    def compiler(graph, _inputs):
        part = aot_autograd.make_boxed_func(graph.forward)
        parts.append(weakref.ref(part))
        return part

    compiled = aot_autograd.aot_function(lambda x: x.exp(), compiler)
    compiled(leaf(3)).sum().backward()
    assert len(parts) == 2
    del compiled
    gc.collect()
    assert not any(part() for part in parts)


def test_what_is_compiled_is_copied_and_referred_to_as_functions_are(graph_runner):
    module = aot_autograd.aot_module(torch.nn.Linear(3, 2), graph_runner)
    module(torch.ones(1, 3)).sum().backward()
    copied = copy.deepcopy(module)
    copied(torch.ones(1, 3)).sum().backward()
    assert copied.module.weight is not module.module.weight
    assert torch.equal(module.module.weight.grad, torch.ones(2, 3))
    assert torch.equal(copied.module.weight.grad, torch.ones(2, 3))
    (call, _) = next(iter(module._compiled._compiled.values()))
    assert weakref.ref(call)() is call
    assert copy.copy(call) is call


def test_from_several_threads(graph_runner):
    compiled = aot_autograd.aot_function(lambda x, y: (x * y).sin(), graph_runner)
    wrong = []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(30):
            x = torch.randn(5, generator=generator).requires_grad_()
            y = torch.randn(5, generator=generator)
            compiled(x, y).sum().backward()
            if not torch.allclose(x.grad, (x * y).cos() * y):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_error_of_the_backward_is_the_callers(graph_runner):
    def failing(_graph, _inputs):
        def run(_args):
            raise ValueError("from the backward")

        run.boxed = True
        return run

    compiled = aot_autograd.aot_function(lambda x: x.sin(), graph_runner, failing)
    for _ in range(2):
        with pytest.raises(ValueError, match="from the backward"):
            compiled(leaf(3)).sum().backward()
