"""The kernels of a GPU program: written, compiled in parallel, loaded on the card.

Comes in: kernels of the schedule and the directory of binaries. Goes out: `LoadedKernel`s that a call program launches.
Invariant: pointers are 16-byte aligned: the call program copies an input that is not.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from inductor._torch import gpu_library_path
from inductor.codegen.triton import write_kernel
from inductor.runtime.code_cache import open_cache
from inductor.runtime.cuda_driver import CudaDriverError, open_driver
from inductor.runtime.errors import BuildError
from inductor.runtime.triton_build import TritonBuilder, TritonBuildError, TritonTarget
from inductor.schedule.blocks import choose_blocks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from inductor.codegen.triton import TritonSource
    from inductor.ir import Kernel
    from inductor.runtime.cuda_driver import CudaFunction
    from inductor.runtime.settings import BuildSettings
    from inductor.runtime.triton_build import TritonBinary

__all__ = [
    "LoadedKernel",
    "build_all",
    "gpu_direct_calls",
    "load_kernels",
    "triton_builder",
    "triton_source",
]

_MOST_WORKERS = 16


@dataclass(frozen=True, slots=True)
class LoadedKernel:
    """A kernel of the schedule, its Triton text and its handle on the card."""

    kernel: Kernel
    source: TritonSource
    function: CudaFunction


def triton_source(kernel: Kernel) -> TritonSource:
    """The Triton function of a kernel in its one configuration.

    Raises:
        UnsupportedOperationError: Triton can't express the kernel.
    """
    return write_kernel(kernel, choose_blocks(kernel))


def target_of(device: torch.device) -> TritonTarget:
    """What to compile for."""
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        return TritonTarget("hip", properties.gcnArchName.split(":")[0], 64)
    return TritonTarget("cuda", 10 * properties.major + properties.minor, 32)


@lru_cache(maxsize=8)
def triton_builder(directory: Path | None, cache_bytes: int, target: TritonTarget) -> TritonBuilder:
    """The process's workers for one target."""
    cache = open_cache(directory, cache_bytes)
    workers = min(os.cpu_count() or 1, _MOST_WORKERS)
    return TritonBuilder(cache.directory, target, processes=workers)


def load_kernels(kernels: Sequence[Kernel], settings: BuildSettings) -> dict[str, LoadedKernel]:
    """Compile and load GPU kernels.

    Raises:
        BuildError: Triton or the driver is missing or refuses a kernel.
    """
    if not kernels:
        return {}
    device = kernels[0].device
    index = device.index if device.index is not None else torch.cuda.current_device()
    builder = triton_builder(settings.cache_directory, settings.cache_bytes, target_of(device))
    sources = [triton_source(kernel) for kernel in kernels]
    futures = [builder.submit(source, range(source.pointers)) for source in sources]
    try:
        driver = open_driver()
        loaded = {}
        with torch.cuda.device(index):
            for kernel, source, future in zip(kernels, sources, futures, strict=True):
                loaded[kernel.name] = LoadedKernel(
                    kernel, source, driver.load(future.result(), index)
                )
    except (TritonBuildError, CudaDriverError) as error:
        raise BuildError(str(error)) from error
    return loaded


def build_all(
    sources: Mapping[str, TritonSource], target: TritonTarget, settings: BuildSettings
) -> dict[str, TritonBinary]:
    """Compile kernels, by name, for a GPU that need not be here.

    Raises:
        TritonBuildError: Triton is missing or refuses a kernel.
    """
    builder = triton_builder(settings.cache_directory, settings.cache_bytes, target)
    futures = {
        name: builder.submit(source, range(source.pointers)) for name, source in sources.items()
    }
    return {name: future.result() for name, future in futures.items()}


@lru_cache(maxsize=1)
def gpu_direct_calls() -> frozenset[int]:
    """Vendor functions for the GPU that the C launcher can call; sets the launcher up at first use.

    Raises:
        BuildError: torch's CUDA library or the driver can't be reached.
    """
    # only reached where the C launcher is built; the extension has no stub
    from inductor.runtime import _launch  # type: ignore[attr-defined]
    from inductor.runtime.launch import DIRECT_CALLS

    try:
        bits = _launch.set_up_gpu(gpu_library_path(), open_driver().address("cuLaunchKernel"))
    except (RuntimeError, CudaDriverError) as error:
        raise BuildError(str(error)) from error
    return frozenset(kind for kind in DIRECT_CALLS.values() if bits >> kind & 1)
