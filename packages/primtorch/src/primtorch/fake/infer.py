"""From an operator and the metadata of its arguments to the metadata of its results.

`infer` takes fake or real tensors or `TensorMeta`s, and returns `TensorMeta`s. In order: the shape
rule; a decomposition that the caller passes; ATen's own decomposition of composite operators; a rule
for symbolic sizes alone; the meta device (static sizes only); for symbolic sizes what the registered
decomposition makes. Nothing is recorded anywhere, except guards in the environment of symbolic sizes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from primtorch._torch import fake_implementation
from primtorch.errors import DataDependentError, PrimtorchError, UnsupportedOperatorError
from primtorch.fake.meta import TensorMeta, logical_device
from primtorch.fake.registry import RULES, SYMBOLIC_RULES, schema_of
from primtorch.fake.tensor import FakeTensor, meta_of
from primtorch.symbolic import (
    STATIC,
    Expression,
    IntegerNode,
    Real,
    RealNode,
    RealSymbol,
    SizeEnvironment,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch._ops import OpOverload


# Operators whose results depend on data, with what they ask.
DATA_DEPENDENT = {
    "aten::item": "the value of a tensor",
    "aten::equal": "whether two tensors are equal",
    "aten::is_nonzero": "the truth value of a tensor",
    "aten::unique_dim": "the number of unique elements",
    "aten::unique_dim_consecutive": "the number of unique elements",
    "aten::allclose": "whether two tensors are close",
}


def infer(
    op: OpOverload,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    environment: SizeEnvironment | None = None,
    *,
    decompositions: Mapping[OpOverload, Callable[..., Any]] | None = None,
) -> Any:
    """The metadata of the results of `op`.

    Args:
        op: an operator overload.
        args: its arguments: fake tensors, real tensors, TensorMetas, sizes, numbers.
        kwargs: its keyword arguments.
        environment: the symbols of the sizes; needed only if a size is an Expression.
        decompositions: used for an operator without a shape rule.

    Returns:
        TensorMeta, int, Expression, float, bool, None, or a tuple or list of these.

    Raises:
        DataDependentError: the result depends on the data of a tensor.
        UnsupportedOperatorError: nothing here knows the operator.
        Exception: what eager raises for bad arguments.
    """
    rule = RULES.get(op)
    if environment is not None:
        environment.operator = op
    if rule is not None:
        sizes = STATIC if environment is None else environment
        plain = [_plain(argument) for argument in args]
        if kwargs:
            return rule(sizes, *plain, **{key: _plain(value) for key, value in kwargs.items()})
        return rule(sizes, *plain)
    return _infer_without_rule(op, args, kwargs or {}, environment, decompositions)


def _plain(value: Any) -> Any:
    """The value as shape rules want it."""
    kind = value.__class__
    if kind is FakeTensor:
        return value.meta
    if kind is int or kind is float or kind is bool or value is None or kind is TensorMeta:
        return value
    if kind is list or kind is tuple:
        return [_plain(item) for item in value]
    if isinstance(value, torch.SymInt):
        node = value.node
        return node.expression if isinstance(node, IntegerNode) else int(value)
    if isinstance(value, torch.SymBool):
        return bool(value)
    if isinstance(value, torch.SymFloat):
        node = value.node
        return node.value if isinstance(node, RealNode) else float(value)
    if isinstance(value, torch.Tensor):
        return meta_of(value)
    return value


def _infer_without_rule(
    op: OpOverload,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    environment: SizeEnvironment | None,
    decompositions: Mapping[OpOverload, Callable[..., Any]] | None,
) -> Any:
    asked = DATA_DEPENDENT.get(op.name())
    if asked is not None:
        line = None if environment is None else environment.line()
        raise DataDependentError(asked, line, operator=op)
    decomposition = None if decompositions is None else decompositions.get(op)
    if decomposition is not None or schema_of(op).composite:
        from primtorch.fake.context import ShapeContext  # the context infers through this module

        context = ShapeContext(environment, decompositions=decompositions)
        fake = context.wrap_arguments
        function = decomposition or op.decompose
        result = function(*fake(args), **{key: fake(value) for key, value in kwargs.items()})
        if result is not NotImplemented:  # a decomposition may decline a call
            return _metas(result)
    if environment is not None:
        plain = [_plain(argument) for argument in args]
        named = {key: _plain(value) for key, value in kwargs.items()}
        if _has_symbol((plain, list(named.values()))):
            rule = SYMBOLIC_RULES.get(op)
            if rule is not None:
                return rule(environment, *plain, **named)
            found = _infer_by_parts(op, args, kwargs, environment)
            if found is not NotImplemented:
                return found
    return _infer_on_meta_device(op, args, kwargs, environment)


def _infer_by_parts(
    op: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any], environment: SizeEnvironment
) -> Any:
    """What the registered decomposition makes of symbolic sizes; NotImplemented where there is none.

    An operator of the user's has the function that `torch.library.register_fake` was given.
    """
    from primtorch.fake.context import FactoryMode, ShapeContext  # it infers through this module
    from primtorch.registry import registered

    function = registered().get(op) or fake_implementation(op.name())
    if function is None:
        return NotImplemented
    context = ShapeContext(environment, decompositions=registered())
    fake = context.wrap_arguments
    with FactoryMode(context):
        result = function(*fake(args), **{key: fake(value) for key, value in kwargs.items()})
    return result if result is NotImplemented else _metas(result)


def _has_symbol(value: Any) -> bool:
    """Whether a size among the arguments is symbolic."""
    if isinstance(value, TensorMeta):
        return not value.is_static
    if isinstance(value, (list, tuple)):
        return any(map(_has_symbol, value))
    return isinstance(value, Expression)


def _metas(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return meta_of(result)
    if isinstance(result, (list, tuple)):
        return tuple([_metas(item) for item in result])
    return _plain(result)


def _infer_on_meta_device(
    op: OpOverload,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    environment: SizeEnvironment | None,
) -> Any:
    """Run the operator on meta tensors; only where its layout doesn't depend on the device.

    Of a float that varies it gets the traced value: metadata doesn't hang on it.
    """
    devices: list[torch.device] = []

    def convert(value: Any) -> Any:
        value = _plain(value)
        if isinstance(value, TensorMeta):
            if not value.is_static:
                raise UnsupportedOperatorError(op, "it has no shape rule for symbolic sizes")
            devices.append(value.device)
            return torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device="meta")
        if isinstance(value, list):
            return [convert(item) for item in value]
        if isinstance(value, Expression):
            raise UnsupportedOperatorError(op, "it has no shape rule for symbolic sizes")
        if isinstance(value, (Real, RealSymbol)):
            if environment is None or not environment.has_hint(value):
                raise UnsupportedOperatorError(op, "it takes a number that only run time tells")
            return environment.real_hint(value)
        if isinstance(value, torch.device):
            devices.append(logical_device(value))
            return torch.device("meta")
        return value

    def restore(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            device = next((d for d in devices if d.type != "cpu"), None)
            device = device or (devices[0] if devices else torch.device("cpu"))
            return TensorMeta(tuple(value.shape), value.stride(), value.dtype, device)
        if isinstance(value, (list, tuple)):
            return tuple([restore(item) for item in value])
        return value

    converted = [convert(argument) for argument in args]
    keywords = {key: convert(value) for key, value in kwargs.items()}
    try:
        result = op(*converted, **keywords)
    except NotImplementedError as error:
        raise UnsupportedOperatorError(
            op, "it has neither a shape rule nor a meta kernel"
        ) from error
    except PrimtorchError:
        raise
    return restore(result)
