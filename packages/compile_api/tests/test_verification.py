"""`options={"verify": True}` names the graph that differs, and changes nothing else."""

import pytest
import torch

import compile_api
from compile_api import errors
from compile_api.verification import verified

X = torch.linspace(-1, 1, 5)


def graph_of(function):
    return torch.fx.symbolic_trace(function)


def test_equal_results_pass_and_are_the_compiled_ones():
    graph = graph_of(lambda x: (x.relu(), x + 1))
    seen = []
    call = verified(graph, lambda *args: seen.append(len(args)) or graph(*args), 0)
    args = [X]
    torch.testing.assert_close(call(args)[0], X.relu())
    assert args == []
    assert seen == [1]


def test_another_value_is_named(golden):
    graph = graph_of(lambda x: (x.relu(), x + 1))
    call = verified(graph, lambda x: (x.relu(), x + 1.01), 3)
    with pytest.raises(errors.ResultDiffers) as caught:
        call([X])
    assert f"{caught.value}\n" == golden


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: (x.relu().double(),),
        lambda x: (x.relu()[:2],),
        lambda x: (x.relu().masked_fill(x > 0.9, float("nan")),),
        lambda x: (x.relu().masked_fill(x > 0.9, float("inf")),),
        lambda x: (None,),
    ],
)
def test_another_type_shape_or_special_value_is_found(wrong):
    with pytest.raises(errors.ResultDiffers):
        verified(graph_of(lambda x: (x.relu(),)), wrong, 0)([X])


def test_rounding_is_no_difference():
    graph = graph_of(lambda x: (x.softmax(0),))
    verified(graph, lambda x: (x.double().softmax(0).float(),), 0)([torch.randn(1000)])


def test_an_input_is_changed_once():
    graph = graph_of(lambda x: (x.add_(1),))
    x = torch.zeros(3)
    verified(graph, graph.forward, 0)([x])
    torch.testing.assert_close(x, torch.ones(3))
    with pytest.raises(errors.ResultDiffers, match="input 0, after the call"):
        verified(graph, lambda x: (x + 1,), 0)([torch.zeros(3)])


def test_as_an_option_of_compile():
    def noisy(x):
        return torch.nn.functional.dropout(x, 0.5) + 1

    compiled = compile_api.compile(noisy, options={"verify": True})
    torch.manual_seed(0)
    expected = noisy(X)
    torch.manual_seed(0)
    torch.testing.assert_close(compiled(X), expected)
