"""Finds out where torch keeps a tensor's metadata and the thread's state, for C to read.

Comes in: a few small tensors of known metadata, and the memory of their C++ objects. Goes out: a
`TensorLayout` of byte offsets, and the addresses of the functions that tell the state. Nothing is
assumed of a torch version: an offset counts only if it explains every sample, and a second set of
samples is then read through the C extension's own check and compared with the Python attributes.
Invariant: whatever does not fit exactly is given up, and the Python attributes are used instead.
"""

from __future__ import annotations

import ctypes
from dataclasses import astuple, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from dynamo import _torch
from dynamo.guards.state import GlobalState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["TensorLayout", "calibrate", "dtype_code", "find_layout", "state_numbers"]

_WINDOW = 184  # bytes of the C++ tensor that are searched: as many as the largest known, torch 2.11's, has
_WORD = 8


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """Byte offsets in a tensor's Python object (`handle`) and in its C++ object (the others)."""

    handle: int
    keys: int
    dtype: int
    device_index: int
    dims: int
    sizes: int
    strides: int
    inline_dims: int  # up to so many dimensions sizes and strides lie inside the object
    offset: int
    storage: int
    autograd: int  # null: certainly no gradient is required; -1: not found
    required: (
        int  # in what `autograd` points to, 1: certainly a gradient is required; -1: not found
    )


def _memory(tensor: torch.Tensor) -> bytes:
    return ctypes.string_at(_torch.tensor_address(tensor), _WINDOW)


def _word(memory: bytes, offset: int) -> int:
    return int.from_bytes(memory[offset : offset + _WORD], "little")


def _only(offsets: Sequence[int]) -> int:
    if len(offsets) != 1:
        raise LookupError(f"{len(offsets)} places fit")
    return offsets[0]


def _where(
    tensors: Sequence[torch.Tensor],
    expected: Callable[[torch.Tensor], int],
    *,
    width: int = _WORD,
) -> list[int]:
    """Offsets at which every sample holds what is expected of it."""
    samples = [(_memory(tensor), expected(tensor)) for tensor in tensors]
    return [
        at
        for at in range(0, _WINDOW - width + 1, width)
        if all(int.from_bytes(m[at : at + width], "little") == want for m, want in samples)
    ]


def _samples() -> list[torch.Tensor]:
    """Tensors that differ in everything that is looked for."""
    with torch.inference_mode(mode=False), torch.no_grad():
        plain = [
            torch.empty_strided((3, 5, 7), (70, 14, 2), dtype=torch.float64)[1:, 1:, 2:],
            torch.empty_strided((11, 13), (1, 11), dtype=torch.int32)[:, 3:],
            torch.empty((4, 6, 9, 2), dtype=torch.complex64).conj()[2:, :, 1:],
            torch.empty((17,), dtype=torch.complex64).conj().imag[5:],
            torch.empty((2, 3, 4, 5, 6), dtype=torch.bool)[1:, 1:],
            torch.empty((8, 1, 5), dtype=torch.bfloat16, device="meta")[3:],
            torch.empty((), dtype=torch.uint8),
            torch.empty((3, 4), dtype=torch.float16, requires_grad=True),
            torch.nn.Parameter(torch.empty(5, 2, 3)),
        ]
    with torch.inference_mode():
        plain.append(torch.empty((19, 23))[7:, 2:])
    return plain


def find_layout() -> TensorLayout:
    """The layout of the running torch.

    Raises:
        LookupError: something was not found, or in more than one place.
    """
    samples = _samples()
    handle = _only(
        [
            at
            for at in range(object.__basicsize__, torch.Tensor.__basicsize__, _WORD)
            if all(
                _word(ctypes.string_at(id(t) + at, _WORD), 0) == _torch.tensor_address(t)
                for t in samples
            )
        ]
    )
    keys = _only(_where(samples, _torch.dispatch_keys))
    dims, sizes, strides, inline = _find_geometry(samples)
    dtype = _find_dtype()
    device_index = _find_device(dtype)
    fields = [at for at in range(0, keys, _WORD) if not dims <= at < strides + inline * _WORD]
    autograd = _find_autograd(samples, fields)
    return TensorLayout(
        handle,
        keys,
        dtype,
        device_index,
        dims,
        sizes,
        strides,
        inline,
        _only(_where(samples, torch.Tensor.storage_offset)),
        _only(_where(samples, lambda tensor: tensor.untyped_storage()._cdata)),
        autograd,
        _find_required(autograd),
    )


