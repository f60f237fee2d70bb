"""The public names: each exists, each is used in a test, and what the others leave out is tried here."""

import re
from pathlib import Path

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter, same

STRICT = dynamo.DynamoOptions(strict=True)
HERE = Path(__file__).parent
X = torch.ones(3)


def compiled_with(function, backend="eager", **settings):
    return dynamo.optimize(backend, options=STRICT, **settings)(function)


def test_every_public_name_exists() -> None:
    assert [name for name in dynamo.__all__ if not hasattr(dynamo, name)] == []
    assert sorted(dynamo.__all__) == list(dynamo.__all__)


def test_every_public_name_is_used_in_a_test() -> None:
    text = "\n".join(path.read_text() for path in HERE.rglob("*.py"))
    used = set(re.findall(r"dynamo\.(\w+)", text))
    assert set(dynamo.__all__) - used == set()
    assert re.fullmatch(r"\d+\.\d+.*", dynamo.__version__)


def test_what_explain_and_export_give():
    report = dynamo.explain(lambda x: x + 1)(X)
    assert isinstance(report, dynamo.CaptureReport)
    assert (report.graph_count, report.breaks) == (1, ())
    assert report.guards
    assert "entry" in report.sources[0]
    exported = dynamo.export(lambda x: x + 1)(X)
    assert isinstance(exported, dynamo.Exported)
    assert same(exported.graph_module(X)[0], X + 1)
    with pytest.raises(dynamo.UsageError, match="no graph to export"):
        dynamo.export(lambda x: x)(X)


def test_the_errors_are_one_tree():
    assert issubclass(dynamo.UsageError, ValueError)
    assert dynamo.BackendCompilerFailed is dynamo.BackendError
    for error in (
        dynamo.BackendError, dynamo.CaptureError, dynamo.InternalError, dynamo.RecompileRefused,
        dynamo.UsageError,
    ):  # fmt: skip
        assert issubclass(error, dynamo.DynamoError)
    titles = [reason.title for reason in dynamo.BreakReason]
    assert len(set(titles)) == len(titles)
    assert all(reason.remedy for reason in dynamo.BreakReason)


# -- what runs outside ---------------------------------------------------------------------------------


def inner(x):
    return x * 3


def outer(x):
    return inner(x) + 1


def test_disable_with_and_without_what_is_called():
    """Recursive: nothing below is captured. Not recursive: the function isn't, what it calls is."""
    for recursive, graphs in ((True, 2), (False, 3)):
        counter = CompileCounter()
        stopped = dynamo.disable(outer, recursive=recursive)
        compiled = compiled_with(lambda x, f=stopped: f(x + 1) * 2, counter)
        for _ in range(2):
            assert same(compiled(X), outer(X + 1) * 2)
        assert counter.frame_count == graphs
        dynamo.reset()


def test_disable_as_a_decorator_with_a_reason():
    @dynamo.disable(reason="it talks to a server")
    def talks(x):
        return x.tolist()

    report = dynamo.explain(lambda x: talks(x + 1))(X)
    assert "it talks to a server" in report.breaks[0]
    with pytest.raises(dynamo.CaptureError, match="it talks to a server"):
        compiled_with(lambda x: talks(x + 1), fullgraph=True)(X)


def test_allow_in_graph_makes_one_node():
    @dynamo.allow_in_graph
    def whole(x, *, scale):
        dynamo.graph_break()  # its body isn't captured
        return x * scale

    counter = CompileCounter()
    compiled = compiled_with(lambda x: whole(x + 1, scale=2.0) - 1, counter, fullgraph=True)
    assert same(compiled(X), (X + 1) * 2 - 1)
    assert counter.frame_count == 1
    assert whole in [node.target for node in counter.graphs[0].graph.nodes]


def test_graph_break_outside_of_capture_does_nothing():
    assert dynamo.graph_break() is None


# -- regions -------------------------------------------------------------------------------------------


def breaks_in_a_region(x, allowed):
    y = x + 1
    with dynamo.error_on_graph_break(not allowed):
        y = y * 2
        dynamo.graph_break()
        y = y + 3
    return y * 5


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_region_says_whether_breaks_are_errors(fullgraph):
    compiled = compiled_with(breaks_in_a_region, fullgraph=fullgraph)
    for _ in range(2):
        assert same(compiled(X, True), breaks_in_a_region(X, True))
    with pytest.raises(dynamo.CaptureError, match="requested"):
        compiled(X, False)


def test_a_region_ends_where_its_block_ends():
    def function(x):
        y = breaks_in_a_region(x, True)
        dynamo.graph_break()
        return y

    with pytest.raises(dynamo.CaptureError, match="while capturing <resume function>"):
        compiled_with(function, fullgraph=True)(X)
    assert same(compiled_with(function)(X), function(X))


