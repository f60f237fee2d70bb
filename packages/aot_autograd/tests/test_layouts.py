"""Operators that restate a layout without moving an element."""

import torch

from aot_autograd import aot_function
from primtorch import decomposition_table


def test_pooling_to_one_place_keeps_the_memory_order_of_its_input():
    x = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last).requires_grad_()

    def pooled(value):
        return torch.nn.functional.adaptive_avg_pool2d(value, 1)

    compiled = aot_function(
        pooled,
        fw_compiler=lambda module, _: module.forward,
        decompositions=decomposition_table("inductor"),
    )
    ours, theirs = compiled(x), pooled(x)
    torch.testing.assert_close(ours, theirs)
    (ours_grad,) = torch.autograd.grad(ours.sum(), x)
    (theirs_grad,) = torch.autograd.grad(theirs.sum(), x)
    torch.testing.assert_close(ours_grad, theirs_grad)


def test_a_changed_view_of_one_element_keeps_its_stride(agree):
    def function(x):
        made = x.sin()
        one = made[:1, 0]
        return one.mul_(2)

    agree(function, lambda: (torch.randn(3, 4),))
