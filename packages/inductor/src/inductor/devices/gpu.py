"""NVIDIA's and AMD's cards: kernels as Triton, compiled in worker processes, started through the card's driver.

Comes in: kernels of the schedule and the directory of binaries. Goes out: `LoadedKernel`s. Invariant: pointers are
16-byte aligned (the call program copies an input that is not), and a kernel that needs more of a program than the card
has is refused here, not by a launch.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import torch

from inductor._torch import gpu_library_path
from inductor.codegen.triton import write_kernel
from inductor.devices.built import LoadedKernel
from inductor.devices.interface import DeviceProperties
from inductor.errors import InductorError
from inductor.ir.machine import H200
from inductor.runtime.code_cache import open_cache
from inductor.runtime.errors import BuildError
from inductor.runtime.gpu_driver import CUDA, HIP, GpuDriverError, open_driver
from inductor.runtime.settings import BuildSettings
from inductor.runtime.triton_build import TritonBuilder, TritonBuildError, TritonTarget
from inductor.schedule.blocks import choose_blocks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from inductor.codegen.triton import TritonSource
    from inductor.devices.built import Built
    from inductor.ir import Kernel
    from inductor.runtime.gpu_driver import DeviceFunction, DriverNames
    from inductor.runtime.triton_build import TritonBinary

__all__ = ["CudaDevice", "HipDevice", "build_all", "card_at", "triton_builder", "triton_source"]

_MOST_WORKERS = 16
_EARLY_WORKERS = 4


def triton_source(kernel: Kernel, card: DeviceProperties = H200) -> TritonSource:
    """The Triton function of a kernel in its one configuration for a card.

    Raises:
        UnsupportedOperationError: Triton can't express the kernel.
    """
    return write_kernel(kernel, choose_blocks(kernel, card))


@lru_cache(maxsize=8)
def triton_builder(directory: Path | None, cache_bytes: int, target: TritonTarget) -> TritonBuilder:
    """The process's workers for one target."""
    cache = open_cache(directory, cache_bytes)
    workers = min(os.cpu_count() or 1, _MOST_WORKERS)
    return TritonBuilder(cache.directory, target, processes=workers)


def build_all(
    sources: Mapping[str, TritonSource], target: TritonTarget, settings: BuildSettings
) -> dict[str, TritonBinary]:
    """Compile kernels, by name, for a GPU that need not be here.

    Raises:
        TritonBuildError: Triton is missing or refuses a kernel.
    """
    futures = _begin(sources, target, settings)
    return {name: future.result() for name, future in futures.items()}


def _begin(
    sources: Mapping[str, TritonSource], target: TritonTarget, settings: BuildSettings
) -> dict[str, Future[TritonBinary]]:
    builder = triton_builder(settings.cache_directory, settings.cache_bytes, target)
    return {
        name: builder.submit(source, range(source.pointers)) for name, source in sources.items()
    }


