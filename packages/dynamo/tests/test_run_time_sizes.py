"""`item`, `nonzero` and the like in one graph under the options, checked where the numbers are known."""

import sys
from pathlib import Path

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter, same

sys.path.append(str(Path(__file__).parent))

from run_time_programs import CALLS, OPTIONS, PROGRAMS, N, X, number, outcome

STRICT = dynamo.DynamoOptions(strict=True, **OPTIONS)


@pytest.mark.parametrize("program", PROGRAMS)
def test_one_graph(program):
    graphs = []

    def keep(module, inputs):  # its sizes are numbers: it is given the whole graph
        graphs.append(module)
        return module.forward

    compiled = dynamo.optimize(keep, fullgraph=True, options=STRICT)(program)
    for arguments in CALLS[:2]:
        assert same(outcome(compiled, arguments), outcome(program, arguments))
    assert len(graphs) == 1


def symbolic(seen):
    """A backend that takes symbolic sizes and runs the graph as it is."""

    def backend(module, inputs):
        seen.append(module)
        return module.forward

    backend.symbolic = True
    return backend


@pytest.mark.parametrize("program", PROGRAMS)
def test_in_stages(program):
    seen = []
    compiled = dynamo.optimize(symbolic(seen), fullgraph=True, options=STRICT)(program)
    for arguments in (*CALLS, *CALLS):
        assert same(outcome(compiled, arguments), outcome(program, arguments))
    assert seen
    for module in seen:
        targets = {str(node.target) for node in module.graph.nodes if node.op != "placeholder"}
        assert not targets & {"item", "nonzero", "masked_select"}


def test_without_the_options_they_break():
    for program in (number, PROGRAMS[7]):
        compiled = dynamo.optimize("eager", fullgraph=True)(program)
        with pytest.raises(dynamo.CaptureError, match="data-dependent"):
            compiled(X, N)


def test_a_branch_on_such_a_number_breaks():
    def program(x, n):
        k = n[0].item()
        y = x * k
        if k > 2:
            y = y + 1
        return y, k

    counter = CompileCounter()
    compiled = dynamo.optimize(counter, options=STRICT)(program)
    for arguments in CALLS[:2]:
        assert same(compiled(*arguments), program(*arguments))


def test_sizes_of_zero_and_one_are_versions_of_their_own():
    seen = []

    def program(x):
        return x[x > 0].expand(3, -1).sum(0)

    compiled = dynamo.optimize(symbolic(seen), fullgraph=True, dynamic=True, options=STRICT)(
        program
    )
    for count in (4, 5, 1, 0, 6, 1, 0):
        x = torch.cat([torch.zeros(7 - count), torch.ones(count)])
        assert same(compiled(x), program(x))
    stages = [m for m in seen if any("expand" in str(n.target) for n in m.graph.nodes)]
    assert len(stages) == 3


def test_gradients_pass_through():
    def program(x, w):
        y = (x * w)[x > 0]
        return (y * y.shape[0]).sum() * w.sum().detach().item()

    compiled = dynamo.optimize(symbolic([]), fullgraph=True, options=STRICT)(program)
    for x in (X, -X):
        w = torch.linspace(0, 1, 5, requires_grad=True)
        found, expected = compiled(x, w), program(x, w)
        assert same(found, expected)
        assert same(torch.autograd.grad(found, w), torch.autograd.grad(expected, w))


def test_a_bool_read_from_a_tensor_is_one_break_that_says_so():
    """As a model asks once whether any token is special, and branches on the answer in every layer."""

    def program(x, marks):
        special = marks.flatten().any().item()
        for _ in range(3):
            x = x * 2 if special else x + 1
        return x

    breaks = []
    compiled = dynamo.optimize(
        "eager",
        options=STRICT,
        observer=lambda name, text: breaks.append(text) if name == "break" else None,
    )(program)
    for marks in (torch.zeros(4), torch.ones(4)):
        assert same(compiled(X, marks > 0), program(X, marks > 0))
    assert len(breaks) == 1
    assert "a bool is read from a tensor; capture_scalar_outputs is for integers" in breaks[0]
