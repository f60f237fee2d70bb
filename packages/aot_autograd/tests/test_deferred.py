"""The backward is compiled in the background: once, with errors kept, and never across a fork."""

import os
import threading
import time

import pytest
import torch

import aot_autograd
from aot_autograd.deferred import Deferred, Worker


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def test_the_worker_starts_with_the_first_call_of_the_forward(graph_runner):
    compiled_in = []
    begun, done = threading.Event(), threading.Event()

    def backward_compiler(gm, example_inputs):
        compiled_in.append(threading.current_thread())
        begun.set()
        assert done.wait(10)
        return graph_runner(gm, example_inputs)

    x = leaf(3)
    graph = torch.fx.symbolic_trace(lambda x: (x.sin(),))
    compiled = aot_autograd.aot_module_simplified(
        graph, [x], fw_compiler=graph_runner, bw_compiler=backward_compiler
    )
    assert not compiled_in
    (out,) = compiled([x])
    assert begun.wait(10)
    assert compiled_in[0] is not threading.current_thread()
    done.set()
    out.sum().backward()
    torch.testing.assert_close(x.grad, x.cos())
    compiled([x])[0].sum().backward()
    assert len(compiled_in) == 1


def test_an_error_is_raised_by_the_backward_that_needs_the_code(graph_runner):
    def backward_compiler(gm, example_inputs):
        raise ArithmeticError("no code for this")

    compiled = aot_autograd.aot_function(lambda x: x.sin(), graph_runner, backward_compiler)
    x = leaf(3)
    out = compiled(x).sum()
    for _ in range(2):
        with pytest.raises(ArithmeticError, match="no code for this"):
            out.backward(retain_graph=True)
    torch.testing.assert_close(compiled(x), x.sin())


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_a_backward_whose_compilation_was_interrupted_is_compiled_when_next_asked_for(
    graph_runner, interruption
):
    tries = []

    def backward_compiler(gm, example_inputs):
        tries.append(gm)
        if len(tries) == 1:
            raise interruption
        return graph_runner(gm, example_inputs)

    x = leaf(3)
    compiled = aot_autograd.aot_function(
        lambda x: x.sin(),
        graph_runner,
        backward_compiler,
        options=aot_autograd.AotOptions(backward_worker=False),
    )
    out = compiled(x).sum()
    with pytest.raises(interruption):
        out.backward(retain_graph=True)
    out.backward()
    torch.testing.assert_close(x.grad, x.cos())
    assert len(tries) == 2


def test_a_wrong_result_of_the_compiler_is_named_by_the_backward(graph_runner):
    compiled = aot_autograd.aot_function(lambda x: x.sin(), graph_runner, lambda gm, _: 3)
    out = compiled(leaf(3)).sum()
    with pytest.raises(aot_autograd.CompilerContractError, match="bw_compiler returned int"):
        out.backward()


def test_asked_for_from_many_threads_it_is_compiled_once():
    made = []

    def compile_graph(graph):
        made.append(graph)
        time.sleep(0.02)
        return len

    deferred = Deferred(compile_graph, load=lambda: "graph", in_worker=True)
    results = []
    threads = [threading.Thread(target=lambda: results.append(deferred())) for _ in range(6)]
    deferred.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [len] * 6
    assert made == ["graph"]


def test_the_worker_ends_when_there_is_nothing_to_do():
    worker, done = Worker(), []
    for number in range(5):
        worker.submit(lambda number=number: done.append(number))
    assert worker.wait(10)
    assert done == [0, 1, 2, 3, 4]
    deadline = time.monotonic() + 10
    while any(one.name == "aot_autograd backward" for one in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_waits_for_the_worker_and_the_child_compiles_for_itself(graph_runner):
    def slowly(gm, example_inputs):
        time.sleep(0.2)
        return graph_runner(gm, example_inputs)

    first = aot_autograd.aot_function(lambda x: x.sin(), graph_runner, slowly)
    second = aot_autograd.aot_function(lambda x: x.cos(), graph_runner, slowly)
    x = leaf(3)
    out = first(x)
    child = os.fork()
    if child == 0:
        try:
            (gradient,) = torch.autograd.grad(out.sum(), x)
            (other,) = torch.autograd.grad(second(x).sum(), x)
            right = torch.allclose(gradient, x.cos()) and torch.allclose(other, -x.sin())
            os._exit(0 if right else 1)
        finally:
            os._exit(2)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            break
        time.sleep(0.02)
    else:
        os.kill(child, 9)
        os.waitpid(child, 0)
        pytest.fail("the child hangs")
    assert os.waitstatus_to_exitcode(status) == 0
    torch.testing.assert_close(torch.autograd.grad(out.sum(), x)[0], x.cos())


def test_without_the_worker_it_waits_for_the_first_backward(graph_runner):
    compiled_in = []

    def backward_compiler(gm, example_inputs):
        compiled_in.append(threading.current_thread())
        return graph_runner(gm, example_inputs)

    compiled = aot_autograd.aot_function(
        lambda x: x.sin(), graph_runner, backward_compiler, options={"backward_worker": False}
    )
    out = compiled(leaf(3))
    assert not compiled_in
    out.sum().backward()
    assert compiled_in == [threading.current_thread()]