def test_a_region_of_a_called_function_is_not_its_callers():
    def function(x):
        with dynamo.error_on_graph_break(True):
            y = breaks_in_a_region(x, True)
            dynamo.graph_break()
        return y

    with pytest.raises(dynamo.CaptureError, match="while capturing <resume function>"):
        compiled_with(function)(X)


def test_a_region_as_a_decorator_and_left_by_an_exception():
    @dynamo.error_on_graph_break(False)
    def broken(x):
        dynamo.graph_break()
        return x + 1

    assert same(compiled_with(lambda x: broken(x) * 2, fullgraph=True)(X), (X + 1) * 2)

    def leaves(x):
        try:
            with dynamo.error_on_graph_break(False):
                {}["none"]
        except KeyError:
            x = x + 1
        dynamo.graph_break()
        return x

    with pytest.raises(dynamo.CaptureError, match="requested"):
        compiled_with(leaves, fullgraph=True)(X)
    with pytest.raises(dynamo.UsageError, match="True or False, not 3"):
        dynamo.error_on_graph_break(3)


# -- what is compiling ---------------------------------------------------------------------------------


def test_libraries_are_told_that_they_are_captured():
    def function(x):
        told = [dynamo.is_compiling(), torch.compiler.is_compiling()]
        told.append(torch.compiler.is_dynamo_compiling())
        return x + sum(told)

    assert same(compiled_with(function)(X), X + 3)
    assert not any((dynamo.is_compiling(), torch.compiler.is_compiling()))


def test_transformers_is_told_that_it_is_captured():
    checks = pytest.importorskip("transformers.utils.import_utils")

    def function(x):
        return x + (1 if checks.is_torchdynamo_compiling() else 0)

    assert same(compiled_with(function)(X), X + 1)
    assert not checks.is_torchdynamo_compiling()


# -- backends ------------------------------------------------------------------------------------------


def test_backends_by_name():
    seen = []

    @dynamo.register_backend(name="counting_for_a_test")
    def counting(graph_module, example_inputs):
        seen.append(len(example_inputs))
        return graph_module.forward

    assert "counting_for_a_test" in dynamo.list_backends()
    assert dynamo.lookup_backend("counting_for_a_test") is counting
    assert same(compiled_with(lambda x, y: x + y, "counting_for_a_test")(X, X + 1), X + X + 1)
    assert seen == [2]
    assert dynamo.register_backend(counting, "counting_for_a_test") is counting
    with pytest.raises(dynamo.UsageError, match="registered already"):
        dynamo.register_backend(lambda graph, inputs: graph, "counting_for_a_test")


# -- sizes ---------------------------------------------------------------------------------------------


def test_a_size_that_is_marked_static_is_compiled_for_each_value():
    counter = CompileCounter()
    compiled = compiled_with(lambda x: x * 2, counter)
    for n in (3, 4, 5):
        x = torch.ones(n)
        dynamo.mark_static(x)
        assert same(compiled(x), x * 2)
    assert counter.frame_count == 3


def multiplied(x):
    return x @ torch.ones(4, 2)


def of_its_size(x):
    return x * x.shape[0]


def normalized(x):
    return torch.nn.functional.layer_norm(x, (4,)).relu()


def added_up(x):
    return torch.cat([x, x]).sum(0)


@pytest.mark.parametrize("function", [multiplied, of_its_size, normalized, added_up])
def test_an_unbacked_size_may_be_anything(function):
    counter = CompileCounter()
    compiled = compiled_with(function, counter, fullgraph=True)
    for n in (5, 1, 0, 3):
        x = torch.randn(n, 4)
        dynamo.mark_unbacked(x, 0)
        assert same(compiled(x), function(x))
    assert counter.frame_count == 1


def test_a_question_about_an_unbacked_size_is_a_break():
    def function(x):
        y = x * 2
        return y if x.shape[0] == 1 else y + 1

    for n in (3, 1):
        x = torch.randn(n, 4)
        dynamo.mark_unbacked(x, 0)
        assert same(compiled_with(function)(x), function(x))
        with pytest.raises(dynamo.CaptureError, match=r"(?s)data-dependent.*x\.shape\[0\] == 1"):
            compiled_with(function, fullgraph=True)(x)


# -- testing -------------------------------------------------------------------------------------------


def test_the_counting_backend_counts_graphs_and_operations():
    counter = CompileCounter()
    compiled = compiled_with(lambda x: (x + 1).relu() * 2, counter)
    compiled(X)
    compiled(X)
    assert (counter.frame_count, counter.op_count) == (1, 3)


def test_same_tells_apart_what_differs():
    assert same([X, {"a": (1.0, X)}], [X.clone(), {"a": (1.0, X + 1e-7)}])
    for one, other in (
        (X, X.double()),
        (X, X[:2]),
        (X, X + 1),
        ([X], (X,)),
        ({"a": 1}, {"b": 1}),
        ((1,), (1, 2)),
        (1, 1.0),
    ):
        assert not same(one, other)
    assert same(float("nan"), float("nan"))
