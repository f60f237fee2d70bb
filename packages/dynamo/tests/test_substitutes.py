"""Functions whose result is assumed constant, and functions that other code stands for."""

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter, same

STRICT = dynamo.DynamoOptions(strict=True)


def compiled_with(function):
    counter = CompileCounter()
    return counter, dynamo.optimize(counter, options=STRICT, fullgraph=True)(function)


@pytest.mark.parametrize("result", [3, [1, 2], torch.tensor([5.0, 6.0])])
def test_a_result_is_taken_once(result):
    calls = []

    @dynamo.assume_constant_result
    def settings(key):
        calls.append(key)
        return result

    def function(x):
        found = settings("scale")
        return x * (sum(found) if isinstance(found, list) else found)

    counter, compiled = compiled_with(function)
    x = torch.randn(2)
    found = [compiled(x) for _ in range(3)]
    assert calls == ["scale"]
    assert counter.frame_count == 1
    assert all(same(each, function(x)) for each in found)


def test_a_method_is_called_on_the_object_itself():
    class Model(torch.nn.Module):
        seen = None

        @dynamo.assume_constant_result
        def width(self):
            type(self).seen = self
            return 4

        def forward(self, x):
            return x.view(-1, self.width())

    model = Model()
    _, compiled = compiled_with(model)
    assert compiled(torch.randn(8)).shape == (2, 4)
    assert Model.seen is model


def test_other_code_stands_for_a_function():
    def opaque(x, *, by=2):
        return torch.from_numpy((x * by).numpy().copy())

    @dynamo.substitute_in_graph(opaque)
    def traceable(x, *, by=2):
        return x * by

    counter, compiled = compiled_with(lambda x: opaque(x, by=3) + opaque(x))
    x = torch.randn(4)
    for _ in range(2):
        assert same(compiled(x), x * 3 + x * 2)
    assert counter.frame_count == 1


def test_a_substitute_with_other_parameters_is_refused():
    def original(x, y):
        return x, y

    with pytest.raises(dynamo.UsageError, match="another signature"):
        dynamo.substitute_in_graph(original)(lambda x: x)
    dynamo.substitute_in_graph(original, skip_signature_check=True)(lambda x: x)
