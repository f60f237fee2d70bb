"""Tensors without elements among those of a function whose sizes change: no memory is read that isn't there."""

import pytest
import torch
import torch.nn.functional as F

import compile_api


def _doubled_halves(x):
    halves = x.narrow(0, 0, x.size(0) // 2).repeat_interleave(2, 0)
    return F.glu(torch.cat([halves, halves], 0), 0)


def _written(x):
    copy = x.expand(4, *x.shape).transpose(0, 1).clone()
    copy[:2].mul_(2)
    return copy


PROGRAMS = {
    "written": _written,
    "first element of nothing": _doubled_halves,
    "rolled": lambda x: x.roll(2, 0),
    "rolled as one": lambda x: x.roll(3) * 2,
    "filled": lambda x: x.index_fill(0, torch.tensor([0]), 0.5) if x.size(0) else x * 2,
    "filled beside": lambda x: x.index_fill(1, torch.tensor([0]), 0.5) if x.size(1) else x * 2,
}


@pytest.mark.parametrize("gradient", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_sizes_with_zero_among_them(name, gradient):
    program = PROGRAMS[name]
    compile_api.reset()
    compiled = compile_api.compile(program, options={"strict": True})
    for shape in ((0, 4), (7, 4), (5, 4), (0, 0), (6, 3), (4, 0)):
        x = torch.randn(shape, requires_grad=gradient)
        y = x.detach().clone().requires_grad_(gradient)
        try:
            wanted = program(y)
        except IndexError:
            with pytest.raises(IndexError):
                compiled(x)
            continue
        ours = compiled(x)
        torch.testing.assert_close(ours, wanted)
        if gradient:
            ours.sum().backward()
            wanted.sum().backward()
            torch.testing.assert_close(x.grad, y.grad)
