"""Autocast around a call: a graph that fails in a region leaves it alone, second derivatives cast as the call did."""

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_second_derivatives_cast_as_the_call_did(dtype):
    """Also where the backward runs outside of the block."""
    products = []

    def compiler(graph, _):
        products.extend(
            node.meta["val"].dtype
            for node in graph.graph.nodes
            if node.target is torch.ops.aten.mm.default
        )
        return graph.forward

    found = []
    for one in (torch.mm, aot_function(torch.mm, fw_compiler=compiler)):
        torch.manual_seed(0)
        x, w = torch.randn(3, 3).to(dtype).requires_grad_(), torch.randn(3, 3, requires_grad=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = one(x, w)
        first = torch.autograd.grad(out.square().sum(), (x, w), create_graph=True)
        assert not torch.is_autocast_enabled("cpu")
        second = torch.autograd.grad(sum(one.square().sum() for one in first), (x, w))
        found.append([*first, *second])
    assert len(products) >= 6
    assert set(products) == {torch.bfloat16}
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=0.01, atol=0.01)
