"""explain, export, reset, marks."""

import time

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


class _Hungry(CompileCounter):
    """Compiling takes long."""

    def __call__(self, gm, example_inputs):
        time.sleep(0.02)
        return super().__call__(gm, example_inputs)


def test_past_the_limit_only_what_pays_is_compiled_and_one_warning_says_so(caplog):
    def function(x, mode):
        return x + len(mode)

    counter = _Hungry()
    options = dynamo.DynamoOptions(strict=True, recompile_limit=3)
    compiled = dynamo.optimize(counter, options=options)(function)
    x = torch.randn(3)
    with caplog.at_level("WARNING", logger="dynamo"):
        for n in range(12):
            assert torch.equal(compiled(x, "m" * n), x + n)
    assert counter.frame_count == 3
    assert len(caplog.records) == 1
    assert "mode: expected 'mm', found 'mmmm'" in caplog.text


def test_past_the_limit_what_saves_time_is_compiled():
    def function(x, mode):
        if not dynamo.is_compiling():
            time.sleep(0.03)  # eager takes long
        return x + len(mode)

    counter = CompileCounter()
    options = dynamo.DynamoOptions(strict=True, recompile_limit=2)
    compiled = dynamo.optimize(counter, options=options)(function)
    x = torch.randn(3)
    for n in range(8):
        for _ in range(20):
            assert torch.equal(compiled(x, "m" * n), x + n)
    assert counter.frame_count == 8


def test_a_recompile_is_logged_with_old_and_new_value(caplog):
    compiled = dynamo.optimize("eager")(lambda x, mode: x + len(mode))
    with caplog.at_level("INFO", logger="dynamo"):
        compiled(torch.ones(2), "train")
        compiled(torch.ones(2), "test")
    assert "mode: expected 'train', found 'test'" in caplog.text


def test_several_results_come_back_in_torchs_own_type():
    def function(x, pair):
        return torch.max(x, 0), pair, pair.indices + 1, torch.broadcast_shapes(())

    x = torch.randn(3, 4)
    pair = torch.sort(x)
    found = dynamo.optimize("eager")(function)(x, pair)
    expected = function(x, pair)
    assert type(found[0]) is torch.return_types.max
    assert type(found[1]) is torch.return_types.sort
    assert found[0].indices.equal(expected[0].indices)
    assert found[2].equal(expected[2])
    assert found[3] == torch.Size(())