def _find_geometry(samples: Sequence[torch.Tensor]) -> tuple[int, int, int, int]:
    """Where the number of dimensions, sizes and strides are, and how many lie inside."""
    several = [at for at in _where(samples, torch.Tensor.dim) if at + 2 * _WORD <= _WINDOW]
    deep = [torch.empty(tuple(range(2, 2 + n))) for n in range(1, 9)]
    dims = _only([at for at in several if at in _where(deep, torch.Tensor.dim)])
    sizes = dims + _WORD  # next to each other: verified below for every depth
    inline = 0
    for tensor in deep:
        memory, n = _memory(tensor), tensor.dim()
        inside = tuple(
            _word(memory, sizes + i * _WORD) for i in range(n) if sizes + (i + 1) * _WORD <= _WINDOW
        )
        if inside == tuple(tensor.shape):
            inline = n
            continue
        pointed = ctypes.string_at(_word(memory, sizes), 2 * n * _WORD)
        found = tuple(_word(pointed, i * _WORD) for i in range(2 * n))
        if found != (*tensor.shape, *tensor.stride()):
            raise LookupError(f"the sizes of {n} dimensions are elsewhere")
    strides = sizes + inline * _WORD
    for tensor in [*samples, *deep[:inline]]:
        memory = _memory(tensor)
        if (
            tuple(_word(memory, strides + i * _WORD) for i in range(tensor.dim()))
            != tensor.stride()
        ):
            raise LookupError("the strides are elsewhere")
    return dims, sizes, strides, inline


_DTYPES = (torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16, torch.complex64)


def _find_dtype() -> int:
    """Where a 16-bit number distinguishes the dtypes and nothing else does."""
    memories = [_memory(torch.empty((2, 3), dtype=dtype)) for dtype in _DTYPES]
    again = [_memory(torch.empty((4,), dtype=dtype)) for dtype in _DTYPES]
    fits = []
    for at in range(0, _WINDOW, 2):
        codes = [int.from_bytes(memory[at : at + 2], "little") for memory in memories]
        same = [int.from_bytes(memory[at : at + 2], "little") for memory in again]
        if codes == same and len(set(codes)) == len(_DTYPES) and max(codes) < 256:
            fits.append(at)
    return _only(fits)


def _find_device(dtype: int) -> int:
    """Where the device's index is: behind its type, which is behind the dtype."""
    index = dtype + 3
    cpu, meta = _memory(torch.empty(1)), _memory(torch.empty(1, device="meta"))
    if cpu[index - 1] == meta[index - 1] or cpu[index] != 0xFF or meta[index] != 0xFF:
        raise LookupError("the device is elsewhere")
    return index


def _find_autograd(samples: Sequence[torch.Tensor], fields: Sequence[int]) -> int:
    """Where a pointer is null for plain tensors and never for those that require a gradient.

    Only in `fields`: anything may be behind the object, and where dimensions go that a tensor
    hasn't got.
    """
    needing = [_memory(tensor) for tensor in samples if tensor.requires_grad]
    with torch.no_grad():
        plain = [_memory(torch.empty((2,) * n)) for n in range(5)]
    fits = [
        at
        for at in fields
        if all(_word(memory, at) > 0xFFFF for memory in needing)
        and all(_word(memory, at) == 0 for memory in plain)
    ]
    return fits[0] if len(fits) == 1 else -1


_METADATA = 200  # bytes of autograd's metadata that are searched; torch has more


def _find_required(autograd: int) -> int:
    """Where a byte of autograd's metadata is 1 for leaves that require a gradient, and 0 for no other."""
    if autograd < 0:
        return -1

    def metadata(tensor: torch.Tensor) -> bytes:
        return ctypes.string_at(_word(_memory(tensor), autograd), _METADATA)

    with torch.inference_mode(mode=False), torch.enable_grad():
        leaf = torch.empty(2, requires_grad=True)
        parameter = torch.nn.Parameter(torch.empty(3))
        once = torch.empty(2, requires_grad=True).requires_grad_(False)
        needing = [metadata(leaf), metadata(parameter), metadata(once.detach().requires_grad_())]
        others = [metadata(once), metadata(leaf * 2), metadata(leaf[:1])]
        again = metadata(leaf.requires_grad_(False))
    fits = [
        at
        for at in range(_METADATA)
        if all(m[at] == 1 for m in needing) and not any(m[at] for m in [*others, again])
    ]
    return fits[0] if len(fits) == 1 else -1


