"""explain, export, reset, marks."""

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter

STRICT = dynamo.DynamoOptions(strict=True)


def stopping(x):
    y = x + 1
    dynamo.graph_break()
    return y * 2


def test_explain_tells_graphs_and_breaks():
    report = dynamo.explain(stopping)(torch.ones(2))
    assert report.graph_count == 2
    assert len(report.breaks) == 1
    assert "dynamo.graph_break()" in report.breaks[0]
    assert "[requested]" in report.breaks[0]


def test_export_gives_one_graph_with_guards():
    exported = dynamo.export(lambda x, y: x @ y)(torch.ones(2, 3), torch.ones(3, 2))
    assert exported.graph_module(torch.ones(2, 3), torch.ones(3, 2))[0].tolist() == [[3, 3], [3, 3]]
    assert exported.guards
    with pytest.raises(dynamo.CaptureError, match="requested"):
        dynamo.export(stopping)(torch.ones(2))


def test_reset_forgets():
    counter = CompileCounter()
    compiled = dynamo.optimize(counter, options=STRICT)(lambda x: x + 1)
    compiled(torch.ones(2))
    compiled(torch.ones(2))
    assert counter.frame_count == 1
    dynamo.reset()
    compiled(torch.ones(2))
    assert counter.frame_count == 2


def test_marked_sizes():
    counter = CompileCounter()
    compiled = dynamo.optimize(counter, options=STRICT)(lambda x: x * x.shape[0])
    for n in (3, 4, 5):
        x = torch.ones(n)
        dynamo.mark_dynamic(x, 0, min=2, max=10)
        assert torch.equal(compiled(x), x * n)
    assert counter.frame_count == 1
    with pytest.raises(dynamo.UsageError, match="outside"):
        dynamo.mark_dynamic(torch.ones(20), 0, max=10)
    with pytest.raises(dynamo.UsageError, match="dimension 3"):
        dynamo.mark_dynamic(torch.ones(2), 3)


def test_backend_that_raises_is_named():
    def broken(gm, example_inputs):
        raise ValueError("no code today")

    with pytest.raises(dynamo.BackendCompilerFailed, match="broken raised ValueError") as error:
        dynamo.optimize(broken)(lambda x: x + 1)(torch.ones(2))
    assert isinstance(error.value.__cause__, ValueError)


def test_backend_that_returns_no_callable_is_named():
    with pytest.raises(dynamo.BackendError, match="not a callable"):
        dynamo.optimize(lambda gm, example_inputs: 3)(lambda x: x + 1)(torch.ones(2))


def test_compiling_is_told_while_capturing():
    def function(x):
        return x + (2 if torch.compiler.is_compiling() and dynamo.is_compiling() else 1)

    assert dynamo.optimize("eager", options=STRICT)(function)(torch.zeros(1)).item() == 2
    assert not dynamo.is_compiling()
