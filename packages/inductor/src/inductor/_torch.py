"""The private parts of torch that inductor cannot do without, each with a test per supported version.

Comes in: nothing. Goes out: where torch's libraries lie, the C ABI's codes of dtypes, autograd's guard state.
Invariant: no other module of this package touches a name of torch that is not public.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path

import torch

__all__ = [
    "current_stream",
    "device_code",
    "dtype_code",
    "gpu_library_path",
    "library_paths",
    "storage_address",
]


@lru_cache(maxsize=1)
def library_paths() -> tuple[str, str]:
    """Paths of libtorch_cpu and libtorch_python, as they were loaded."""
    directory = Path(torch.__file__).parent / "lib"
    return str(directory / "libtorch_cpu.so"), str(directory / "libtorch_python.so")


@lru_cache(maxsize=64)
def dtype_code(dtype: torch.dtype) -> int:
    """The number by which the C ABI knows `dtype`.

    Raises:
        AttributeError: if this torch has no such dtype.
    """
    library = ctypes.CDLL(library_paths()[0])
    function = getattr(library, "aoti_torch_dtype_" + str(dtype).removeprefix("torch."))
    function.restype = ctypes.c_int32
    return int(function())


@lru_cache(maxsize=8)
def device_code(kind: str) -> int:
    """The number by which the C ABI knows a type of device ("cpu", "cuda").

    Raises:
        AttributeError: if this torch has no such device.
    """
    library = ctypes.CDLL(library_paths()[0])
    function = getattr(library, f"aoti_torch_device_type_{kind}")
    function.restype = ctypes.c_int32
    return int(function())


def storage_address(tensor: torch.Tensor) -> int:
    """The address of the C++ object of a tensor's storage (not of its memory)."""
    return int(tensor.untyped_storage()._cdata)


def gpu_library_path() -> str:
    """Path of the library that holds torch's operators for NVIDIA's or AMD's cards."""
    name = "libtorch_cuda.so" if torch.version.hip is None else "libtorch_hip.so"
    return str(Path(torch.__file__).parent / "lib" / name)


def current_stream(index: int) -> int:
    """The handle of the current stream of a card, without an object around it."""
    return int(torch._C._cuda_getCurrentRawStream(index))
