"""Functions that write to an argument and return it are part of the graph, however they are told to."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import dynamo
from dynamo.testing import CompileCounter, same

X = torch.linspace(-2, 2, 12).reshape(1, 3, 2, 2)

FUNCTIONS = {
    "relu by keyword": lambda x: functional.relu(x * 1, inplace=True) + 0,
    "relu by position": lambda x: functional.relu(x * 1, True),
    "relu module": nn.ReLU(inplace=True),
    "hardtanh": lambda x: functional.hardtanh(x * 2, inplace=True),
    "leaky relu": lambda x: functional.leaky_relu(x.clone(), 0.1, True),
    "the argument itself": lambda x: functional.elu(x, inplace=True),
    "a no-op comes back": lambda x: x.contiguous().to(torch.float32) + 1,
    "then read": lambda x: (functional.relu(y := x + 1, True), y.sum())[1],
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_values_and_the_argument_are_eagers(name, mode):
    function = FUNCTIONS[name]
    expected_input, actual_input = X.clone(), X.clone()
    with mode():
        expected = function(expected_input)
        actual = dynamo.optimize("eager", fullgraph=True)(function)(actual_input)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(actual_input, expected_input)


@pytest.mark.parametrize(
    "write",
    [
        lambda x, o, p: torch.add(x, 1, out=o),
        lambda x, o, p: torch.take(x, p.long() % 2, out=o),
        lambda x, o, p: torch.sort(x, out=(o, p)),
        lambda x, o, p: (torch.sort(x, out=(o, p))[0] + 1).sum(),
    ],
)
def test_an_out_argument_that_is_an_input_is_written(write):
    x = torch.tensor([3.0, 1.0, 2.0])
    results = []
    for function in (write, dynamo.optimize("eager")(write)):
        o, p = torch.zeros(3), torch.zeros(3, dtype=torch.int64)
        result = function(x, o, p)
        results.append((o, p, result))
    torch.testing.assert_close(results[1], results[0])
    assert results[0][0].any()


@pytest.mark.filterwarnings("ignore:An output with one or more")
def test_an_out_tensor_that_gets_another_shape_is_seen_in_it():
    def program(x, y):
        torch.sin(x, out=y)
        return y.t() if y.dim() == 2 else y.sum()

    expected, found = torch.ones(4), torch.ones(4)
    x = torch.arange(6.0).view(2, 3)
    want = program(x, expected)
    got = dynamo.optimize(lambda graph, _: graph.forward)(program)(x, found)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    "places", [((0, 1), (1, 0)), ((1, 0), (0, 1)), ((0, 1), (0, 2)), ((0, 1), (0, 0))]
)
def test_windows_of_one_tensor_that_is_written_are_guarded_by_where_they_lie(places):
    def program(first, second):
        first.add_(second * 2)
        return first.sum()

    counter = CompileCounter()
    compiled = dynamo.optimize(counter)(program)
    for number, (one, other) in enumerate((*places, *places)):
        given, expected = torch.arange(10.0), torch.arange(10.0)
        found = compiled(given[one : one + 8], given[other : other + 8])
        assert same(found, program(expected[one : one + 8], expected[other : other + 8]))
        assert same(given, expected)
        assert counter.frame_count == min(number + 1, 2)


def test_windows_of_a_longer_tensor_are_another_entry():
    def program(first, second):
        first.mul_(2)
        return second + 1

    counter = CompileCounter()
    compiled = dynamo.optimize(counter)(program)
    for length in (8, 12, 8):
        given, expected = torch.arange(float(length)), torch.arange(float(length))
        assert same(compiled(given[:4], given[2:6]), program(expected[:4], expected[2:6]))
        assert same(given, expected)
    assert counter.frame_count == 2
