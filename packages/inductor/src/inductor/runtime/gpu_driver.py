"""Loading and launching device code through the card's driver library, without its headers and without Triton.

Comes in: binaries. Goes out: function handles that `_launch.c` (or `launch` here) starts. The library is found by name
at first use; AMD's has the same functions under other names. Invariant: the primary context that torch uses is current
when anything here is called.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from inductor.errors import InductorError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from inductor.runtime.triton_build import TritonBinary

__all__ = [
    "CUDA",
    "HIP",
    "DeviceFunction",
    "DriverNames",
    "GpuDriver",
    "GpuDriverError",
    "open_driver",
]

_MAX_DYNAMIC_SHARED = 8  # ..._FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES in both
_FREE_SHARED = 48 * 1024
_RELAXED = 2  # ..._STREAM_CAPTURE_MODE_RELAXED in both


@dataclass(frozen=True, slots=True)
class DriverNames:
    """A driver's library and what it calls its functions."""

    kind: str
    library: str
    load: str
    function: str
    attribute: str
    launch: str
    error: str
    capture: str
    retain: str
    make_current: str


CUDA = DriverNames(
    "CUDA", "libcuda.so.1", "cuModuleLoadData", "cuModuleGetFunction", "cuFuncSetAttribute",
    "cuLaunchKernel", "cuGetErrorString", "cuThreadExchangeStreamCaptureMode",
    "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent",
)  # fmt: skip
HIP = DriverNames(
    "HIP", "libamdhip64.so", "hipModuleLoadData", "hipModuleGetFunction", "hipFuncSetAttribute",
    "hipModuleLaunchKernel", "hipDrvGetErrorString", "hipThreadExchangeStreamCaptureMode",
    "hipDevicePrimaryCtxRetain", "hipCtxSetCurrent",
)  # fmt: skip


class GpuDriverError(InductorError):
    """The driver library is missing or refused a call."""

    def __init__(self, call: str, code: int, text: str) -> None:
        self.call, self.code = call, code
        super().__init__(f"the GPU's driver refused {call}: {text} (error {code})")


@dataclass(frozen=True, slots=True)
class DeviceFunction:
    """A loaded kernel: the driver's handle, threads of a block, bytes of dynamic shared memory."""

    handle: int
    threads: int
    shared: int


@dataclass(slots=True)
class GpuDriver:
    """A driver library; loaded modules live as long as the process."""

    library: ctypes.CDLL
    names: DriverNames = CUDA
    loaded: dict[tuple[int, bytes], DeviceFunction] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self.library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            getattr(self.library, self.names.error)(code, ctypes.byref(text))
            raise GpuDriverError(name, code, (text.value or b"unknown").decode())

    @contextlib.contextmanager
    def _while_recording(self) -> Iterator[None]:
        """Let this thread load code though a CUDA graph is being recorded: it is no part of the graph."""
        exchange = getattr(self.library, self.names.capture, None)
        mode = ctypes.c_int(_RELAXED)
        if exchange is None or exchange(ctypes.byref(mode)):
            yield
            return
        try:
            yield
        finally:
            exchange(ctypes.byref(mode))

    def load(self, built: TritonBinary, device: int, lanes: int = 32) -> DeviceFunction:
        """Make a binary launchable on the current device, whose index is `device` and whose warps have `lanes` threads.

        Raises:
            GpuDriverError: the card can't run it.
        """
        key = (device, built.binary)
        with self.lock:
            known = self.loaded.get(key)
            if known is not None:
                return known
            with self._while_recording():
                function = self._load(built)
            assert function.value is not None
            made = DeviceFunction(function.value, lanes * built.warps, built.shared)
            self.loaded[key] = made
            return made

    def _load(self, built: TritonBinary) -> ctypes.c_void_p:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._call(self.names.load, ctypes.byref(module), built.binary)
        self._call(self.names.function, ctypes.byref(function), module, built.name.encode())
        if built.shared > _FREE_SHARED:
            self._call(self.names.attribute, function, _MAX_DYNAMIC_SHARED, built.shared)
        return function

    def launch(
        self,
        function: DeviceFunction,
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
            self.names.launch, ctypes.c_void_p(function.handle), grid, 1, 1, function.threads, 1, 1,
            function.shared, ctypes.c_void_p(stream), pointers, None,
        )  # fmt: skip

    def address(self, name: str) -> int:
        """Where a driver function lies, for C code."""
        value = ctypes.cast(getattr(self.library, name), ctypes.c_void_p).value
        assert value is not None
        return value


@lru_cache(maxsize=2)
def open_driver(names: DriverNames = CUDA) -> GpuDriver:
    """The driver library.

    Raises:
        GpuDriverError: there is none.
    """
    try:
        library = ctypes.CDLL(names.library)
    except OSError as error:
        raise GpuDriverError("dlopen", -1, f"{error}; install the {names.kind} driver") from error
    return GpuDriver(library, names)
