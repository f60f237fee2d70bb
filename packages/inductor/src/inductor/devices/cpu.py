"""The CPU: kernels as C++, compiled by the machine's own compiler, called by address.

Invariant: where a compiler takes all kernels but some, the others still run; where it takes none, it is the compiler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from inductor.codegen.cpp import kernel_source
from inductor.devices.built import BuiltKernel
from inductor.runtime.cpp_build import KernelSource, library_for
from inductor.runtime.errors import CompilerRejectedError
from inductor.runtime.launch import native_launcher
from inductor.runtime.processor import has_wide_vectors, this_processor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from inductor.devices.built import Built
    from inductor.devices.interface import DeviceProperties
    from inductor.ir import Kernel
    from inductor.runtime.cpp_build import KernelLibrary
    from inductor.runtime.settings import BuildSettings

__all__ = ["CpuDevice"]

_NOTHING = KernelSource('extern "C" int KERNEL(char *const *, const long *, long) { return 0; }')


class CpuDevice:
    """See `inductor.devices.interface`."""

    name = "cpu"
    type = "cpu"
    loops: Literal["threads", "programs"] = "threads"

    def available(self) -> bool:
        """Always."""
        return True

    def properties(self, index: int = 0) -> DeviceProperties:
        """Of this machine."""
        del index
        return this_processor()

    def text(self, kernel: Kernel) -> str:
        """C++."""
        return kernel_source(kernel, wide=has_wide_vectors()).text

    def build(
        self, kernels: Sequence[Kernel], settings: BuildSettings
    ) -> Mapping[str, Built | Exception]:
        """Compiled together; one by one where that is refused."""
        if not kernels:
            return {}
        sources = [kernel_source(kernel, wide=has_wide_vectors()) for kernel in kernels]
        library, texts = library_for(settings), [KernelSource(source.text) for source in sources]
        try:
            addresses: Sequence[int | Exception] = library.addresses(texts)
        except CompilerRejectedError:
            library.addresses([_NOTHING])  # if not even this compiles, it isn't the kernels
            addresses = [_address(library, text) for text in texts]
        names = library.names(texts)
        return {
            kernel.name: address
            if isinstance(address, Exception)
            else BuiltKernel(kernel, source, address, name)
            for kernel, source, address, name in zip(
                kernels, sources, addresses, names, strict=True
            )
        }

    def launcher_index(self, device: torch.device) -> int:
        """No card."""
        del device
        return -1

    def direct_calls(self) -> frozenset[int]:
        """What this torch exports."""
        native = native_launcher()
        return frozenset() if native is None else native.direct


def _address(library: KernelLibrary, text: KernelSource) -> int | Exception:
    try:
        return library.addresses([text])[0]
    except CompilerRejectedError as error:
        return error
