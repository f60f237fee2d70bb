"""TorchScript inside a captured program: Python functions that were scripted, and what has no Python left."""

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter, same

STRICT = dynamo.DynamoOptions(strict=True)
X = torch.linspace(-2, 2, 8).reshape(2, 4)

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*torch.jit.*:DeprecationWarning", "ignore:.*torch.jit.*:FutureWarning"
)


def _bucketed(position, size: int, most: int):
    middle = size // 2
    near = torch.where(
        position < middle, torch.tensor(middle - 1).type_as(position), torch.abs(position)
    )
    return torch.ceil(
        torch.log(near / middle) / torch.log(torch.tensor((most - 1) / middle)) * (middle - 1)
    )


def _widened(x, like):
    return x.expand([like.size(0), x.size(-1)]), like.size(0)


class Layer(torch.nn.Module):
    """One linear layer."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        """Its positive part."""
        return torch.relu(self.linear(x))


@pytest.fixture(scope="module")
def scripted():
    """Two functions as TorchScript; some releases of torch warn of it."""
    return torch.jit.script(_bucketed), torch.jit.script(_widened)


def test_a_scripted_function_is_captured_as_the_function_it_was_made_of(scripted):
    bucketed, widened = scripted

    def program(x):
        places = torch.arange(4)[:, None] - torch.arange(4)[None, :]
        wide, count = widened(x[:1], x)
        return bucketed(places, 4, 9).to(torch.long), wide * count

    counter = CompileCounter()
    compiled = dynamo.optimize(counter, fullgraph=True, options=STRICT)(program)
    for _ in range(2):
        assert same(compiled(X), program(X))
    assert counter.frame_count == 1


def test_a_scripted_function_that_is_replaced_is_noticed(scripted):
    bucketed, _ = scripted
    names = {"function": bucketed}

    def program(x):
        return names["function"](x, 4, 9)

    compiled = dynamo.optimize("eager", options=STRICT)(program)
    assert same(compiled(X), program(X))
    names["function"] = lambda x, size, most: x * size + most
    assert same(compiled(X), program(X))


@pytest.mark.parametrize(
    "made", [torch.jit.script, lambda layer: torch.jit.trace(layer, X)], ids=["script", "trace"]
)
def test_compiled_modules_run_between_two_graphs(made):
    layer = made(Layer())

    def program(x):
        return layer(x + 1) * 2

    def by_method(x):
        return layer.forward(x + 1) * 2

    for function in (program, by_method):
        counter = CompileCounter()
        compiled = dynamo.optimize(counter, options=STRICT)(function)
        for _ in range(2):
            assert same(compiled(X), function(X))
        assert counter.frame_count == 2
