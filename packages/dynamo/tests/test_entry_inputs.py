"""The list of inputs goes to the graph as it is, whatever else an entry does with its inputs."""

import linecache

import pytest
import torch

import dynamo


def backend(graph, examples):
    def boxed(inputs):
        values = list(inputs)
        inputs.clear()
        return graph.forward(*values)

    boxed.boxed = True
    return boxed


def in_order(x, y):
    return x * 2 + y


def returned_too(x, y):
    return x, y, y + x


def with_an_object(x, box):
    box["seen"] = x
    box.setdefault("n", []).append(1)
    return x + 1


def nothing_for_the_graph(x, y):
    return y, x


def twice(x, y):
    return x + y, x - x


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(3))
        self.register_buffer("count", torch.zeros(()))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        self.count += 1
        for layer in self.layers:
            x = layer(x)
        return x, self.layers[1].weight


@pytest.mark.parametrize("function", [in_order, returned_too, nothing_for_the_graph, twice])
def test_values_are_eagers(function):
    x, y = torch.randn(3), torch.randn(3)
    compiled = dynamo.optimize(backend)(function)
    for _ in range(3):
        for got, want in zip(compiled(x, y), function(x, y), strict=True):
            torch.testing.assert_close(got, want)
    assert compiled(x, y)[0] is x or function is not returned_too


def test_an_object_that_the_graph_does_not_take():
    compiled = dynamo.optimize(backend)(with_an_object)
    box, x = {}, torch.ones(2)
    for _ in range(3):
        assert torch.equal(compiled(x, box), x + 1)
    assert box["seen"] is x
    assert box["n"] == [1, 1, 1]


def test_a_module_that_counts():
    torch.manual_seed(0)
    ours, eager = Counting(), Counting()
    eager.load_state_dict(ours.state_dict())
    compiled = dynamo.optimize(backend)(ours.forward)
    for _ in range(3):
        x = torch.randn(2, 3)
        (got, weight), (want, _) = compiled(x), eager(x)
        torch.testing.assert_close(got, want)
        assert weight is ours.layers[1].weight
    assert (ours.calls, ours.count.item()) == (3, 3)


def test_a_graph_with_the_inputs_as_they_are_gets_their_list():
    dynamo.optimize(backend)(in_order)(torch.ones(2), torch.ones(2))
    texts = [
        "".join(linecache.getlines(name))
        for name in list(linecache.cache)
        if name.startswith("<dynamo entry of in_order")
    ]
    assert texts
    assert all("graph(inputs)" in text for text in texts)
