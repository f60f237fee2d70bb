"""Bounds and indices that vary and count from the end: read, written, differentiated, one compile for all."""

import pytest
import torch

import compile_api


def _write(x, k):
    x[-k:].mul_(2)
    return x


def _write_steps(x, k):
    x[-k::2] = 7.0
    x[-k:-1] += 1
    return x


def _write_row(x, k):
    x[-k] = 7.0
    return x


PROGRAMS = {
    "read": lambda x, k: (x[-k:] * 2, x[-k:-1].sin()),
    "steps": lambda x, k: x[-k::2] * 2,
    "row": lambda x, k: x[-k] * 2,
    "written": lambda x, k: _write(x * 1, k),
    "written in steps": lambda x, k: _write_steps(x * 1, k),
    "written row": lambda x, k: _write_row(x * 1, k),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_bounds_that_count_from_the_end(name):
    program = PROGRAMS[name]
    compile_api.reset()
    compiled = compile_api.compile(program, dynamic=True, fullgraph=True, options={"strict": True})
    for size, number in ((5, 4), (9, 3), (7, 4), (8, 5), (8, 8), (6, 2)):
        x = torch.randn(size, 3, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        ours, wanted = compiled(x, number), program(y, number)
        torch.testing.assert_close(ours, wanted)
        for one in (ours, wanted):
            sum(part.sum() for part in ([one] if isinstance(one, torch.Tensor) else one)).backward()
        torch.testing.assert_close(x.grad, y.grad)
        assert compile_api.graph_count() == 1 or number in (2, 8)  # all of it, and one element
