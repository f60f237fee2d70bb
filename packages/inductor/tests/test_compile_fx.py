"""The public face: what compile_fx promises, refuses, shows, and survives."""

import logging

import pytest
import torch
import torch.nn.functional as F

import inductor
from inductor import InductorOptions, WireError, compile_fx, pipeline

X = torch.randn(4, 8)
INTERPRETED = InductorOptions(executor="interpreter", strict=True, verify=True)


def test_the_callable_is_boxed_and_tells_its_layouts(traced):
    compiled = compile_fx(traced(lambda x: (F.softmax(x, -1), x.t() * 2), X), options=INTERPRETED)
    assert compiled.boxed
    assert compiled.output_layouts == ((8, 1), (1, 8))
    arguments = [X]
    first, second = compiled(arguments)
    assert arguments == []
    torch.testing.assert_close(first, torch.softmax(X, -1))
    torch.testing.assert_close(second, X.t() * 2)


@pytest.mark.cxx
def test_native_kernels_compute_the_same(traced):
    gm = traced(lambda x: F.layer_norm(F.gelu(x), (8,)).sum(0), X)
    compiled = compile_fx(gm, options=InductorOptions(strict=True))
    torch.testing.assert_close(compiled([X])[0], F.layer_norm(F.gelu(X), (8,)).sum(0))


@pytest.mark.cxx
def test_kernels_write_over_what_the_library_made(traced):
    """A product of two dimensions over which an image of three is written, and a result that is such a product."""
    x, w, v = torch.randn(2, 40, 64), torch.randn(64, 96) * 0.1, torch.randn(96, 64) * 0.1
    image, filters = torch.randn(2, 8, 24, 24), torch.randn(8, 8, 3, 3)

    def function(x, w, v, image, filters):
        hidden = F.gelu((x.reshape(80, 64) @ w).reshape(2, 40, 96))
        low = torch.relu((hidden.reshape(80, 96) @ v).reshape(2, 40, 64) + x)
        kept = torch.conv2d(image, filters, padding=1)
        return low.sum(1), (low.reshape(80, 64) @ w).tanh(), kept, torch.relu(kept), kept.flip(0)

    inputs = [x, w, v, image, filters]
    before = [tensor.clone() for tensor in inputs]
    compiled = compile_fx(traced(function, *inputs), options=InductorOptions(strict=True))
    for _ in range(2):
        results = compiled(list(inputs))
        for ours, theirs in zip(results, function(*before), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
            assert ours.stride() == theirs.stride()
        assert len({result.data_ptr() for result in results}) == len(results)
    assert all(map(torch.equal, inputs, before))


def test_stages_are_shown_to_an_observer(traced):
    seen = {}
    compile_fx(traced(lambda x: x + 1, X), options=INTERPRETED, observer=seen.__setitem__)
    assert list(seen) == ["06_loops.txt", "07_schedule.txt"]
    assert "store" in seen["06_loops.txt"]
    assert seen["07_schedule.txt"].startswith("kernel k0(")


def graph_with(target, *, mutable=False):
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = X
    node = graph.call_function(target, (x,))
    node.meta["val"] = X
    node.meta["source_line"] = ("model.py", 41, "forward", "y = weird(x)")
    graph.output((node,))
    return torch.fx.GraphModule({}, graph)


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        (torch.relu, "is no operator overload"),
        (torch.ops.aten.relu_.default, "mutates its operands"),
    ],
)
def test_what_breaks_the_wire_is_refused_with_the_users_line(target, problem):
    with pytest.raises(WireError, match=problem) as caught:
        compile_fx(graph_with(target))
    assert "model.py:41" in str(caught.value)


def test_another_wire_version_is_refused(traced):
    gm = traced(lambda x: x + 1, X)
    gm.meta["wire"] = 2
    with pytest.raises(WireError, match="wire version 2"):
        compile_fx(gm)


def test_an_output_that_is_no_tuple_is_refused():
    gm = graph_with(torch.ops.aten.relu.default)
    (output,) = [node for node in gm.graph.nodes if node.op == "output"]
    output.args = (output.args[0][0],)
    with pytest.raises(WireError, match="no tuple"):
        compile_fx(gm)


def test_a_fault_of_ours_warns_and_runs_operator_by_operator(traced, monkeypatch, caplog):
    def broken(*_):
        raise AssertionError("a fault of ours")

    stages = (*pipeline.STAGES[:1], pipeline.Stage("lower to loops", broken))
    monkeypatch.setattr(pipeline, "STAGES", stages)
    gm = traced(lambda x: x * 2 + 1, X)
    with caplog.at_level(logging.WARNING, logger="inductor"):
        compiled = compile_fx(gm)
    assert "a fault of ours" in caplog.text
    assert compiled.output_layouts == ((8, 1),)
    torch.testing.assert_close(compiled([X])[0], X * 2 + 1)
    with pytest.raises(AssertionError, match="a fault of ours"):
        compile_fx(gm, options=InductorOptions(strict=True))


def test_unfused_and_unrounded_are_options(traced):
    x = X.bfloat16()
    gm = traced(lambda x: (x * 1.7 + x).exp(), x)
    exact = compile_fx(gm, options=INTERPRETED)([x])[0]
    assert torch.equal(exact, (x * 1.7 + x).exp())
    loose = InductorOptions(executor="interpreter", round_halves=False, fuse=False)
    wide = (x.float() * 1.7 + x.float()).exp().bfloat16()
    assert torch.equal(compile_fx(gm, options=loose)([x])[0], wide)


def test_public_names_are_the_documented_ones():
    assert inductor.__all__ == sorted(inductor.__all__)


def test_the_compiler_of_the_options_is_the_one_that_is_used(traced, caplog):
    gm = traced(lambda x: x * 2 + 1, X)
    with caplog.at_level(logging.WARNING, logger="inductor"):
        compiled = compile_fx(gm, options=InductorOptions(compiler="/nowhere/of-the-options"))
    assert "CXX='/nowhere/of-the-options'" in caplog.text
    torch.testing.assert_close(compiled([X])[0], X * 2 + 1)


def test_positions_are_compared_with_values_beyond_32_bits(traced):
    def one_hot(x):
        mask = torch.arange(300)[None] == x[:, None]
        return mask, (x[:, None] != torch.arange(300)[None]).sum(1)

    x = torch.tensor([-1, 0, 5, 299, 300, 2**32 + 5, -(2**32), 2**31, 2**62])
    for ours, eager in zip(compile_fx(traced(one_hot, x))([x]), one_hot(x), strict=True):
        assert torch.equal(ours, eager)


def test_what_is_no_graph_is_refused():
    with pytest.raises(WireError, match="a Linear is no torch.fx.GraphModule"):
        compile_fx(torch.nn.Linear(2, 2))
