"""Contexts that handle the operators on fake tensors, and the mode for factories.

`ShapeContext` infers results and records nothing: views share their base's `storage`, in-place
operators return the tensor itself, as eager does. `FakeMode` hands a context the operators on its
fakes directly; `FactoryMode` also those without tensor arguments, which a subclass never sees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from primtorch.errors import UnsupportedOperatorError
from primtorch.fake.infer import infer
from primtorch.fake.meta import TensorMeta
from primtorch.fake.refusals import refuse
from primtorch.fake.registry import functional_form, schema_of
from primtorch.fake.tensor import FakeContext, FakeTensor, fakeify, foreign_among, meta_of
from primtorch.symbolic import Expression, Real, RealNode, RealSymbol, SizeEnvironment
from primtorch.symbolic.predicate import equal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch._ops import OpOverload

# In-place operators that change the geometry of the tensor itself: the view that it becomes.
GEOMETRY_MUTATIONS = frozenset(
    f"aten::{name}_" for name in ("t", "transpose", "squeeze", "unsqueeze", "as_strided")
)
# Others, which a fake can't follow: the memory itself changes.
_REFUSED = frozenset(
    f"aten::{name}" for name in ("resize_", "resize_as_", "set_", "_resize_output_")
)


class ShapeContext:
    """Infers the results of operators on its fake tensors.

    Args:
        environment: the symbols of the sizes; None if all are static.
        decompositions: used for operators without a shape rule, passed on to `infer`.
    """

    __slots__ = ("decompositions", "environment")

    def __init__(
        self,
        environment: SizeEnvironment | None = None,
        *,
        decompositions: Mapping[OpOverload, Callable[..., Any]] | None = None,
    ) -> None:
        self.environment = environment
        self.decompositions = decompositions

    def handle(self, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        """The fake results of `op`; errors as `infer`."""
        if op is torch.ops.aten.size.default:
            return [int(size) for size in args[0].shape]  # C++ of torch 2.11 reads numbers
        if op is torch.ops.aten.is_same_size.default:
            one, other = map(meta_of, args)
            return self._same_shape(one, other)
        schema = schema_of(op)
        if not schema.outs:
            refuse(op, args, kwargs)
        if schema.is_mutable:
            return self._handle_mutation(op, args, kwargs)
        result = infer(op, args, kwargs, self.environment, decompositions=self.decompositions)
        storage = None
        if schema.viewed is not None:
            base = args[schema.viewed]
            storage = base.storage if isinstance(base, FakeTensor) else None
        return self._wrap(result, storage)

    def _handle_mutation(
        self, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> object:
        name = op._schema.name
        if name in GEOMETRY_MUTATIONS:
            return self._change_geometry(op, args, kwargs)
        if name == "aten::resize_" and args[0].shape == tuple(args[1]) and not kwargs:
            return args[0]  # as a factory does with its `out=` tensor
        if name in _REFUSED:
            raise UnsupportedOperatorError(op, "it changes the memory of a tensor in place")
        schema = schema_of(op)
        returned = schema.returned
        if schema.outs:
            self._check_out(op, schema.outs, args, kwargs)
        if None in returned:
            # Mutates an argument and returns fresh tensors (batch norm with running statistics).
            result = infer(op, args, kwargs, self.environment, decompositions=self.decompositions)
            return self._wrap(result, None)
        results = [
            kwargs[where] if isinstance(where, str) else args[where]
            for where in returned
            if where is not None
        ]
        if not results:
            return None
        return results[0] if len(results) == 1 else tuple(results)

    def _check_out(
        self, op: OpOverload, outs: frozenset[str], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Refuse an `out=` tensor of another shape than the result's: eager gives it other memory."""
        form = functional_form(op)
        if form is None:
            return
        written = [kwargs.get(one.name) for one in op._schema.arguments if one.is_out]
        rest = {name: value for name, value in kwargs.items() if name not in outs}
        result = infer(form, args, rest, self.environment, decompositions=self.decompositions)
        results = result if isinstance(result, tuple) else (result,)
        for tensor, new in zip(written, results, strict=False):
            if not (isinstance(tensor, FakeTensor) and isinstance(new, TensorMeta)):
                continue
            if not self._same_shape(tensor.meta, new):
                raise UnsupportedOperatorError(op, "its out= tensor would be resized")
        refuse(op, args, kwargs)

    def _same_shape(self, one: TensorMeta, other: TensorMeta) -> bool:
        if one.shape == other.shape or len(one.shape) != len(other.shape):
            return bool(one.shape == other.shape)
        if self.environment is None:
            return False
        decide = self.environment.decide
        return all(decide(equal(a, b)) for a, b in zip(one.shape, other.shape, strict=True))

    def _change_geometry(
        self, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> object:
        """`x.t_()` and its like: the tensor becomes the view that `x.t()` would be."""
        packet = getattr(torch.ops.aten, op._schema.name.removeprefix("aten::").removesuffix("_"))
        # `transpose_.default` is in place what `transpose.int` is.
        view = getattr(packet, op._overloadname, None) or packet.int
        args[0].adopt(infer(view, args, kwargs, self.environment))
        return args[0]

    def _wrap(self, value: Any, storage: Any) -> Any:
        """Metadata as fake tensors, expressions as symbolic sizes."""
        if value.__class__ is TensorMeta:
            return FakeTensor.create(value, self, storage=storage)
        if isinstance(value, (list, tuple)):
            return tuple([self._wrap(item, storage) for item in value])
        if isinstance(value, Expression):
            assert self.environment is not None
            return self.environment.symint(value)
        if isinstance(value, (Real, RealSymbol)):
            assert self.environment is not None
            return torch.SymFloat(RealNode(value, self.environment))
        return value

    def wrap_arguments(self, value: Any) -> Any:
        """Arguments given as metadata, or as tensors of other contexts, as fakes of this one."""
        if isinstance(value, TensorMeta):
            return FakeTensor.create(value, self)
        if isinstance(value, FakeTensor):
            return value if value.context is self else FakeTensor.create(value.meta, self)
        if isinstance(value, torch.Tensor):
            return fakeify(value.detach(), self)
        if isinstance(value, (list, tuple)):
            return type(value)([self.wrap_arguments(item) for item in value])
        return self._wrap(value, None)


class FactoryMode(TorchDispatchMode):
    """While active, factory calls without tensor arguments go to `context`.

    Operators on real tensors alone run as they are: their results are constants. What `torch.tensor` makes is the
    program's own, to write into as well: a context that has the method `lifted` is asked for a fake of it.
    """

    def __init__(self, context: FakeContext) -> None:
        super().__init__()
        self.context = context

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Don't wrap the handler below: the wrapper would import torch's own compiler."""
        return False

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        """Send `func` to the context of its fakes, to ours if it has no tensors, or run it."""
        kwargs = kwargs or {}
        foreign = foreign_among(types)
        if foreign:
            return self._beneath(foreign, func, types, args, kwargs)
        fake, real = _tensors(args, kwargs)
        if fake is not None:
            return fake.context.handle(func, args, kwargs)
        if real:
            lifted = getattr(self.context, "lifted", None)
            if func is torch.ops.aten.lift_fresh.default and lifted is not None:
                return lifted(args[0])
            return func(*args, **kwargs)
        return self.context.handle(func, args, kwargs)

    def _beneath(
        self,
        foreign: tuple[type, ...],
        func: OpOverload,
        types: tuple[type, ...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> object:
        """Let classes with operators of their own decide; the factories that they call are ours, too.

        Not so torch's own: they infer results under modes of theirs, which lie above this one.
        """
        if any(kind.__module__.partition(".")[0] == "torch" for kind in foreign):
            return func(*args, **kwargs)
        with self:
            for kind in foreign:
                handler: Any = kind.__torch_dispatch__  # type: ignore[attr-defined]
                result: object = handler(func, types, args, kwargs)
                if result is not NotImplemented:
                    return result
        return func(*args, **kwargs)


class FakeMode(TorchDispatchMode):
    """While active, operators on fake tensors go to their context without the subclass's dispatch.

    The results are the same. But the first operator that torch hands to a subclass makes it import
    `torch.distributed.tensor`, and sympy with it: half a second, more than a small compile takes.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """As for `FactoryMode`."""
        return False

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        """Send `func` to the context of its fakes, or run it."""
        kwargs = kwargs or {}
        for argument in args:
            if argument.__class__ is FakeTensor:
                return argument.context.handle(func, args, kwargs)
        fake, _ = _tensors(args, kwargs)
        if fake is not None:
            return fake.context.handle(func, args, kwargs)
        return func(*args, **kwargs)


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[FakeTensor | None, bool]:
    """The first fake tensor among the arguments, and whether there is a real one."""
    real = False
    pending: list[Any] = [*args, *kwargs.values()]
    for item in pending:
        if item.__class__ is FakeTensor:
            return item, real
        if isinstance(item, torch.Tensor):
            real = True
        elif isinstance(item, (list, tuple)):
            pending.extend(item)
    return None, real
