"""The inputs of a trace: what the function is called with, and whose gradients it has.

Comes in: one `InputSpec` per distinct input, and the storages that several of them lie in. Goes out: placeholders
and fakes. An input that is no leaf is a `Fresh` copy, so that autograd treats it as the caller's; members of a
shared storage are views of one flat tensor. Invariant: one leaf (or None) per placeholder, in their order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from aot_autograd.recording import RecordingContext, made_like
from aot_autograd.sizes import symbol_of
from primtorch.fake import FakeTensor, TensorMeta

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aot_autograd.metadata import SharedStorage


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One distinct flat input.

    Attributes:
        position: Where it stands among the caller's flat inputs.
        meta: `TensorMeta`, a symbolic size, or a plain value.
        requires_grad: Of the real tensor.
        is_leaf: Of the real tensor; an in-place change of a leaf is the user's error.
        is_view: Whether the real tensor is a view in autograd's eyes.
        is_inference: Whether autograd refuses to save the real tensor, and everybody to change it: it was made
            in inference mode, and this isn't.
        tag: What `node.meta["input"]` says of it.
    """

    position: int
    meta: Any
    requires_grad: bool
    is_leaf: bool
    tag: Mapping[str, Any]
    is_view: bool = False
    is_inference: bool = False


class Fresh(torch.autograd.Function):
    """Differentiable identity onto a tensor that is neither a leaf nor a view."""

    @staticmethod
    def forward(ctx: Any, tensor: FakeTensor, keep_input: bool) -> FakeTensor:
        """A new tensor with the same value, on the same input when `keep_input`."""
        ctx.set_materialize_grads(False)
        context = tensor.context
        assert isinstance(context, RecordingContext), "only recorded fakes are copied"
        value = tensor.record
        result = FakeTensor.create(tensor.meta, context, environment=context.environment)
        number = value.storage.input if keep_input else None
        return context.bind(result, value.node, number)

    @staticmethod
    def backward(_ctx: Any, gradient: FakeTensor | None) -> tuple[FakeTensor | None, None]:
        """The gradient as it is, also where there is none."""
        return gradient, None


def make_inputs(
    context: RecordingContext, specs: Sequence[InputSpec], shared: Sequence[SharedStorage] = ()
) -> tuple[list[Any], list[FakeTensor | None]]:
    """Placeholders and fakes for the inputs.

    Inputs of a shared storage have no placeholder of their own: the storage, as one flat tensor,
    comes after the others, and they are `as_strided` views of it.

    Returns:
        What the function is called with, and for each placeholder the leaf that its gradient
        belongs to (None where it needs none).
    """
    arguments: list[Any] = []
    leaves: list[FakeTensor | None] = []
    members = {position for group in shared for position in group.members}
    for number, spec in enumerate(specs):
        if spec.position in members:
            arguments.append(None)
            continue
        node = context.placeholder(f"primal_{number}", spec.meta, dict(spec.tag))
        if not isinstance(spec.meta, TensorMeta):
            symbol = symbol_of(spec.meta)
            if symbol is not spec.meta and not isinstance(symbol, (int, float)):
                context.sizes.bind(symbol, node)
            arguments.append(spec.meta)
            leaves.append(None)
            continue
        with made_like(spec.is_inference):
            fake = FakeTensor.create(
                spec.meta,
                context,
                requires_grad=spec.requires_grad,
                environment=context.environment,
            )
        context.bind(fake, node, number)
        leaves.append(fake if spec.requires_grad else None)
        if spec.requires_grad and not spec.is_leaf:
            with torch.enable_grad():
                fake = Fresh.apply(fake, True)
        fake.record.storage.is_view = spec.is_view
        arguments.append(fake)
    for group_number, group in enumerate(shared):
        leaves.append(_make_members(context, specs, group, group_number, arguments))
    return arguments, leaves


def with_constant_layout(
    specs: Sequence[InputSpec], shared: Sequence[SharedStorage], environment: Any
) -> list[InputSpec]:
    """The specs, of which members of shared storages have numbers for sizes, guarded by the environment.

    How members overlap decides what a change of one is to another, and the storage has one length in any case.
    """
    members = {position for group in shared for position in group.members}

    def constant(spec: InputSpec) -> InputSpec:
        if environment is None or spec.position not in members:
            return spec
        meta: TensorMeta = spec.meta
        fixed = replace(
            meta,
            shape=tuple(map(environment.constant, meta.shape)),
            stride=tuple(map(environment.constant, meta.stride)),
            storage_offset=environment.constant(meta.storage_offset),
        )
        return replace(spec, meta=fixed)

    return [constant(spec) for spec in specs]


def numbers_of_graph_inputs(
    specs: Sequence[InputSpec], shared: Sequence[SharedStorage]
) -> list[int]:
    """What the storage of each input of a graph is called in a trace: an input's number, or -1 - the shared one's."""
    inside = {position for group in shared for position in group.members}
    own = [number for number, spec in enumerate(specs) if spec.position not in inside]
    return [*own, *[-1 - number for number in range(len(shared))]]


def members_of_storages(
    given: Sequence[Any], specs: Sequence[InputSpec], shared: Sequence[SharedStorage]
) -> list[Any]:
    """What a function is called with, one for each spec, of what its graph takes: inputs, then storages."""
    inside = {position for group in shared for position in group.members}
    own, bases = iter(given[: -len(shared)]), given[-len(shared) :]
    arguments: list[Any] = [None if spec.position in inside else next(own) for spec in specs]
    for base, group in zip(bases, shared, strict=True):
        for number, spec in enumerate(specs):
            if spec.position in group.members:
                meta: TensorMeta = spec.meta
                arguments[number] = torch.as_strided(
                    base, meta.shape, meta.stride, meta.storage_offset
                )
    return arguments


def _make_members(
    context: RecordingContext,
    specs: Sequence[InputSpec],
    group: SharedStorage,
    group_number: int,
    arguments: list[Any],
) -> FakeTensor | None:
    inside = [(number, spec) for number, spec in enumerate(specs) if spec.position in group.members]
    first = inside[0][1].meta
    meta = TensorMeta((group.length,), (1,), first.dtype, first.device)
    tag = {"kind": "argument", "name": f"storage_{group_number}", "static": False}
    node = context.placeholder(f"storage_{group_number}", meta, tag)
    leaf = base = FakeTensor.create(
        meta, context, requires_grad=group.requires_grad, environment=context.environment
    )
    context.bind(base, node, -1 - group_number)
    with torch.enable_grad():
        if group.requires_grad and not group.is_leaf:
            base = Fresh.apply(base, True)
        for number, spec in inside:
            own: TensorMeta = spec.meta
            view = torch.as_strided(base, own.shape, own.stride, own.storage_offset)
            arguments[number] = view
    return leaf if group.requires_grad else None