class CudaDevice:
    """NVIDIA's; see `inductor.devices.interface`."""

    name = "cuda"
    type = "cuda"
    loops: Literal["threads", "programs"] = "programs"
    _driver = CUDA

    def available(self) -> bool:
        """Whether this torch drives such cards and sees one."""
        return torch.version.hip is None and torch.cuda.is_available()

    def properties(self, index: int = 0) -> DeviceProperties:
        """What the driver says of a card."""
        found = torch.cuda.get_device_properties(index)
        return DeviceProperties(
            name=found.name,
            lanes=getattr(found, "warp_size", 32),
            units=found.multi_processor_count,
            threads=getattr(found, "max_threads_per_block", 1024),
            shared_bytes=getattr(found, "shared_memory_per_block_optin", 0),
            cache_bytes=getattr(found, "L2_cache_size", 0),
            # two transfers a cycle; the clock is in kHz, the width in bits
            bandwidth=250
            * getattr(found, "memory_clock_rate", 0)
            * getattr(found, "memory_bus_width", 0),
        )

    def target(self, index: int) -> TritonTarget:
        """What to compile for."""
        found = torch.cuda.get_device_properties(index)
        return TritonTarget("cuda", 10 * found.major + found.minor, 32)

    def prepare(self, index: int) -> None:
        """Start workers while a graph is planned: they take a third of a second to load Triton."""
        settings = BuildSettings.from_environment()
        builder = triton_builder(settings.cache_directory, settings.cache_bytes, self.target(index))
        builder.prestart(_EARLY_WORKERS)

    def text(self, kernel: Kernel) -> str:
        """Triton."""
        index = self.launcher_index(kernel.device) if self.available() else None
        return triton_source(kernel, H200 if index is None else self.properties(index)).text

    def build(
        self, kernels: Sequence[Kernel], settings: BuildSettings
    ) -> Mapping[str, Built | Exception]:
        """Compiled side by side, then loaded on their card."""
        if not kernels:
            return {}
        index = self.launcher_index(kernels[0].device)
        limits = self.properties(index)
        found: dict[str, Built | Exception] = {}
        sources: dict[str, TritonSource] = {}
        for kernel in kernels:
            try:
                sources[kernel.name] = triton_source(kernel, limits)
            except InductorError as error:
                found[kernel.name] = error
        futures = _begin(sources, self.target(index), settings)
        try:
            driver = open_driver(self._driver)
        except GpuDriverError as error:
            raise BuildError(str(error)) from error
        with torch.cuda.device(index):
            for kernel in kernels:
                if kernel.name in found:
                    continue
                try:
                    binary = futures[kernel.name].result()
                    self._check(binary, limits)
                    function = driver.load(binary, index, limits.lanes)
                    made = LoadedKernel(kernel, sources[kernel.name], binary, function)
                    found[kernel.name] = made
                except (TritonBuildError, GpuDriverError) as error:
                    found[kernel.name] = error
        return found

    @staticmethod
    def _check(binary: TritonBinary, limits: DeviceProperties) -> None:
        if limits.shared_bytes and binary.shared > limits.shared_bytes:
            raise TritonBuildError(
                f"{binary.name} needs {binary.shared} bytes of shared memory, {limits.name} has {limits.shared_bytes}"
            )
        if limits.threads and limits.lanes * binary.warps > limits.threads:
            raise TritonBuildError(
                f"{binary.name} needs {limits.lanes * binary.warps} threads, {limits.name} has {limits.threads}"
            )

    def launcher_index(self, device: torch.device) -> int:
        """The card's number."""
        return device.index if device.index is not None else torch.cuda.current_device()

    def identity(self, index: int) -> tuple[str, str, int]:
        """What device code that runs on this card was compiled for."""
        target = self.target(index)
        return target.backend, str(target.architecture), target.warp_size

    def load(self, binaries: Sequence[TritonBinary], index: int) -> list[DeviceFunction]:
        """Device code of an earlier process, launchable.

        Raises:
            GpuDriverError: there is no driver, or it refuses one.
        """
        driver, lanes = open_driver(self._driver), self.properties(index).lanes
        with torch.cuda.device(index):
            return [driver.load(binary, index, lanes) for binary in binaries]

    def direct_calls(self) -> frozenset[int]:
        """Those of torch's library for these cards; sets the launcher up at first use."""
        return _direct_calls(self._driver)


class HipDevice(CudaDevice):
    """AMD's; torch calls these cards "cuda" too."""

    name = "hip"
    _driver = HIP

    def available(self) -> bool:
        """Whether this torch drives such cards and sees one."""
        return torch.version.hip is not None and torch.cuda.is_available()

    def target(self, index: int) -> TritonTarget:
        """What to compile for."""
        found = torch.cuda.get_device_properties(index)
        lanes = getattr(found, "warp_size", 64)
        return TritonTarget("hip", found.gcnArchName.split(":")[0], lanes)


@lru_cache(maxsize=2)
def _direct_calls(names: DriverNames) -> frozenset[int]:
    # only reached where the C launcher is built
    from inductor.runtime import _launch  # type: ignore[attr-defined]  # the extension has no stub
    from inductor.runtime.launch import DIRECT_CALLS

    try:
        driver = open_driver(names)
        functions = (names.launch, names.retain, names.make_current)
        bits = _launch.set_up_gpu(gpu_library_path(), *map(driver.address, functions))
    except (RuntimeError, GpuDriverError) as error:
        raise BuildError(str(error)) from error
    return frozenset(kind for kind in DIRECT_CALLS.values() if bits >> kind & 1)


def card_at(index: int) -> CudaDevice:
    """The kind of card number `index`.

    Raises:
        BuildError: this process sees no such card.
    """
    if not torch.cuda.is_available() or index >= torch.cuda.device_count():
        raise BuildError(f"there is no GPU number {index} here")
    return CudaDevice() if torch.version.hip is None else HipDevice()
