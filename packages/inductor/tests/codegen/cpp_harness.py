"""Builds kernels around bodies and runs them beside the reference interpreter."""

import ctypes
import tempfile
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch

from inductor.codegen.cpp import kernel_source
from inductor.ir import (
    Decisions,
    Kernel,
    KernelArgument,
    LocalBuffer,
    Vector,
    run_body,
    storage_dtype,
)
from inductor.runtime.cpp_build import KernelLibrary, KernelSource
from inductor.runtime.settings import BuildSettings


@lru_cache(maxsize=1)
def library():
    return KernelLibrary(
        replace(
            BuildSettings.from_environment(),
            cache_directory=Path(tempfile.mkdtemp(prefix="inductor-tests-")),
        )
    )


def make_kernel(
    body,
    *,
    vector="auto",
    parallel=None,
    block=16,
    locals_=(),
    sizes=(),
    scalars=(),
    reuses=(),
    tile=None,
    split=False,
    streamed=(),
):
    access = {}
    names = {local.name for local in locals_}
    for _, operation, _ in body.operations():
        if operation.buffer is not None and operation.buffer not in names:
            kind = "read" if operation.name == "load" else "write"
            dtype, before = access.get(operation.buffer, (storage_dtype(operation), kind))
            access[operation.buffer] = (dtype, kind if before == kind else "update")
    if vector == "auto":
        if body.reduction_ranges:
            vector = Vector("inner", len(body.reduction_ranges) - 1)
        else:
            vector = Vector("outer", len(body.ranges) - 1) if body.ranges else None
    elif vector == "column":
        vector = Vector("outer", len(body.ranges) - 1, block)
    if parallel is None:
        parallel = min(1, len(body.ranges))
    return Kernel(
        name="kernel",
        body=body,
        arguments=tuple(
            KernelArgument(name, dtype, kind) for name, (dtype, kind) in access.items()
        ),
        sizes=tuple(sizes),
        scalars=tuple(scalars),
        locals=tuple(locals_),
        reuses=tuple(reuses),
        decisions=Decisions(parallel, vector, tile, split, 1, 1, False, tuple(streamed)),
        device=torch.device("cpu"),
        nodes=(),
    )


def run_cpp(kernel, storages, sizes=(), scalars=(), threads=1):
    source = kernel_source(kernel)
    (address,) = library().addresses([KernelSource(source.text)])
    function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long)(
        address
    )
    pointers = (ctypes.c_void_p * 64)(*[storages[a.buffer].data_ptr() for a in kernel.arguments])
    words = [*sizes]
    for (_, dtype), value in zip(kernel.scalars, scalars, strict=True):
        if dtype.is_floating_point:
            words.append(ctypes.c_int64.from_buffer_copy(ctypes.c_double(value)).value)
        else:
            words.append(int(value))
    words.extend(source.literals)
    values = (ctypes.c_int64 * 64)(*words)
    return function(ctypes.addressof(pointers), ctypes.addressof(values), threads)


def both(body, storages, *, threads=1, sizes=None, scalars=None, **kernel_options):
    """Storages after the C++ kernel, and after the interpreter."""
    sizes, scalars = sizes or {}, scalars or {}
    types = tuple(
        (name, torch.float64 if isinstance(value, float) else torch.int64)
        for name, value in scalars.items()
    )
    kernel = make_kernel(body, sizes=tuple(sizes), scalars=types, **kernel_options)
    ours = {name: storage.clone() for name, storage in storages.items()}
    reference = {name: storage.clone() for name, storage in storages.items()}
    locals_ = {local.name: local for local in kernel.locals}
    status = run_cpp(kernel, ours, tuple(sizes.values()), tuple(scalars.values()), threads)
    assert status == 0
    rows = {name: torch.empty(1, dtype=local.dtype) for name, local in locals_.items()}
    lengths = {name: local.length for name, local in locals_.items()}
    run_body(body, {**reference, **rows}, sizes, scalars, lengths)
    return ours, reference


def check(body, storages, *, rtol=None, atol=None, **options):
    ours, reference = both(body, storages, **options)
    for name in storages:
        torch.testing.assert_close(
            ours[name], reference[name], rtol=rtol, atol=atol, equal_nan=True
        )
    return ours


__all__ = ["LocalBuffer", "both", "check", "library", "make_kernel", "run_cpp"]
