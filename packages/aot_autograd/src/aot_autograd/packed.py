"""What the caller's saved-tensor hooks give back, as the compiled backward was promised it.

Comes in: the hooks that see what a call saves, if any. Goes out: hooks around them that remember each tensor's layout
and lay what comes back out so: a kernel reads memory by the strides and the dtype that it was compiled for, and a
hook that clones, compresses, or copies to another device gives others. Invariant: each of the caller's hooks is called
as often as eager calls it, with the same tensors, and what fits is handed on as it is.

A call that writes its arguments does so after it has saved. Eager saves as it goes: where a hook raises (a checkpoint
that has computed enough does), what came before is written. So an error of theirs is held until the call has written.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from aot_autograd._torch import is_checkpoint_hook, saved_tensor_hooks
from aot_autograd.subclasses import is_wrapper

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["errors_held", "in_layout", "layouts_restored"]


def in_layout(tensor: torch.Tensor, stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of its own with the values of another, in the given layout."""
    with torch.no_grad():
        once = tensor
        for dimension, step in enumerate(stride):
            if step == 0 and tensor.shape[dimension] > 1:  # repeated elements are written once
                once = once.narrow(dimension, 0, 1)
        made = torch.empty_strided(once.shape, stride, dtype=dtype, device=tensor.device)
        made.data.copy_(once)  # whose version is not the result's
        return made if once is tensor else made.expand(tensor.shape)


@contextmanager
def layouts_restored() -> Iterator[None]:
    """Inside, what the hooks of now give back is laid out as what they were given.

    What a checkpoint gives back it has computed again, in the same layout.
    """
    hooks = saved_tensor_hooks()
    if hooks is None or is_checkpoint_hook(hooks[0]):
        yield
        return
    pack, unpack = hooks

    def remember(tensor: torch.Tensor) -> tuple[Any, Any]:
        known = type(tensor) is torch.Tensor and tensor.layout is torch.strided
        form = (tensor.shape, tensor.stride(), tensor.dtype, tensor.device) if known else None
        return pack(tensor), form

    def restore(packed: tuple[Any, Any]) -> torch.Tensor:
        inner, form = packed
        return _restored(unpack(inner), form)

    with torch.autograd.graph.saved_tensors_hooks(remember, restore):
        yield


@contextmanager
def errors_held(errors: list[BaseException]) -> Iterator[None]:
    """Inside, the first error of the hooks of now goes to `errors`, and nothing is packed after it.

    Whoever calls must raise it: in the place of what should have been packed nothing is.
    """
    hooks = saved_tensor_hooks()
    assert hooks is not None, "the caller looked"
    pack, unpack = hooks

    def held(tensor: torch.Tensor) -> Any:
        if errors:
            return None
        try:
            return pack(tensor)
        except BaseException as error:  # noqa: BLE001 - raised when the call has written
            errors.append(error)
            return None

    held.__module__ = getattr(pack, "__module__", __name__)  # a checkpoint's stays one
    with torch.autograd.graph.saved_tensors_hooks(held, unpack):
        yield


def _restored(tensor: torch.Tensor, form: Any) -> torch.Tensor:
    if form is None or not isinstance(tensor, torch.Tensor) or is_wrapper(tensor):
        return tensor  # autograd itself says what is wrong with it
    shape, stride, dtype, device = form
    if tensor.shape != shape or tensor.device != device:
        raise RuntimeError(
            f"a saved-tensor hook was given a tensor of shape {tuple(shape)} on {device} and gives back one of "
            f"shape {tuple(tensor.shape)} on {tensor.device}"
        )
    fits = tensor.layout is torch.strided and tensor.stride() == stride and tensor.dtype == dtype
    if fits and not tensor.is_conj() and not tensor.is_neg():
        return tensor
    return in_layout(tensor, stride, dtype)
