"""Tensors without data.

A `FakeTensor` is a wrapper subclass: C++ sees its sizes, strides, dtype and a device, autograd
works above it, and every operator that reaches it is handed to its `context`. The device that
Python sees is the logical one; C++ sees it too where this process has such a device, and otherwise
the CPU as a stand-in.

Invariant: `meta` describes what the real tensor would be; `storage` is one object for all tensors
that share memory.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import torch

from primtorch import _torch
from primtorch.errors import DataDependentError
from primtorch.fake.meta import Shape, TensorMeta
from primtorch.symbolic import SizeEnvironment, expression_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._ops import OpOverload


class FakeContext(Protocol):
    """What handles the operators on fake tensors: infers results, or records them."""

    @property
    def environment(self) -> SizeEnvironment | None:
        """The symbols of the sizes; None when all sizes are static."""

    def handle(self, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        """The result of `op`; called below autograd, with at least one fake tensor or a factory."""


class Storage:
    """The identity of a piece of memory; tensors with the same object are views of each other.

    `first` describes the tensor that was first seen to lie there: the memory is at least as long.
    """

    __slots__ = ("__weakref__", "first")

    def __init__(self, first: TensorMeta) -> None:
        self.first = first


class _Compatible:
    """Answers the one question that C++ asks when a tensor takes over another's geometry."""

    environment = None

    def handle(self, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        del op, args, kwargs
        return True


class FakeTensor(torch.Tensor):
    """A tensor with metadata and no data; make one with `FakeTensor.create` or `fakeify`."""

    __slots__ = ("context", "meta", "record", "storage")

    meta: TensorMeta
    context: FakeContext
    storage: Any
    record: Any
    """For the context's own use: the graph node, say."""

    __torch_function__ = _torch.disabled_torch_function

    @staticmethod
    def create(
        meta: TensorMeta,
        context: FakeContext,
        *,
        requires_grad: bool = False,
        environment: SizeEnvironment | None = None,
        storage: Any = None,
    ) -> FakeTensor:
        """A fake tensor as `meta` says; with symbolic sizes an environment is needed."""
        shape: tuple[Any, ...] = meta.shape
        stride: tuple[Any, ...] = meta.stride
        offset: Any = meta.storage_offset
        if not meta.is_static:
            symbols = environment or context.environment
            if symbols is None:
                raise ValueError(f"{meta} has symbolic sizes, but there is no environment for them")
            shape = tuple(map(symbols.symint, shape))
            stride = tuple(map(symbols.symint, stride))
            offset = symbols.symint(offset)
        result: FakeTensor = _torch.make_wrapper(
            FakeTensor,
            shape,
            stride,
            offset,
            meta.dtype,
            visible_device(meta.device),
            requires_grad,
        )
        result.meta = meta
        result.context = context
        result.storage = Storage(meta) if storage is None else storage
        return result

    def register_hook(self, hook: Callable[[Any], Any]) -> Any:
        """As autograd has it; where a backward ends before it gets here (`context.ending`), the hook isn't called."""
        context = self.context

        def unless_ended(gradient: Any) -> Any:
            if gradient is None and getattr(context, "ending", False):
                return None
            return hook(gradient)

        return super().register_hook(unless_ended)

    def adopt(self, meta: TensorMeta) -> None:
        """Change the geometry of this very tensor, as `x.t_()` does; its storage stays."""
        context = self.context
        replacement = FakeTensor.create(meta, context)
        self.context = _Compatible()  # C++ asks whether the two tensors are of one kind
        try:
            _torch.replace_data(self, replacement)
        finally:
            self.context = context
        self.meta = meta

    @property
    def device(self) -> torch.device:
        """The logical device: that of the tensor this one stands for."""
        return self.meta.device

    @classmethod
    def __torch_dispatch__(
        cls,
        func: OpOverload,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        """Hand the operator to the context of the first fake tensor among its arguments.

        A tensor made of tensors beside it decides first, whatever the order of the arguments.
        """
        if len(types) > 1 and foreign_among(types):
            return NotImplemented
        for argument in args:
            if argument.__class__ is cls:
                return argument.context.handle(func, args, kwargs or {})
        return _find(args, kwargs or {}).context.handle(func, args, kwargs or {})

    @property
    def is_cuda(self) -> bool:
        """Whether the logical device is a CUDA device."""
        return self.meta.device.type == "cuda"

    @property
    def is_cpu(self) -> bool:
        """Whether the logical device is the CPU."""
        return self.meta.device.type == "cpu"

    @property
    def is_meta(self) -> bool:
        """Whether the logical device is the meta device."""
        return self.meta.device.type == "meta"

    @property
    def nbytes(self) -> Any:
        """The bytes of its elements; C++ reads a number of them."""
        return self.numel() * self.element_size()

    def get_device(self) -> int:
        """The index of the logical device; -1 on the CPU."""
        return -1 if self.meta.device.type == "cpu" else (self.meta.device.index or 0)

    def tolist(self) -> Any:
        """Refuse: there are no values."""
        raise DataDependentError("the values of a tensor", None, operator="tolist")

    def numpy(self, *, force: bool = False) -> Any:
        """Refuse: there are no values."""
        del force
        raise DataDependentError("the values of a tensor", None, operator="numpy")

    def __repr__(self) -> str:
        name = str(self.meta.dtype).removeprefix("torch.")
        shape = ", ".join(map(str, self.meta.shape))
        return f"FakeTensor([{shape}], {name}, {self.meta.device})"

    def __deepcopy__(self, memo: dict[int, Any]) -> FakeTensor:
        if id(self) not in memo:
            memo[id(self)] = FakeTensor.create(
                self.meta, self.context, requires_grad=self.requires_grad
            )
        return memo[id(self)]


def foreign_among(types: tuple[type, ...]) -> tuple[type, ...]:
    """The tensor types with operators of their own, other than fakes, among these."""
    ordinary = torch.Tensor.__torch_dispatch__
    return tuple(
        [
            kind
            for kind in types
            if kind is not FakeTensor
            and getattr(kind, "__torch_dispatch__", ordinary) is not ordinary
        ]
    )


def _find(args: tuple[Any, ...], kwargs: dict[str, Any]) -> FakeTensor:
    pending: list[Any] = [*args, *kwargs.values()]
    while pending:
        item = pending.pop(0)
        if isinstance(item, FakeTensor):
            return item
        if isinstance(item, (list, tuple)):
            pending.extend(item)
    raise AssertionError("an operator without fake tensors reached FakeTensor")


@lru_cache(64)
def visible_device(device: torch.device) -> torch.device:
    """The device that C++ is told: the logical one if this process has it, else the CPU."""
    return device if _torch.device_is_available(device.type) else torch.device("cpu")


def meta_of(value: torch.Tensor) -> TensorMeta:
    """The metadata of a fake or real tensor."""
    if isinstance(value, FakeTensor):
        return value.meta
    return TensorMeta(
        tuple([expression_of(size) for size in value.shape]),
        tuple([expression_of(step) for step in value.stride()]),
        value.dtype,
        value.device,
        expression_of(value.storage_offset()),
    )


def fakeify(
    tensor: torch.Tensor,
    context: FakeContext,
    *,
    shape: Any = None,
    stride: Any = None,
    storage: Any = None,
) -> FakeTensor:
    """A fake with the metadata of `tensor`, a leaf that requires grad if `tensor` does.

    Args:
        tensor: the real tensor; its values are not read.
        context: what handles the operators on the fake.
        shape: sizes to use instead of the tensor's own (ints, SymInts or Expressions); strides
            that follow from the sizes become symbolic with them.
        stride: strides to use instead of those; only with `shape`.
        storage: the identity of the memory, for tensors that share it.
    """
    meta = meta_of(tensor)
    if shape is not None:
        sizes = _expressions(shape)
        steps = (
            _symbolic_stride(meta.shape, meta.stride, sizes)
            if stride is None
            else _expressions(stride)
        )
        meta = TensorMeta(sizes, steps, meta.dtype, meta.device, meta.storage_offset)
    return FakeTensor.create(meta, context, requires_grad=tensor.requires_grad, storage=storage)


def _expressions(numbers: Any) -> Shape:
    return tuple([expression_of(n) if isinstance(n, torch.SymInt) else n for n in numbers])


def _symbolic_stride(shape: Shape, stride: Shape, sizes: Shape) -> Shape:
    """The stride with each value that is a product of faster dimensions written in `sizes`.

    Dimensions are visited from the fastest; a stride equal to (size * stride) of an earlier one is
    that product in symbols, and any other stride stays the number it is.
    """
    known: dict[int, Any] = {1: 1}
    result = list(stride)
    order = sorted(range(len(shape)), key=lambda i: (stride[i], shape[i], -i))
    for dimension in order:
        step = stride[dimension]
        assert isinstance(step, int)
        symbolic = known.get(step, step)
        result[dimension] = symbolic
        size = shape[dimension]
        if isinstance(size, int) and size > 1 and step > 0:
            known[step * size] = symbolic * sizes[dimension]
    return tuple(result)
