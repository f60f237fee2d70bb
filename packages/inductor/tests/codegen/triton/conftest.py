"""Runs generated Triton kernels in Triton's interpreter: the variable must stand before Triton is imported."""

import os

os.environ["TRITON_INTERPRET"] = "1"
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import importlib.util
import itertools
from pathlib import Path

import pytest
import torch

from inductor.codegen.triton import write_kernel
from inductor.ir import Decisions, Kernel, KernelArgument, LocalBuffer
from inductor.ir.machine import H200
from inductor.schedule.blocks import choose_blocks
from primtorch.symbolic import evaluate

_COUNTER = itertools.count()


def _make_kernel(
    body, dtypes, *, locals_=(), vector=None, tile=None, sizes=(), scalars=(), wide=False
):
    """A kernel with the decisions that the schedule would write."""
    order = {}
    for _, operation, _ in body.operations():
        if operation.buffer is not None and operation.buffer not in {name for name, *_ in locals_}:
            access = "read" if operation.name == "load" else "write"
            if order.get(operation.buffer, access) != access:
                access = "update"
            order[operation.buffer] = access
    arguments = tuple(KernelArgument(name, dtypes[name], access) for name, access in order.items())
    rows = tuple(LocalBuffer(name, dtype, length) for name, dtype, length in locals_)
    decisions = Decisions(
        parallel=1,
        vector=vector,
        tile=tile,
        reduction_split=False,
        work=0,
        bytes=0,
        wide_index=wide,
    )
    return Kernel(
        "kernel",
        body,
        arguments,
        tuple(sizes),
        tuple(scalars),
        rows,
        (),
        decisions,
        torch.device("cpu"),
        (),
    )


@pytest.fixture
def make_kernel():
    """make_kernel(body, dtypes, ...): see `_make_kernel`."""
    return _make_kernel


@pytest.fixture
def run_kernel(tmp_path: Path):
    """run(kernel, storages, blocks=None, sizes={}, scalars={}): writes the kernel's outputs into `storages`."""

    def run(kernel, storages, blocks=None, sizes=None, scalars=None):
        source = write_kernel(kernel, blocks or choose_blocks(kernel, H200))
        path = tmp_path / f"kernel_{next(_COUNTER)}.py"
        path.write_text(source.text)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        grid = evaluate(source.grid, sizes or {})
        pointers = [storages[argument.buffer] for argument in kernel.arguments]
        numbers = [(sizes or {})[symbol] for symbol in kernel.sizes]
        values = [(scalars or {})[name] for name, _ in kernel.scalars]
        module.kernel[(grid,)](*pointers, *numbers, *values)
        return source

    return run
