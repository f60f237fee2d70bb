"""Rows of groups beside points by channel: neither's loops refine the other's, both are refined."""

import pytest
import torch
from torch.nn import functional as F

from inductor.ir import Kernel
from inductor.ir.execute import run_program
from inductor.schedule import build


@pytest.mark.parametrize("groups", [4, 2, 12])
def test_a_group_norm_of_long_rows_is_one_kernel(lowered, monkeypatch, groups):
    """It was two, which read their operand from memory twice."""
    monkeypatch.setattr("inductor.schedule.groups.LONGEST_ROW", 12 * 35 // groups - 1)
    x, weight, bias = torch.randn(3, 12, 5, 7), torch.randn(12), torch.randn(12)

    def norm(x, weight, bias):
        return F.gelu(F.group_norm(x, groups, weight, bias))

    program = build(lowered(norm, x, weight, bias), for_gpu=True)
    assert len([step for step in program.schedule.steps if isinstance(step, Kernel)]) == 1
    (found,) = run_program(program, (x, weight, bias))
    torch.testing.assert_close(found, norm(x, weight, bias), rtol=1e-5, atol=1e-5)
