"""`compile` in all the ways it is written, and its relatives."""

import threading

import pytest
import torch

import compile_api


def function(x, scale: float = 2.0):
    """Scales."""
    return torch.sin(x) * scale


X = torch.linspace(-1, 1, 5)


def test_as_a_function_and_as_a_decorator():
    @compile_api.compile
    def bare(x):
        return x.cos()

    @compile_api.compile(backend="eager", dynamic=False)
    def with_arguments(x):
        return x.cos()

    torch.testing.assert_close(compile_api.compile(function, backend="eager")(X), function(X))
    torch.testing.assert_close(bare(X), X.cos())
    torch.testing.assert_close(with_arguments(X), X.cos())
    assert bare.__name__ == "bare"


def test_name_document_and_arguments_are_kept():
    compiled = compile_api.compile(function, backend="eager")
    assert compiled.__doc__ == "Scales."
    torch.testing.assert_close(compiled(x=X, scale=3.0), function(X, 3.0))
    torch.testing.assert_close(compiled(X, 3.0), function(X, 3.0))


def test_a_bound_method():
    class Holder:
        factor = 3

        def method(self, x):
            return x * self.factor

    holder = Holder()
    compiled = compile_api.compile(holder.method, backend="eager")
    torch.testing.assert_close(compiled(X), X * 3)
    holder.factor = 4
    torch.testing.assert_close(compiled(X), X * 4)


def test_disable_gives_the_function_itself():
    assert compile_api.compile(function, disable=True) is function
    net = torch.nn.Linear(2, 2)
    assert compile_api.compile(net, disable=True) is net


def test_graphs_are_counted_and_reset_forgets():
    compiled = compile_api.compile(function, backend="eager")
    compiled(X)
    compiled(X)
    assert compile_api.graph_count() == 1
    compile_api.reset()
    assert compile_api.graph_count() == 0
    compiled(X)
    assert compile_api.graph_count() == 1


def test_a_function_can_ask_whether_it_is_captured():
    def asks(x):
        return x + 1 if compile_api.is_compiling() else x - 1

    assert not compile_api.is_compiling()
    torch.testing.assert_close(compile_api.compile(asks, backend="eager")(X), X + 1)
    torch.testing.assert_close(asks(X), X - 1)


def test_a_disabled_function_runs_in_python():
    seen = []

    @compile_api.disable
    def outside(x):
        seen.append(type(x))
        return x + 1

    def calls(x):
        return outside(x * 2) * 3

    compiled = compile_api.compile(calls, backend="eager")
    torch.testing.assert_close(compiled(X), calls(X))
    compiled(X)
    assert seen == [torch.Tensor] * 3


def test_a_marked_dimension_compiles_once():
    compiled = compile_api.compile(lambda x: x * 2 + 1, backend="eager")
    for size in (5, 7, 9):
        x = torch.ones(size)
        compile_api.mark_dynamic(x, 0, min=2, max=64)
        torch.testing.assert_close(compiled(x), x * 2 + 1)
    assert compile_api.graph_count() == 1


def test_many_threads_compile_and_call():
    results = {}

    def work(index):
        compiled = compile_api.compile(lambda x: x * index + 1, backend="eager")
        results[index] = [compiled(X) for _ in range(20)]

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == list(range(8))
    for index, values in results.items():
        for value in values:
            torch.testing.assert_close(value, X * index + 1)


@pytest.mark.parametrize("name", compile_api.__all__)
def test_every_public_function_says_what_it_does(name):
    value = getattr(compile_api, name)
    assert name == "__version__" or value.__doc__
