"""In-place, `out=` and hidden mutations, rewritten as functional calls and writes.

Comes in: a mutating operator and its arguments. Goes out: the same operator's functional form,
recorded, and one `write` per mutated argument; the caller gets the mutated tensors themselves, as
eager returns them. The functional form is found in ATen by name and schema, once per overload.
Hidden mutations (a schema that does not declare that running statistics change) are a table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from aot_autograd import functional
from aot_autograd._torch import (
    OpOverload,
    has_composite_explicit,
    has_composite_implicit,
    increment_version,
    run_composite_explicit,
    run_composite_implicit,
    version_of,
)
from aot_autograd.errors import UnsupportedOperator
from primtorch import DRAWN_IN_PLACE, draws_in_place
from primtorch.fake import FakeTensor, functional_form

if TYPE_CHECKING:
    from collections.abc import Callable

    from aot_autograd.metadata import ViewChain, ViewStep
    from aot_autograd.recorder import Recorder

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class HiddenMutation:
    """An operator that changes arguments which its schema calls read-only.

    Attributes:
        functional: The overload that returns the new values after the ordinary results.
        results: Number of ordinary results.
        mutated: Argument positions of the mutated tensors.
        training: Argument position of the flag without which nothing is mutated.
        alone: The overload for training without those arguments, which takes the others.
    """

    functional: OpOverload
    results: int
    mutated: tuple[int, ...]
    training: int
    alone: OpOverload


HIDDEN_MUTATIONS: dict[OpOverload, HiddenMutation] = {
    operator: HiddenMutation(
        aten._native_batch_norm_legit_functional.default,
        3,
        (3, 4),
        5,
        aten._native_batch_norm_legit.no_stats,
    )
    for operator in (
        aten.native_batch_norm.default,
        aten.miopen_batch_norm.default,
    )
}
"""Operators whose running statistics change although their schema does not say so."""


def hidden_mutation(
    context: Recorder, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run an operator of `HIDDEN_MUTATIONS` as its functional form and its writes."""
    rule = HIDDEN_MUTATIONS[operator]
    names = [argument.name for argument in operator._schema.arguments]
    args = args + tuple(kwargs[name] for name in names[len(args) :] if name in kwargs)
    mutated = [args[position] for position in rule.mutated]
    if args[rule.training] and all(tensor is None for tensor in mutated):
        others = [arg for position, arg in enumerate(args) if position not in rule.mutated]
        return context.handle(rule.alone, tuple(others), {})
    if not args[rule.training] or mutated[0] is None:
        result = context.decomposed(operator, args, {})
        return context.record(operator, args, {}) if result is NotImplemented else result
    results = context.handle(rule.functional, args, {})
    with torch.no_grad():
        for tensor, new in zip(mutated, results[rule.results :], strict=True):
            _assign(context, tensor, new)
    return tuple(results[: rule.results])


