"""Distributed tensors of one process through the whole compiler: operators, and the methods of their own."""

from functools import partial

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import compile_api
import dynamo
from dynamo.testing import CompileCounter

COMPILERS = {
    "capture": dynamo.optimize("eager", fullgraph=True),
    "whole": partial(compile_api.compile, fullgraph=True, options={"strict": True}),
}


@pytest.fixture(scope="module")
def mesh():
    if not torch.distributed.is_initialized():
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    return init_device_mesh("cpu", (1,))


def products(x, w):
    return (x @ w).sin() + x, torch.nn.functional.linear(x, w).relu().to_local()


def redistributed(x, w):
    return (x @ w).redistribute(placements=[Replicate()]), x.placements, x.device_mesh.ndim


def whole_tensor(x, w):
    return (x @ w).full_tensor(), w.to_local() + 1


def sharded(x, w):
    rows = DTensor.from_local(x.to_local(), x.device_mesh, [Shard(0)])
    return rows.sum(), rows * 2


def assert_same(want, got):
    assert type(want) is type(got)
    if isinstance(want, DTensor):
        assert want.placements == got.placements
        assert want.requires_grad == got.requires_grad
        want, got = want.to_local(), got.to_local()
    if isinstance(want, torch.Tensor):
        assert want.requires_grad == got.requires_grad
        torch.testing.assert_close(got, want)
    else:
        assert want == got


def run(function, mesh, grad):
    torch.manual_seed(0)
    x = distribute_tensor(torch.randn(4, 4), mesh, [Shard(0)]).requires_grad_(grad)
    w = distribute_tensor(torch.randn(4, 4), mesh, [Replicate()]).requires_grad_(grad)
    outputs = function(x, w)
    followed = [out for out in outputs if isinstance(out, torch.Tensor) and out.requires_grad]
    if followed:
        # Placed as the outputs are: others are converted, where eager of some versions keeps them.
        # At once: the sum of a gradient's parts is placed as the operator `add` places it.
        torch.autograd.backward(followed, [torch.ones_like(out) for out in followed])
    return [*outputs, x.grad, w.grad]


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("function", [products, redistributed, whole_tensor, sharded])
def test_equal_to_eager(mesh, function, grad, compiler):
    compiled = COMPILERS[compiler](function)
    want = run(function, mesh, grad)
    for _ in range(2):
        for pair in zip(want, run(compiled, mesh, grad), strict=True):
            assert_same(*pair)


def test_placements_are_guarded(mesh):
    counter = CompileCounter()
    compiled = dynamo.optimize(counter)(lambda x: x * 2)
    for placement, frames in ((Shard(0), 1), (Replicate(), 2), (Shard(1), 3), (Shard(0), 3)):
        compiled(distribute_tensor(torch.ones(4, 4), mesh, [placement]))
        assert counter.frame_count == frames


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_module_of_distributed_parameters(mesh, compiler):
    losses = []
    for wrap in (lambda module: module, COMPILERS[compiler]):
        torch.manual_seed(0)
        layer = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 4))
        for module in (layer[0], layer[2]):
            for name, value in list(module.named_parameters()):
                placed = distribute_tensor(value.detach(), mesh, [Replicate()])
                setattr(module, name, torch.nn.Parameter(placed))
        step = torch.optim.SGD(layer.parameters(), lr=0.1)
        run_it = wrap(layer)
        for _ in range(3):
            step.zero_grad()
            x = distribute_tensor(torch.randn(2, 4), mesh, [Shard(0)])
            loss = run_it(x).square().sum()
            loss.backward()
            step.step()
            losses.append(loss.full_tensor().item())
    assert losses[:3] == pytest.approx(losses[3:], rel=1e-5)
