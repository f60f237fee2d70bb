"""A slice written into a copy of a tensor that overlaps itself: the places that share memory show it, as eager's."""

import pytest
import torch

import compile_api

WRITES = {
    "slice": lambda x: x.slice_scatter(torch.zeros_like(x[:1]), 0, 0, 1),
    "select": lambda x: x.select_scatter(torch.zeros_like(x[0]), 0, 0),
    "diagonal": lambda x: x.diagonal_scatter(torch.zeros_like(x.diagonal()), 0),
}


@pytest.mark.parametrize("steps", [(1, 1, 1), (2, 1, 1), (20, 3, 1), (24, 8, 1)])
@pytest.mark.parametrize("write", WRITES)
def test_the_window_is_what_remains(write, steps):
    function = WRITES[write]
    compile_api.reset()
    compiled = compile_api.compile(function)
    base = torch.linspace(0, 1, 80)
    for length in (7, 8, 6):
        x = base.as_strided((2, 3, length), steps, 1)
        found, wanted = compiled(x), function(x)
        assert torch.equal(found, wanted), length
        assert found.stride() == wanted.stride()
