"""What comes into a graph from outside: tensors as fakes, and a placeholder for each that is used.

Comes in: a real tensor or a number, and its source. Goes out: its fake, its guard on the session, and a placeholder
whose `meta["input"]` is that of wire 1. Invariant: numbers come before tensors, both before the first call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from dynamo.errors import BreakReason, GraphBreak
from dynamo.graph.wrappers import grown
from dynamo.guards import GuardKind, TensorGuard
from dynamo.source import ModuleMemberSource
from primtorch.fake import FakeTensor, fakeify

if TYPE_CHECKING:
    from dynamo.graph.recorder import Recorder
    from dynamo.source import Source
    from dynamo.values.session import Session

__all__ = ["GraphInput", "placeholder", "plain_input", "restore_placeholders", "size_placeholder"]


@dataclass(slots=True)
class GraphInput:
    """One placeholder: where its value comes from and what it stands for."""

    source: Source
    value: Any
    node: torch.fx.Node
    real: Any
    meta: Any = None  # of a tensor: as it comes in; the program may change its layout in place


def plain_input(
    recorder: Recorder, session: Session, real: torch.Tensor, source: Source, *, static: bool
) -> Any:
    """The fake of a tensor without operators of its own; what it promises of its layout is guarded."""
    if real.layout is not torch.strided:
        raise GraphBreak(BreakReason.UNSUPPORTED_VALUE, f"{source.name()} is {real.layout}")
    if real.requires_grad and not (real.is_floating_point() or real.is_complex()):
        raise GraphBreak(
            BreakReason.UNSUPPORTED_VALUE,
            f"{source.name()} is of {real.dtype} and has a history: a tensor with a gradient was written into it",
        )
    shape: Any = None
    dynamic: tuple[int, ...] = ()
    if recorder.sizes is not None and not static:
        shape, dynamic = recorder.sizes.shape_of(source, real)
    fake = fakeify(real, recorder.context, shape=shape)
    steps: tuple[int, ...] = ()
    if recorder.sizes is not None and not static:
        stride, steps = recorder.sizes.stride_of(source, fake.meta.stride)
        if steps:
            sizes = real.shape if shape is None else shape
            fake = fakeify(real, recorder.context, shape=sizes, stride=stride)
    if real.requires_grad and not real.is_leaf:
        fake = grown(fake)
    strides: tuple[int, ...] = ()
    if recorder.sizes is not None and dynamic:
        strides = recorder.sizes.guard_strides(source, real, fake.meta.stride, steps)
    session.guard(
        GuardKind.TENSOR,
        source,
        TensorGuard.of(real, dynamic_sizes=dynamic, dynamic_strides=(*strides, *steps)),
    )
    return fake


def _name(source: Source) -> str:
    return "".join(c if c.isalnum() else "_" for c in source.name()).strip("_")


def placeholder(recorder: Recorder, source: Source, value: Any, real: Any) -> torch.fx.Node:
    """A new placeholder of a tensor, before the first node."""
    name = _name(source) or "input"
    first = recorder._first
    if first is None:
        node = recorder.graph.placeholder(f"l_{name}")
    else:
        with recorder.graph.inserting_before(first):
            node = recorder.graph.placeholder(f"l_{name}")
    node.target = node.name  # two paths may spell alike: `a.b` and `a_b`
    node.meta["val"] = value
    node.meta["input"] = _meta(source, real)
    recorder.nodes[id(value)] = node
    layout = getattr(value, "meta", None)
    recorder.inputs.append(GraphInput(source, value, node, real, layout))
    return node


def size_placeholder(
    recorder: Recorder, source: Source, value: Any, hint: Any, meta: dict[str, Any]
) -> torch.fx.Node:
    """The placeholder of a number; numbers come before tensors."""
    graph = recorder.graph
    if recorder.size_inputs:
        place = graph.inserting_after(recorder.size_inputs[-1].node)
    else:
        place = graph.inserting_before(next(iter(graph.nodes), None))
    with place:
        node = graph.placeholder(f"l_{_name(source)}")
    node.target = node.name
    node.meta["val"] = value
    node.meta["input"] = meta
    recorder.size_inputs.append(GraphInput(source, value, node, hint))
    return node


def restore_placeholders(recorder: Recorder) -> None:
    """Describe each input as it comes in, whatever the program did to its layout."""
    for entry in recorder.inputs:
        if entry.meta is not None and entry.value.meta is not entry.meta:
            with torch._C.DisableTorchFunctionSubclass():
                wanted = entry.real.requires_grad
            entry.node.meta["val"] = FakeTensor.create(
                entry.meta, recorder.context, requires_grad=wanted
            )


def _meta(source: Source, real: torch.Tensor) -> dict[str, Any]:
    name = source.name()
    kind = "argument"
    if isinstance(real, torch.nn.Parameter):
        kind = "parameter"
    elif isinstance(source, ModuleMemberSource) and source.table == "_buffers":
        kind = "buffer"
    return {"kind": kind, "name": name, "static": kind in ("parameter", "buffer")}
