"""`reset` forgets entries; a compiled function looks like the function it stands for."""

import inspect

import torch

import dynamo


def scaled(x, factor: float = 2.0):
    """Scales."""
    return x * factor


class Holder:
    def method(self, x, *, shift: int = 1):
        return x + shift


def test_reset_captures_anew():
    graphs = []
    captured = dynamo.optimize(lambda graph, _: graphs.append(graph) or graph.forward)(scaled)
    captured(torch.ones(2))
    captured(torch.ones(2))
    assert len(graphs) == 1
    dynamo.reset()
    captured(torch.ones(2))
    assert len(graphs) == 2


def test_name_document_and_signature_are_kept():
    captured = dynamo.optimize("eager")(scaled)
    assert (captured.__name__, captured.__doc__) == ("scaled", "Scales.")
    assert inspect.signature(captured) == inspect.signature(scaled)
    bound = dynamo.optimize("eager")(Holder().method)
    assert inspect.signature(bound) == inspect.signature(Holder().method)


def test_disable_takes_a_reason():
    @dynamo.disable(reason="it prints")
    def outside(x):
        return x + 1

    assert outside(1) == 2


def test_a_program_may_reset_while_it_runs():
    @dynamo.disable
    def forget():
        dynamo.reset()

    def f(x):
        y = x + 1
        forget()
        return y * 2

    compiled = dynamo.optimize("eager", options=dynamo.DynamoOptions(strict=True))(f)
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 4.0))
