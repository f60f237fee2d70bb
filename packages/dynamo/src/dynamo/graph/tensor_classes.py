"""What a tensor's class means for capture: plain, with overrides, or a wrapper made of other tensors.

Comes in: classes and tensors. Goes out: which of them decide for themselves what torch's functions do. A class with
overrides (`__torch_function__`) has ordinary memory: it is a fake tensor here, tagged with its class. A wrapper
(`__torch_dispatch__` and `__tensor_flatten__`) is itself here, with fake tensors for its parts. Invariant: a graph
holds no call that overrides still have to see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "as_class",
    "as_plain",
    "has_overrides",
    "has_own_dispatch",
    "is_traced",
    "is_wrapper_class",
    "own_attribute",
    "traced_in",
    "traced_parts",
    "without_overrides",
]

_MISSING: Any = object()
_ORDINARY_DISPATCH = torch.Tensor.__torch_dispatch__
_DISABLED = torch._C._disabled_torch_function_impl
# Where the classes of torch begin whose methods are written in Python: nobody overrides anything there.
_TORCH_BASES = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor})


def has_own_dispatch(kind: type) -> bool:
    """Whether operators on this tensor class are its own, below autograd."""
    return getattr(kind, "__torch_dispatch__", _ORDINARY_DISPATCH) is not _ORDINARY_DISPATCH


def is_wrapper_class(kind: type) -> bool:
    """Whether tensors of this class are made of tensors, and say how."""
    return (
        kind is not FakeTensor
        and has_own_dispatch(kind)
        and hasattr(kind, "__tensor_flatten__")
        and hasattr(kind, "__tensor_unflatten__")
    )


def has_overrides(kind: type) -> bool:
    """Whether torch's functions on an object of this class are handed to it; true of any subclass by default."""
    if kind is torch.Tensor:
        return False
    found = getattr(kind, "__torch_function__", None)
    return found is not None and found is not _DISABLED


def is_traced(value: Any) -> bool:
    """Whether a value is a tensor of the capture: a fake one, or a wrapper of such."""
    kind = type(value)
    if kind is FakeTensor:
        return True
    return (
        issubclass(kind, torch.Tensor)
        and is_wrapper_class(kind)
        and any(map(is_traced, traced_parts(value)))
    )


def traced_parts(value: Any) -> Iterator[Any]:
    """What a wrapper is made of."""
    with torch._C.DisableTorchFunction():
        names, _ = value.__tensor_flatten__()
        parts = [getattr(value, name) for name in names]
    return iter(parts)


def traced_in(args: Any, kwargs: Any) -> Iterator[Any]:
    """The tensors of the capture among arguments, in lists too."""
    for value in (*args, *kwargs.values()):
        if is_traced(value):
            yield value
        elif isinstance(value, tuple | list):
            yield from traced_in(value, {})


def own_attribute(kind: type, name: str) -> Any:
    """What the program's classes among a tensor class's bases have under a name; `None, False` if nothing."""
    for base in kind.__mro__:
        if base in _TORCH_BASES:
            break
        found = base.__dict__.get(name, _MISSING)
        if found is not _MISSING:
            return found, True
    return None, False


# -- called by generated code --------------------------------------------------------------------------


def as_plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory and history without the class: what a graph is given."""
    with torch._C.DisableTorchFunctionSubclass():
        plain: torch.Tensor = tensor.as_subclass(torch.Tensor)
    return plain


def as_class(tensor: torch.Tensor, kind: type) -> Any:
    """The same memory and history as a tensor of a class, as eager makes it of what an override returns."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(kind)


def without_overrides(function: Any, *, modes: bool) -> Any:
    """A graph whose calls were handed to overrides when it was captured: they must not see them again.

    With `modes`, to the program's torch-function modes too.
    """
    guard = torch._C.DisableTorchFunction if modes else torch._C.DisableTorchFunctionSubclass

    def call(*args: Any) -> Any:
        with guard():
            return function(*args)

    call.boxed = getattr(function, "boxed", False)  # type: ignore[attr-defined]
    return call