@cache
def _layout() -> TensorLayout | None:
    try:
        return find_layout()
    except LookupError:
        return None


@cache
def dtype_code(dtype: torch.dtype) -> int:
    """The number that torch keeps in a tensor of this dtype.

    Raises:
        LookupError: torch's layout was not found.
    """
    layout = _layout()
    if layout is None:
        raise LookupError("torch's tensor layout is unknown")
    memory = _memory(torch.empty(0, dtype=dtype))
    return int.from_bytes(memory[layout.dtype : layout.dtype + 2], "little")


_PRECISIONS = {"highest": 0, "high": 1, "medium": 2}


def state_numbers(state: GlobalState) -> tuple[int, ...] | None:
    """A state as the numbers that C compares.

    None for one with modes or transforms, which only Python can compare.
    """
    if state.functorch_depth or state.function_modes or state.dispatch_modes:
        return None
    if not state.function_overrides:
        return None
    numbers = [int(state.grad_enabled), int(state.inference_mode)]
    numbers += [int(enabled) for enabled, _ in state.autocast]
    numbers += [dtype_code(dtype) if enabled else 0 for enabled, dtype in state.autocast]
    numbers += [int(state.autocast_cache), dtype_code(state.default_dtype)]
    numbers += map(int, state.deterministic)
    numbers += [_PRECISIONS[state.float32_matmul_precision], state.threads, 0, 0, 0, 0]
    numbers.append(state.forward_level + 1)
    return tuple(numbers)


def calibrate(fast: Any) -> tuple[bool, bool]:
    """Give the extension `fast` what it needs.

    Returns whether it can read tensors in place, and whether it can read the state.
    """
    return _calibrate_tensors(fast), _calibrate_state(fast)


def _calibrate_tensors(fast: Any) -> bool:
    layout = _layout()
    grad = fast.symbol(*_torch.REQUIRES_GRAD)
    if layout is None or not grad:
        return False
    fast.set_layout(*astuple(layout), grad, torch.Tensor, torch.nn.Parameter)
    if all(_reads_right(fast, tensor) for tensor in _samples()):
        return True
    fast.clear_calibration()
    return False


def _reads_right(fast: Any, tensor: torch.Tensor) -> bool:
    """Whether the extension reads of a tensor what Python does, and notices each change."""
    steps = fast.STEPS
    load = (steps["LOAD_ARGUMENT"], -1, 0, 0, None, None, None)

    def holds(fields: tuple[Any, ...]) -> bool:
        check = (steps["CHECK_TENSOR"], 0, -1, 0, None, fields[0], fields)
        return fast.Program([load, check], 1, 0, ()).match((tensor,)) is not None

    index = -1 if tensor.device.index is None else tensor.device.index
    right = [
        type(tensor),
        _torch.dispatch_keys(tensor),
        dtype_code(tensor.dtype),
        index,
        int(tensor.requires_grad),
        -1,
        tuple(tensor.shape),
        tensor.stride(),
    ]
    if not holds(tuple(right)):
        return False
    for position, other in ((1, right[1] ^ 1), (2, right[2] + 1), (3, 5), (4, 1 - right[4])):
        wrong = right.copy()
        wrong[position] = other
        if holds(tuple(wrong)):
            return False
    for position in (6, 7):
        for dimension in range(tensor.dim()):
            wrong = right.copy()
            sizes = list(right[position])
            sizes[dimension] += 1
            wrong[position] = tuple(sizes)
            if holds(tuple(wrong)):
                return False
    return True


def _calibrate_state(fast: Any) -> bool:
    addresses = [fast.symbol(library, name) for library, name in _torch.STATE_FUNCTIONS]
    addresses.append(id(_torch.FORWARD_LEVELS))
    if not all(addresses) or not fast.set_state(*addresses):
        return False

    def agree() -> bool:
        numbers = state_numbers(GlobalState.now())
        return numbers is None or numbers == fast.current_state()

    try:
        agrees = agree()
        for context in (
            torch.no_grad(),
            torch.enable_grad(),
            torch.inference_mode(),
            torch.autocast("cpu", torch.bfloat16),
            torch.autocast("cpu", torch.float16, cache_enabled=False),
            torch.autograd.forward_ad.dual_level(),
        ):
            with context:
                agrees = agrees and agree()
    except LookupError:
        agrees = False
    if not agrees:
        fast.set_state(*[0] * len(addresses))
    return agrees
