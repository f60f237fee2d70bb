"""A graph that fails inside an autocast region leaves autocast as it was."""

import pytest
import torch

from aot_autograd import aot_function
from primtorch import decomposition_table
from primtorch.regions import enter_autocast


def test_a_failing_trace_restores_autocast():
    def fails(x):
        enter_autocast("cpu", torch.bfloat16)
        raise ValueError("in the middle of the region")

    compiled = aot_function(
        fails,
        fw_compiler=lambda graph, _: graph.forward,
        decompositions=decomposition_table("inductor"),
    )
    before = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    with pytest.raises(ValueError, match="in the middle"):
        compiled(torch.randn(3))
    assert (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")) == before
