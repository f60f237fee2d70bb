"""Loading and launching device code through the CUDA driver library, without CUDA headers and without Triton.

Comes in: binaries. Goes out: function handles that `_launch.c` (or `launch` here) starts. The library is found by name
at first use. Invariant: the primary context that torch uses is current when anything here is called.
"""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from inductor.errors import InductorError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inductor.runtime.triton_build import TritonBinary

__all__ = ["CudaDriver", "CudaDriverError", "CudaFunction", "open_driver"]

_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_FREE_SHARED = 48 * 1024


class CudaDriverError(InductorError):
    """The driver library is missing or refused a call."""

    def __init__(self, call: str, code: int, text: str) -> None:
        self.call, self.code = call, code
        super().__init__(f"the CUDA driver refused {call}: {text} (error {code})")


@dataclass(frozen=True, slots=True)
class CudaFunction:
    """A loaded kernel: the driver's handle, threads of a block, bytes of dynamic shared memory."""

    handle: int
    threads: int
    shared: int


@dataclass(slots=True)
class CudaDriver:
    """libcuda; loaded modules live as long as the process."""

    library: ctypes.CDLL
    loaded: dict[tuple[int, bytes], CudaFunction] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self.library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self.library.cuGetErrorString(code, ctypes.byref(text))
            raise CudaDriverError(name, code, (text.value or b"unknown").decode())

    def load(self, built: TritonBinary, device: int) -> CudaFunction:
        """Make a binary launchable on the current device, whose index is `device`.

        Raises:
            CudaDriverError: the card can't run it.
        """
        key = (device, built.binary)
        with self.lock:
            known = self.loaded.get(key)
            if known is not None:
                return known
            module, function = ctypes.c_void_p(), ctypes.c_void_p()
            self._call("cuModuleLoadData", ctypes.byref(module), built.binary)
            self._call("cuModuleGetFunction", ctypes.byref(function), module, built.name.encode())
            if built.shared > _FREE_SHARED:
                self._call("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED, built.shared)
            assert function.value is not None
            made = CudaFunction(function.value, 32 * built.warps, built.shared)
            self.loaded[key] = made
            return made

    def launch(
        self,
        function: CudaFunction,
        grid: int,
        stream: int,
        arguments: Sequence[ctypes._SimpleCData[int]],
    ) -> None:
        """Start `grid` programs on a stream; the two scratch pointers that Triton adds are null."""
        if grid == 0:
            return
        values = [*arguments, ctypes.c_void_p(0), ctypes.c_void_p(0)]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        self._call(
            "cuLaunchKernel", ctypes.c_void_p(function.handle), grid, 1, 1, function.threads, 1, 1,
            function.shared, ctypes.c_void_p(stream), pointers, None,
        )  # fmt: skip

    def address(self, name: str) -> int:
        """Where a driver function lies, for C code."""
        value = ctypes.cast(getattr(self.library, name), ctypes.c_void_p).value
        assert value is not None
        return value


@lru_cache(maxsize=1)
def open_driver() -> CudaDriver:
    """The driver library.

    Raises:
        CudaDriverError: there is none.
    """
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CudaDriverError("dlopen", -1, f"{error}; install the NVIDIA driver") from error
    return CudaDriver(library)
