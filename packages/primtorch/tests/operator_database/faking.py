"""Runs a decomposition again on fake tensors and compares what it says with what really came out."""

from __future__ import annotations

import torch
from torch.utils import _pytree as pytree

from primtorch.errors import DataDependentError, UnsupportedOperatorError
from primtorch.fake import FactoryMode, FakeTensor, ShapeContext, fakeify, meta_of
from primtorch.symbolic import SizeEnvironment


class TableContext(ShapeContext):
    """Infers through `table`: an operator in it is run by its decomposition."""

    def __init__(self, table, environment=None):
        super().__init__(environment)
        self.table = table
        self.mode = FactoryMode(self)

    def handle(self, op, args, kwargs):
        function = self.table.get(op)
        if function is not None:
            with self.mode:
                out = function(*args, **kwargs)
            if out is not NotImplemented:
                return out
        return super().handle(op, args, kwargs)


def described(tensor, environment):
    """Sizes (their hints, if symbolic), strides that matter, dtype."""
    meta = meta_of(tensor)
    hint = (lambda value: value) if environment is None else environment.hint
    shape, stride = tuple(map(hint, meta.shape)), tuple(map(hint, meta.stride))
    significant = [s for s, n in zip(stride, shape, strict=True) if n > 1] if 0 not in shape else []
    return shape, tuple(significant), meta.dtype


def difference_on_fakes(table, function, args, kwargs, real, symbolic):
    """An empty string if the decomposition says of fakes what it yields for real tensors.

    If `symbolic`, every size from 2 up is a symbol, the same for equal sizes.
    """
    environment = SizeEnvironment() if symbolic else None
    context = TableContext(table, environment)
    symbols = {}

    def size(value):
        if value < 2:
            return value
        if value not in symbols:
            symbols[value] = environment.create_size(f"s{len(symbols)}", value)
        return symbols[value]

    def fake(leaf):
        if isinstance(leaf, torch.Tensor):
            if leaf.layout is not torch.strided or leaf.is_conj() or leaf.is_neg():
                raise DataDependentError("a layout that fakes don't carry", None)
            shape = [size(n) for n in leaf.shape] if symbolic else None
            return fakeify(leaf.detach(), context, shape=shape)
        return leaf

    try:
        args, kwargs = pytree.tree_map(fake, (args, kwargs))
        with context.mode:
            out = function(*args, **kwargs)
    except (DataDependentError, UnsupportedOperatorError) as error:
        return "" if isinstance(error, DataDependentError) else f"unsupported: {error!s:.120}"
    except Exception as error:  # noqa: BLE001  whatever it is, it is the finding
        return f"raised {type(error).__name__}: {error!s:.160}"
    if out is NotImplemented:
        return ""  # without data it may decline, and the operator stays whole
    expected = [leaf for leaf in pytree.tree_leaves(real) if isinstance(leaf, torch.Tensor)]
    found = [leaf for leaf in pytree.tree_leaves(out) if isinstance(leaf, torch.Tensor)]
    if len(expected) != len(found):
        return f"{len(found)} tensors for {len(expected)}"
    for left, right in zip(expected, found, strict=True):
        if not isinstance(right, FakeTensor):
            return "a real tensor came out"
        wanted, got = described(left, None), described(right, environment)
        if wanted != got:
            return f"{got} for {wanted}"
    return ""
