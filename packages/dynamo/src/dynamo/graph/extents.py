"""Whether a view of any geometry stays inside a tensor's memory, asked while a program is captured.

Eager looks at the storage when it makes such a view, and raises where the view would leave it. A graph
has no storages: its kernels read where the strides lead. So a view is captured only where it is known,
by proof or guard, to stay inside; elsewhere the call is a graph break, and eager makes the view or raises.
"""

from __future__ import annotations

import operator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from dynamo.errors import BreakReason, GraphBreak
from dynamo.guards import GuardKind
from primtorch.fake import FakeTensor
from primtorch.symbolic import expression_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dynamo.graph.recorder import Recorder
    from dynamo.source import Source
    from primtorch.fake import TensorMeta
    from primtorch.symbolic import Expression

STRIDED = frozenset({"as_strided", "as_strided_", "as_strided_copy", "as_strided_scatter"})
"""Calls that are given sizes, strides and an offset in the storage."""


def has_bytes(length: int, value: torch.Tensor) -> bool:
    """Whether the storage of a tensor has this many bytes."""
    with torch._C.DisableTorchFunction():
        return value.untyped_storage().nbytes() == length


def require_inside(
    recorder: Recorder, name: str, args: Sequence[Any], kwargs: dict[str, Any]
) -> None:
    """Raise a graph break unless the view that such a call makes stays inside the memory of its tensor.

    What is compared with sizes becomes a guard. Where a view leaves the input that it is made of, but
    not that input's storage, the storage's length is guarded too.
    """
    # The scatter's source stands between the tensor and the geometry.
    names = ("self", *(("src",) if name == "as_strided_scatter" else ()), "size", "stride")
    given = dict(zip((*names, "storage_offset"), args, strict=False)) | kwargs
    given.setdefault("self", given.get("input"))
    tensor, size, stride = given["self"], given.get("size"), given.get("stride")
    if type(tensor) is not FakeTensor or size is None or stride is None:
        return  # the call itself says what is wrong with it
    meta = tensor.meta
    offset = given.get("storage_offset")
    numbers = [_number(recorder, one) for one in (*size, *stride)]
    start = meta.storage_offset if offset is None else _number(recorder, offset)
    if start is None or any(one is None for one in numbers):
        raise GraphBreak(BreakReason.DATA_DEPENDENT_SHAPE, f"{name} takes a size from a tensor")
    end = _end(tuple(numbers[: len(size)]), tuple(numbers[len(size) :]), start)  # type: ignore[arg-type]  # none is None
    width = meta.dtype.itemsize
    less = _comparison(tensor)
    if (
        offset is not None
    ):  # counts from where the storage begins; a graph, from where its input does
        recorder.guard_places(tensor)
    if end == 0 or not less(_bytes_of(tensor), end * width):
        return
    for source, length in _storages(recorder, tensor):
        if not less(length, end * width):
            recorder.guard_places(tensor)
            if recorder.machine is not None:
                known = (partial(has_bytes, length), f"has {length} bytes")
                recorder.machine.session.guard(GuardKind.PREDICATE, source, known)
            return
    raise GraphBreak(
        BreakReason.UNSUPPORTED_CALL, f"{name} is not known to stay inside the memory of its tensor"
    )


def _number(recorder: Recorder, value: Any) -> int | Expression | None:
    """A size; of a tensor that is made of sizes what it holds, None of others."""
    if not isinstance(value, torch.Tensor):
        return expression_of(value)
    known = recorder.known.find(value)
    if known is None:
        return None
    if isinstance(known, torch.SymInt):
        return expression_of(known)
    with torch._C.DisableTorchFunction():
        return int(known)


def _comparison(tensor: FakeTensor) -> Callable[[Any, Any], bool]:
    environment = tensor.context.environment
    return operator.lt if environment is None else environment.less


def _end(
    shape: tuple[int | Expression, ...],
    stride: tuple[int | Expression, ...],
    start: int | Expression,
) -> int | Expression:
    """The element behind the last one of a tensor, 0 if it has none."""
    if 0 in shape:
        return 0
    steps = [(size - 1) * step for size, step in zip(shape, stride, strict=False)]
    return sum(steps, start + 1)


def _bytes_of(tensor: FakeTensor) -> int | Expression:
    """As much of a storage as the tensor takes that was first seen to lie there."""
    meta: TensorMeta = tensor.storage.first
    return _end(meta.shape, meta.stride, meta.storage_offset) * meta.dtype.itemsize


def _storages(recorder: Recorder, tensor: FakeTensor) -> list[tuple[Source, int]]:
    """The input that a tensor is a view of, and the bytes of its storage."""
    found = []
    for source, fake, real in recorder.known_inputs():
        if type(fake) is FakeTensor and fake.storage is tensor.storage:
            with torch._C.DisableTorchFunction():
                found.append((source, real.untyped_storage().nbytes()))
    return found
