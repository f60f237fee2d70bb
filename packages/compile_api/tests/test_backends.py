"""Backends by name, by callable, by entry point; faults of a backend."""

import importlib.metadata
import warnings

import pytest
import torch

import compile_api
from compile_api import backends, errors


def function(x):
    return torch.relu(x) + 1


X = torch.linspace(-1, 1, 5)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "aot_eager_decomp", "inductor"])
def test_each_backend_of_ours_computes_what_eager_computes(backend):
    compiled = compile_api.compile(function, backend=backend)
    torch.testing.assert_close(compiled(X), function(X))
    x = X.clone().requires_grad_()
    y = X.clone().requires_grad_()
    compiled(x).sum().backward()
    function(y).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    assert compile_api.graph_count() >= 1


def test_they_are_listed():
    assert {"eager", "aot_eager", "aot_eager_decomp", "inductor"} <= set(
        compile_api.list_backends()
    )


def test_a_callable_gets_graph_real_inputs_and_its_own_options():
    seen = {}

    def mine(graph, inputs, *, options=None):
        seen.update(graph=graph, inputs=inputs, options=options)
        return graph.forward

    compiled = compile_api.compile(function, backend=mine, options={"level": 3})
    torch.testing.assert_close(compiled(X), function(X))
    assert isinstance(seen["graph"], torch.fx.GraphModule)
    assert [type(value) for value in seen["inputs"]] == [torch.Tensor]
    assert seen["options"] == {"level": 3}
    assert compile_api.graph_count() == 1


def test_a_registered_name(monkeypatch):
    monkeypatch.setattr(backends, "_REGISTERED", {})
    compile_api.register_backend("double", lambda graph, _: lambda *args: [2 * graph(*args)[0]])
    torch.testing.assert_close(compile_api.compile(function, backend="double")(X), 2 * function(X))


class Distribution:
    """What an entry point tells of where it comes from."""

    name = "compile-api-broken"


def test_an_entry_point_is_found_and_a_broken_one_is_named(monkeypatch, golden):
    good = importlib.metadata.EntryPoint(
        "lazy", "compile_api_test_entry:make", "compile_api.backends"
    )
    broken = importlib.metadata.EntryPoint("broken", "no_such_module:x", "compile_api.backends")
    monkeypatch.setattr(
        importlib.metadata,
        "entry_points",
        lambda **_: importlib.metadata.EntryPoints([good, broken]),
    )
    monkeypatch.setattr(
        importlib.metadata.EntryPoint, "dist", property(lambda _self: Distribution), raising=False
    )
    assert {"lazy", "broken"} <= set(compile_api.list_backends())
    with pytest.raises(errors.BackendUnavailable) as caught:
        compile_api.compile(function, backend="broken")
    assert f"{caught.value}\n" == golden


def failing(graph, inputs):
    raise KeyError("a fault of the backend")


def test_a_fault_raises_in_strict_mode(monkeypatch):
    monkeypatch.setenv("COMPILE_API_STRICT", "1")
    with pytest.raises(Exception, match="a fault of the backend"):
        compile_api.compile(function, backend=failing)(X)


def test_otherwise_the_graph_runs_eagerly_with_one_warning(monkeypatch):
    monkeypatch.setenv("COMPILE_API_STRICT", "0")
    compiled = compile_api.compile(function, backend=failing)
    with pytest.warns(errors.CompileWarning) as caught:
        torch.testing.assert_close(compiled(X), function(X))
    assert len(caught) == 1
    text = str(caught[0].message)
    assert "KeyError: 'a fault of the backend'" in text
    assert f"from {__file__}:" in text
    assert "this graph runs eagerly" in text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(compiled(X + 1), function(X + 1))


def test_what_the_program_raises_is_what_eager_raises():
    def wrong(x):
        return x @ torch.ones(7, 7)

    with pytest.raises(RuntimeError) as eager:
        wrong(X)
    with pytest.raises(RuntimeError) as compiled:
        compile_api.compile(wrong)(X)
    assert type(compiled.value) is type(eager.value)
    assert str(compiled.value).splitlines()[0] == str(eager.value).splitlines()[0]


def test_a_backward_that_cannot_be_compiled_runs_eagerly_with_a_warning(monkeypatch):
    whole = compile_api.wiring.compile_fx

    def refusing(graph, inputs, **arguments):
        if graph.meta["role"] == "backward":
            raise ArithmeticError("no kernel for this")
        return whole(graph, inputs, **arguments)

    monkeypatch.setenv("COMPILE_API_STRICT", "0")
    monkeypatch.setattr(compile_api.wiring, "compile_fx", refusing)
    x = torch.randn(4, requires_grad=True)
    # The worker warns in a thread of its own, which pytest sees as well.
    with pytest.warns(errors.CompileWarning, match="this backward runs eagerly"):
        compile_api.compile(lambda x: x.sin())(x).sum().backward()
    torch.testing.assert_close(x.grad, x.cos())
    strict = compile_api.compile(lambda x: x.tan(), options={"strict": True})
    out = strict(x).sum()
    with pytest.raises(errors.CompilationFailed, match="no kernel for this"):
        out.backward()
