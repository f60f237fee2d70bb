"""Oldest makers of tensors: a `torch.Size` and numbers are a size, any other sequence is data, types are dtypes."""

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter, same

PROGRAMS = {
    "new of a shape": lambda x: x.new(x.shape).zero_(),
    "new of a part of a shape": lambda x: x.new(x.shape[:1]).fill_(2),
    "new of a sum of sizes": lambda x: x.new(torch.Size((2,)) + x.shape).zero_(),
    "new of no size": lambda x: x.new(torch.Size([])).zero_(),
    "new of numbers": lambda x: x.new(x.size(0), 3).zero_(),
    "new on a device": lambda x: x.double().new(x.shape, device="cpu").zero_(),
    "new of a tuple": lambda x: x.new((2, 3)),
    "new of a list": lambda x: x.new([1, 2.5]),
    "new of nothing": lambda x: x.new(),
    "Tensor of a shape": lambda x: torch.Tensor(x.shape).zero_(),
    "Tensor of numbers": lambda x: torch.Tensor(2, x.size(0)).fill_(1),
    "Tensor of a list": lambda x: torch.Tensor([1, 2, 3]) + x[0],
    "a named dtype and a shape": lambda x: torch.DoubleTensor(x.size()).zero_(),
    "type by name": lambda x: x.type("torch.DoubleTensor"),
    "type by class": lambda x: x.type(torch.IntTensor) + 1,
    "type by dtype": lambda x: x.type(dtype=torch.float16),
    "type as it is": lambda x: x.type(torch.FloatTensor).add_(1),
    "type as a name": lambda x: x * len(x.type()),
    "a named dtype and a list": lambda x: torch.LongTensor([1, 2]),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "varying"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_sizes_and_data_are_told_apart(name, dynamic):
    program = PROGRAMS[name]
    counter = CompileCounter()
    options = dynamo.DynamoOptions(strict=True)
    compiled = dynamo.optimize(counter, options=options, fullgraph=True, dynamic=dynamic)(program)
    for rows in (4, 5):
        x = torch.ones(rows, 3)
        assert same(compiled(x), program(x))
    if dynamic:
        assert counter.frame_count == 1


def test_a_type_elsewhere_is_a_break_with_a_reason():
    def program(x):
        return (x * 2).type("torch.cuda.FloatTensor")

    with pytest.raises(dynamo.CaptureError, match=r"Tensor.type\('torch.cuda.FloatTensor'\)"):
        dynamo.optimize(CompileCounter(), fullgraph=True)(program)(torch.ones(2))