def mutation(
    context: Recorder, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run a mutating operator as a functional one and writes."""
    special = SPECIAL.get(operator)
    if special is not None:
        return special(context, *args, **kwargs)
    if context.fallback_random and draws_in_place(operator) and kwargs.get("generator") is None:
        return _drawn(context, operator, args, kwargs)
    name = operator.name()
    if name.startswith("aten::_foreach"):
        return _foreach(operator, args, kwargs)
    if operator.overloadpacket in LAYOUT_CHANGES:
        return change_layout(context, operator, args, kwargs)
    if operator is aten.resize_.default and args[0].shape == tuple(args[1]) and not kwargs:
        return args[0]  # as a factory does with its `out=` tensor
    if operator.overloadpacket in REFUSED:
        raise UnsupportedOperator(
            f"{operator} while tracing",
            "it changes what memory a tensor stands for",
            "assign a new tensor instead",
            context.source_line,
        )
    form = functional_form(operator)
    if form is None:
        if has_composite_implicit(operator):
            return run_composite_implicit(operator, args, kwargs)
        if has_composite_explicit(operator):
            return run_composite_explicit(operator, args, kwargs)
        raise UnsupportedOperator(
            f"{operator} while tracing",
            "it mutates its arguments and ATen has no functional form of it",
            "call its out-of-place form",
            context.source_line,
        )
    return _through_functional(context, operator, form, args, kwargs)


def _drawn(
    context: Recorder, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> FakeTensor:
    """Fill a tensor by the operator itself, in a tensor of the same layout: eager's order depends on it."""
    tensor: FakeTensor = args[0]
    meta = tensor.meta
    numbers = list(args[1:])
    for argument in [one for one in operator._schema.arguments if not one.kwarg_only][len(args) :]:
        if argument.name in kwargs:
            numbers.append(kwargs[argument.name])
        elif argument.has_default_value():
            numbers.append(argument.default_value)
    while numbers and numbers[-1] is None:
        numbers.pop()
    layout = (list(tensor.shape), list(tensor.stride()), not functional.is_dense(meta))
    options = {"dtype": tensor.dtype, "device": meta.device}
    new = context.handle(DRAWN_IN_PLACE, (str(operator), *layout, numbers), options)
    functional.write(context, tensor, new)
    return tensor


def _foreach(operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An in-place operator on lists: ATen's own loop, and the count that eager's loop makes."""
    before = [version_of(tensor) for tensor in args[0]]
    result = run_composite_explicit(operator, args, kwargs)
    for tensor, version in zip(args[0], before, strict=True):
        if tensor.is_inference():
            # So says ATen's loop, which does its work all the same.
            raise RuntimeError(
                "Inplace update to inference tensor outside InferenceMode is not allowed."
            )
        if version_of(tensor) == version:
            increment_version(tensor)
    return result


def _through_functional(
    context: Recorder,
    operator: OpOverload,
    form: OpOverload,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    schema = operator._schema.arguments
    written: list[Any] = []
    call_args: list[Any] = []
    call_kwargs = dict(kwargs)
    for position, argument in enumerate(schema):
        is_write = argument.alias_info is not None and argument.alias_info.is_write
        given = args[position] if position < len(args) else kwargs.get(argument.name)
        if is_write:
            written.append(given)
        if argument.is_out:
            call_kwargs.pop(argument.name, None)
        elif position < len(args):
            call_args.append(args[position])
        elif argument.name not in call_kwargs and argument.has_default_value():
            # The functional form may have another default.
            if argument.kwarg_only:
                call_kwargs[argument.name] = argument.default_value
            else:
                call_args.append(argument.default_value)
    own = {argument.name for argument in schema}
    for argument in form._schema.arguments:
        if argument.name in ("dtype", "device") and argument.name not in own:  # of a factory
            call_kwargs[argument.name] = getattr(written[0], argument.name)
    results = context.handle(form, tuple(call_args), call_kwargs)
    if not isinstance(results, (tuple, list)):
        results = (results,)
    new_values = results[len(results) - len(written) :]
    out = any(argument.is_out for argument in schema)
    if out:
        for tensor, new in zip(written, new_values, strict=True):
            _check_out(context, operator, tensor, new, args)
    for tensor, new in zip(written, new_values, strict=True):
        _assign(context, tensor, new, out=out)
    if not operator._schema.returns:
        return None
    # ATen reads as many results as the schema has: those that are no argument, then those that are.
    returns = operator._schema.returns
    aliased = sum(result.alias_info is not None for result in returns)
    returned = (*results[: len(returns) - aliased], *written[:aliased])
    return returned[0] if len(operator._schema.returns) == 1 else returned


_POINTWISE = frozenset(("floor_divide",))  # without the tag
_ADDING = frozenset(("addmm", "baddbmm", "addbmm", "addmv", "addr"))


def _check_out(
    context: Recorder, operator: OpOverload, tensor: Any, new: Any, args: tuple[Any, ...]
) -> None:
    """What an `out=` tensor has to be for the write to mean what it does in eager.

    Raises:
        UnsupportedOperator: eager may refuse it, by rules of each operator's own; the graph runs eagerly.
    """
    if not isinstance(tensor, FakeTensor) or not isinstance(new, FakeTensor):
        return
    reason = ""
    # Products that add to their first operand may add in place.
    others = args[1:] if operator._opname in _ADDING and args[0] is tensor else args
    if any(
        step == 0 and size != 1 for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    ):
        reason = "several of its elements lie in one place of memory"
    elif torch.Tag.pointwise not in operator.tags and operator._opname not in _POINTWISE:
        if tensor.dtype != new.dtype:
            reason = f"its dtype is {tensor.dtype}, the result's {new.dtype}"
        elif any(
            isinstance(arg, FakeTensor) and arg.record.storage is tensor.record.storage
            for arg in pytree.tree_leaves(others)
        ):
            reason = "it shares memory with an operand"
    elif not torch.can_cast(new.dtype, tensor.dtype):
        reason = f"its dtype is {tensor.dtype}, the result's {new.dtype}"
    if reason:
        raise UnsupportedOperator(
            f"the out= tensor of {operator}", reason, "use the result instead", context.source_line
        )


def _assign(context: Recorder, tensor: Any, new: Any, *, out: bool = False) -> None:
    if isinstance(tensor, (tuple, list)):
        for one, other in zip(tensor, new, strict=True):
            _assign(context, one, other, out=out)
        return
    if not isinstance(tensor, FakeTensor):
        raise UnsupportedOperator(
            "an in-place change of a tensor made outside the graph",
            "the tensor is a constant of the graph, so the change would be lost",
            "pass the tensor as an argument",
            context.source_line,
        )
    if tuple(new.shape) != tuple(tensor.shape):
        if out:
            raise UnsupportedOperator(
                "an out= tensor that must be resized",
                "its shape would change",
                "allocate it in the shape of the result",
                context.source_line,
            )
        raise RuntimeError(
            f"output with shape {list(tensor.shape)} doesn't match the broadcast shape "
            f"{list(new.shape)}"
        )
    if new.dtype != tensor.dtype:
        new = context.operate(aten._to_copy.default, new, dtype=tensor.dtype)
    functional.write(context, tensor, new)


def copy_(
    context: Recorder,
    self: FakeTensor,
    source: Any,
    non_blocking: bool = False,
    *,
    uniform: bool = False,
) -> FakeTensor:
    """`self.copy_(source)`: cast, moved, broadcast, then written."""
    new = source if isinstance(source, FakeTensor) else context.constant(source)
    device = self.meta.device
    if new.meta.device != device:
        new = context.operate(
            aten._to_copy.default, new, dtype=self.dtype, device=device, non_blocking=non_blocking
        )
    elif new.dtype != self.dtype:
        new = context.operate(aten._to_copy.default, new, dtype=self.dtype)
    if tuple(new.shape) != tuple(self.shape):
        new = context.operate(aten.expand.default, new, list(self.shape))
    functional.write(context, self, new, uniform=uniform)
    return self


def fill_(context: Recorder, self: FakeTensor, value: Any) -> FakeTensor:
    """`self.fill_(number)`."""
    new = context.operate(aten.full_like.default, self, value)
    functional.write(context, self, new, uniform=True)
    return self


def fill_tensor_(context: Recorder, self: FakeTensor, value: Any) -> FakeTensor:
    """`self.fill_(0-d tensor)`."""
    return copy_(context, self, value, uniform=True)


def zero_(context: Recorder, self: FakeTensor) -> FakeTensor:
    """`self.zero_()`."""
    return fill_(context, self, 0)


def detach_(_context: Recorder, self: FakeTensor) -> FakeTensor:
    """`self.detach_()`: autograd has done it already."""
    return self


def rrelu_with_noise(
    context: Recorder, self: FakeTensor, noise: FakeTensor, *options: Any, **more: Any
) -> Any:
    """Its functional form keeps the layout of what it is given; the operator itself gives rows."""
    operator = aten.rrelu_with_noise.default
    form = aten.rrelu_with_noise_functional.default
    result = _through_functional(context, operator, form, (self, noise, *options), more)
    return context.operate(aten.clone.default, result, memory_format=torch.contiguous_format)


SPECIAL: dict[OpOverload, Callable[..., FakeTensor]] = {
    aten.rrelu_with_noise.default: rrelu_with_noise,
    aten.copy_.default: copy_,
    aten.fill_.Scalar: fill_,
    aten.fill_.Tensor: fill_tensor_,
    aten.zero_.default: zero_,
    aten.detach_.default: detach_,
}
"""In-place operators with a rule of their own."""

LAYOUT_CHANGES = {
    aten.t_: aten.t,
    aten.transpose_: aten.transpose,
    aten.swapaxes_: aten.transpose,
    aten.swapdims_: aten.transpose,
    aten.squeeze_: aten.squeeze,
    aten.unsqueeze_: aten.unsqueeze,
    aten.as_strided_: aten.as_strided,
}
"""In-place operators that change a tensor's sizes and strides, and the view each applies."""

IN_PLACE_LAYOUTS: dict[OpOverload, OpOverload] = {
    aten.t.default: aten.t_.default,
    aten.transpose.int: aten.transpose_.default,
    aten.squeeze.default: aten.squeeze_.default,
    aten.squeeze.dim: aten.squeeze_.dim,
    aten.squeeze.dims: aten.squeeze_.dims,
    aten.unsqueeze.default: aten.unsqueeze_.default,
    aten.as_strided.default: aten.as_strided_.default,
}
"""For each view of `LAYOUT_CHANGES`, the operator that makes it in place."""


def undoing(layout: ViewChain) -> ViewChain:
    """Views that lead from a tensor whose layout changed in place back to what it was."""
    steps: list[ViewStep] = []
    for step in reversed(layout):
        match step.operator:
            case aten.t.default | aten.transpose.int:
                steps.append(step)
            case aten.unsqueeze.default:
                steps.append(replace(step, operator=aten.squeeze.dim))
            case aten.as_strided.default:
                old = step.base
                arguments = (old.shape, old.stride, old.storage_offset)
                steps.append(replace(step, arguments=arguments))
            case _:  # a squeeze of some kind
                view = aten.view.default
                steps.append(replace(step, operator=view, arguments=(step.base.shape,)))
    return tuple(steps)


REFUSED = frozenset((aten.set_, aten.resize_, aten.resize_as_, aten.set_data))
"""Operators after which a tensor stands for other memory."""


def change_layout(
    context: Recorder, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`t_`, `unsqueeze_` and the like: the same memory seen through one more view."""
    tensor = args[0]
    storage = tensor.record.storage if isinstance(tensor, FakeTensor) else None
    if storage is None or (
        tensor.requires_grad
        and (tensor._is_view() or storage.is_view or storage.aliases or not torch.is_grad_enabled())
    ):
        raise UnsupportedOperator(
            f"{operator} while tracing",
            "it changes in place the shape of a constant, or of a tensor that autograd follows: of "
            "a view, of one that has views, or under no_grad",
            "use the out-of-place view",
            context.source_line,
        )
    packet = LAYOUT_CHANGES[operator.overloadpacket]
    view: OpOverload = getattr(packet, operator._overloadname, None) or packet.int
    result = context.handle(view, args, kwargs)
    storage.aliases -= 1
    value = tensor.record
    tensor.adopt(result.meta)
    value.chain = result.record.chain
    value.node = result.record.node
    value.generation = result.record.generation
    if value.storage.root is tensor:
        value.storage.layout = value.chain
    return tensor
