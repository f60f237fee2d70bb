"""The text of Triton kernels for two cards: goldens. Warps of 64 are half as many, more units take more parts."""

import dataclasses

import pytest
import torch

from inductor.devices.gpu import triton_source
from inductor.ir import Kernel
from inductor.pipeline import plan

from .test_graphs import OPTIONS, trace

aten = torch.ops.aten
torch.manual_seed(0)
WIDE = torch.randn(64, 30000)


def columns(call, x):
    return [call(aten.sum.dim_IntList, x, [0]), call(aten.sum.dim_IntList, x, [1])]


def softmax(call, x):
    high = call(aten.amax.default, x, [1], True)
    power = call(aten.exp.default, call(aten.sub.Tensor, x, high))
    return [call(aten.div.Tensor, power, call(aten.sum.dim_IntList, power, [1], True))]


def dropout(call, x):
    seed = call(torch.ops.primtorch.draw_seed.default, torch.device("cpu"))
    drawn = call(
        torch.ops.primtorch.philox_uniform.default, seed, 0, [64, 256], dtype=torch.float32
    )
    return [call(aten.mul.Tensor, x, call(aten.gt.Scalar, drawn, 0.1))]


GRAPHS = {
    "sums of rows and columns": (columns, torch.randn(40000, 256)),
    "softmax of long rows": (softmax, torch.randn(900, 30000)),
    "dropout": (dropout, torch.randn(64, 256)),
    "sum of all": (lambda call, x: [call(aten.sum.default, x)], WIDE),
}


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
@pytest.mark.parametrize("name", GRAPHS)
def test_kernel_text(snapshot, name, target):
    function, *inputs = GRAPHS[name]
    program = plan(trace(function, *inputs), dataclasses.replace(OPTIONS, gpu_target=target))
    sources = [
        triton_source(step, program.card)
        for step in program.schedule.steps
        if isinstance(step, Kernel)
    ]
    text = "\n".join(
        f"# {source.warps} warps, {source.grid_text} programs\n{source.text}" for source in sources
    )
    assert text == snapshot
