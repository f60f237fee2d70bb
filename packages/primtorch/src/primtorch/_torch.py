"""The private names of torch that primtorch can't do without, each behind a name of our own.

A test per supported torch version checks that they are there and behave as described here. Nothing
else in this package may touch a name of torch that starts with an underscore.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

if TYPE_CHECKING:
    from collections.abc import Iterator

ONEDNN_BFLOAT16 = bool(
    torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
)
"""Whether oneDNN has kernels for bfloat16 on this processor; eager takes some of them there."""

disabled_torch_function = torch._C._disabled_torch_function_impl


def make_wrapper(
    cls: type[torch.Tensor],
    shape: tuple[Any, ...],
    stride: tuple[Any, ...],
    storage_offset: Any,
    dtype: torch.dtype,
    device: torch.device,
    requires_grad: bool,
) -> Any:
    """A tensor of class `cls` without data; sizes may be SymInts."""
    return torch.Tensor._make_wrapper_subclass(
        cls,
        shape,
        strides=stride,
        storage_offset=storage_offset,
        dtype=dtype,
        device=device,
        requires_grad=requires_grad,
    )


@contextmanager
def handed_over() -> Iterator[None]:
    """What a fake's context is called in: below autograd, and without the modes that lead to it."""
    with _disable_current_modes(), torch._C._AutoDispatchBelowAutograd():
        yield


def uncounted(tensor: torch.Tensor) -> AbstractContextManager[None]:
    """Inside, writes leave the tensor's version counter as it is, where it has one."""
    if tensor.is_inference():
        return nullcontext()
    return torch.autograd._unsafe_preserve_version_counter(tensor)


def replace_data(tensor: torch.Tensor, replacement: torch.Tensor) -> None:
    """Give the C++ tensor the sizes and strides of another; asks the tensor's class once."""
    tensor.data = replacement


def has_kernel(operator: str, key: str) -> bool:
    """Whether an operator ("aten::add.Tensor") has a kernel registered at a dispatch key."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator, key)


def fake_implementation(operator: str) -> Any:
    """What `torch.library.register_fake` was given for an operator ("mylib::sort"); None if nothing."""
    kernel = torch._library.simple_registry.singleton.find(operator).fake_impl.kernel
    return None if kernel is None else kernel.func


def operator_names() -> list[str]:
    """Every operator that the dispatcher knows: "aten::add.Tensor", "aten::relu"."""
    return list(torch._C._dispatch_get_all_op_names())


def device_is_available(device_type: str) -> bool:
    """Whether tensors of this device type can be made in this process."""
    if device_type in ("cpu", "meta"):
        return True
    module = getattr(torch, device_type, None)
    return bool(module is not None and module.is_available())
