"""Results lie in memory as eager's do, for inputs in several orders of their dimensions."""

import pytest
import torch
import torch.nn.functional as F

import compile_api

PROGRAMS = {
    "masked_fill": lambda x: x.masked_fill(x > 0, 0.5),
    "masked_fill_": lambda x: x.clone().masked_fill_(x > 0, 0.5),
    "stack": lambda x: torch.stack([x, x * 2]),
    "stack inside": lambda x: torch.stack([x, x * 2], 2),
    "stack last": lambda x: torch.stack([x, x * 2], -1),
    "cat beside nothing": lambda x: torch.cat([x, x.new_ones(0)]) * 2,
    "roll": lambda x: x.roll(1, 1),
    "roll all the way": lambda x: x.roll(4, 1),
    "pad": lambda x: F.pad(x, (0, max(9 - x.size(-1), 0))),
    "softmax of a mask": lambda x: x.masked_fill(x > 0, -1.0).softmax(1),
}
ORDERS = {
    "channels last": lambda shape: torch.randn(shape[0], *shape[2:], shape[1]).movedim(-1, 1),
    "reversed": lambda shape: torch.randn(shape[::-1]).permute(*range(len(shape))[::-1]),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_strides_are_eagers(name, order, dynamic):
    program = PROGRAMS[name]
    compile_api.reset()
    compiled = compile_api.compile(
        program, dynamic=dynamic, backend="aot_eager_decomp", fullgraph=True
    )
    for shape in ((2, 4, 5, 6), (3, 4, 7, 9), (2, 4, 3, 5, 6)):
        x = ORDERS[order](shape)
        ours, wanted = compiled(x), program(x)
        torch.testing.assert_close(ours, wanted)
        assert ours.stride() == wanted.stride(), shape


def test_max_pool1d_without_and_with_a_gradient():
    compiled = compile_api.compile(lambda x: F.max_pool1d(x, 2, 1), options={"strict": True})
    for gradient in (False, True):
        x = torch.randn(2, 5, 6).transpose(1, 2).detach().requires_grad_(gradient)
        assert compiled(x).stride() == F.max_pool1d(x, 2, 1).stride()
