"""The bridge to the C launcher: loads it, checks it against this torch, falls back without it.

Goes out: `native_launcher()`, the launcher type and the vendor functions that can be called directly, or None where the
extension was not built or does not understand this torch. Invariant: a launcher is handed out only after a program run
through it gave the right answer in this process.
"""

from __future__ import annotations

import logging
import os
from array import array
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any

import torch

from inductor._torch import device_code, dtype_code, library_paths, storage_address
from inductor.errors import PromiseError

__all__ = [
    "DIRECT_CALLS",
    "NativeLauncher",
    "Opcode",
    "Result",
    "ValueKind",
    "conform",
    "native_launcher",
    "reserve",
]

_LOG = logging.getLogger("inductor")


class Opcode(IntEnum):
    """Instructions of `_launch.h`, in its order."""

    SIZE_INPUT = 0
    FLOAT_INPUT = 1
    TENSOR_INPUT = 2
    CONSTANT = 3
    ADD = 4
    MULTIPLY = 5
    FLOOR_DIVIDE = 6
    MODULO = 7
    MAXIMUM = 8
    MINIMUM = 9
    BEGIN = 10
    ARENA = 11
    PLACE = 12
    SHARE = 13
    ALLOCATE = 14
    KERNEL = 15
    LAUNCH = 16
    CALL = 17
    RELEASE = 18
    RETURN = 19
    SURE = 20
    CLOSE = 21
    INSIDE = 22


class ValueKind(IntEnum):
    """How an argument of a Python call is made."""

    OBJECT = 0
    TENSOR = 1
    REGISTER = 2
    LIST = 3
    FLOAT = 4


class Result(IntEnum):
    """What an output of the program is."""

    NONE = 0
    VIEW = 1
    CLONE = 2
    INTEGER = 3
    FLOAT = 4
    OBJECT = 5


_FACE = 5  # counts changes of what the launcher's type is called with

DIRECT_CALLS = {
    "mm": 1,
    "bmm": 2,
    "addmm": 3,
    "baddbmm": 4,
    "flash": 5,
    "convolution": 6,
    "linear": 7,
    "lstm": 8,
}
"""Vendor functions that `_calls.c` calls through the C ABI."""


@dataclass(frozen=True, slots=True)
class NativeLauncher:
    """The launcher type of the extension, and which of `DIRECT_CALLS` this torch has."""

    launcher: Any
    direct: frozenset[int]


def conform(tensor: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    """`tensor` copied into exactly this layout; a workspace, bytes promised as none, as it is.

    Raises:
        PromiseError: if the sizes differ.
    """
    if size == (0,) and tensor.dtype == torch.uint8:
        return tensor
    if tuple(tensor.shape) != size:
        raise PromiseError(
            f"a tensor of shape {tuple(tensor.shape)} came where {size} was promised"
        )
    once = tensor
    for dimension, step in enumerate(stride):
        if step == 0 and size[dimension] > 1:  # repeated elements are written once
            once = once.narrow(dimension, 0, 1)
    made = torch.empty_strided(once.shape, stride, dtype=tensor.dtype, device=tensor.device)
    made.data.copy_(once)  # whose version is not the result's
    return made if once is tensor else made.expand(size)


def reserve(placed: int, size: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    """Uninitialised memory as eager allocates it; `placed` is a dtype and a device as the C ABI knows them.

    Raises:
        RuntimeError: whatever eager raises where there is no more memory (torch.OutOfMemoryError on a GPU).
    """
    code, kind, index = placed & 0xFFFF, placed >> 16 & 0xFF, placed >> 24
    kinds = ("cpu", "cuda", "privateuse1")
    name = next(name for name in kinds if device_code(name) == kind)
    device = torch.device(name) if name == "cpu" else torch.device(name, index)
    dtype = next(dtype for dtype in _dtypes() if dtype_code(dtype) == code)
    return torch.empty_strided(size, stride, dtype=dtype, device=device)


def _dtypes() -> list[torch.dtype]:
    found = [value for value in vars(torch).values() if isinstance(value, torch.dtype)]
    return [dtype for dtype in dict.fromkeys(found) if _has_code(dtype)]


def _has_code(dtype: torch.dtype) -> bool:
    try:
        dtype_code(dtype)
    except AttributeError:
        return False
    return True


@lru_cache(maxsize=1)
def native_launcher() -> NativeLauncher | None:
    """The C launcher, or None with the reason in the debug log."""
    try:
        from inductor.runtime import _launch  # type: ignore[attr-defined]  # absent where no C compiler was there at installation
    except ImportError as error:
        _LOG.debug("the C launcher is not built: %s", error)
        return None
    try:
        built = getattr(_launch, "OPCODES", None), getattr(_launch, "FACE", None)
        if built != (len(Opcode), _FACE):
            _LOG.warning(
                "the C launcher was built from other sources and is not used; build it again: "
                "python packages/inductor/hatch_build.py, or reinstall compile-api-inductor"
            )
            return None
        bits = _launch.set_up(torch.empty(0), *library_paths())
        native = NativeLauncher(
            _launch.Launcher, frozenset(k for k in DIRECT_CALLS.values() if bits >> k & 1)
        )
        _self_test(native)
        if not _find_memory(_launch):
            _LOG.debug(
                "where this torch keeps a tensor's memory is not known; it is asked each time"
            )
    except (RuntimeError, AttributeError, SystemError, TypeError) as error:
        _LOG.debug("the C launcher does not understand this torch: %s", error)
        return None
    os.register_at_fork(after_in_child=lambda: _launch.set_serial(True))
    return native


def _find_memory(module: Any) -> bool:
    """Let the launcher read the address of an input's memory in place; whether it reads right."""
    buffer = torch.frombuffer(bytearray(8192), dtype=torch.uint8)
    sample = buffer.as_strided((3, 5), (7, 11), 1237)
    place = storage_address(sample)
    if not module.set_layout(torch.nn.Parameter, sample, place, 1237, buffer.data_ptr()):
        return False
    read = [
        torch.empty(5),
        torch.empty(2, 3, requires_grad=True),
        torch.nn.Parameter(torch.empty(4, 1, dtype=torch.bfloat16)),
        buffer.as_strided((2,), (3,), 0),
    ]
    asked = [sample, torch.empty(0), torch.empty(3, device="meta"), torch.empty(7)[2:]]
    right = all(module.memory(tensor) == tensor.data_ptr() for tensor in read)
    if right and not any(module.memory(tensor) for tensor in asked):
        return True
    module.forget_layout()
    return False


def _self_test(native: NativeLauncher) -> None:
    """Pass a tensor through a program: the handle's place and the wrapping of outputs are right."""
    view = [0, 0, 0, 4, 1, 0, 1, 2]
    view[2] = dtype_code(torch.float32)
    code = [Opcode.TENSOR_INPUT, 0, 0, Opcode.BEGIN, Opcode.RETURN, 2]
    code += [Result.VIEW, *view, Result.VIEW, 0, 1, *view[2:]]
    launcher = native.launcher(
        code=array("q", code),
        registers=array("q", [1, 2, 2]),
        slots=1,
        inputs=1,
        objects=(),
        recover=None,
        conform=conform,
        reserve=reserve,
        threshold=1,
        keep=False,
    )
    tensor = torch.arange(8, dtype=torch.float32)[1:]
    part, whole = launcher([tensor])
    if part.tolist() != [2.0, 4.0] or whole is not tensor:
        raise RuntimeError("a tensor came back from the launcher changed")
