"""`interpolate` of a batch that varies: two compiles for all batches, whatever torch's C++ asks of the sizes."""

import pytest
import torch
import torch.nn.functional as F

import dynamo
from dynamo.testing import CompileCounter, same

MODES = {
    "nearest": {}, "nearest-exact": {}, "bilinear": {"align_corners": False},
    "bicubic": {"align_corners": True}, "bilinear, antialiased": {"antialias": True},
    "linear": {}, "trilinear": {"align_corners": True},
}  # fmt: skip
RANK = {"linear": 1, "trilinear": 3}


@pytest.mark.parametrize("how", ["size", "scale_factor"])
@pytest.mark.parametrize("name", MODES)
def test_one_graph_for_all_batches(name, how):
    mode, rank = name.partition(",")[0], RANK.get(name, 2)
    wanted = {"size": (7,) * rank} if how == "size" else {"scale_factor": 1.5}

    def resize(x):
        return F.interpolate(x, mode=mode, **wanted, **MODES[name]) + 1

    counter = CompileCounter()
    counter.symbolic = True
    compiled = dynamo.optimize(counter, options=dynamo.DynamoOptions(strict=True))(resize)
    for batch in (2, 3, 4, 5):
        x = torch.randn(batch, 2, *[6] * rank)
        assert same(compiled(x), resize(x))
    assert counter.frame_count == 2


def test_a_size_that_varies_and_a_factor():
    def double(x):
        return F.interpolate(x, scale_factor=2.0, mode="bilinear")

    counter = CompileCounter()
    counter.symbolic = True
    compiled = dynamo.optimize(counter, options=dynamo.DynamoOptions(strict=True))(double)
    for side in (4, 5, 6, 7):
        x = torch.randn(2, 3, side, side + 1)
        assert same(compiled(x), double(x))
    assert counter.frame_count == 2
