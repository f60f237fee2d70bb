"""`tensor.data = value`: from here on a tensor is another one's memory, in its own history.

In: the recorder, a fake tensor that the program holds, and the new data. Out: the same fake with the geometry and
the node of the new data; a tensor from outside gets its data when the call is over. Invariant: what autograd knows
of a tensor that requires a gradient is never said of other data in the same graph: only code without gradients may
go on with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dynamo.errors import BreakReason, GraphBreak
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from dynamo.graph.recorder import Recorder

__all__ = ["has_history", "replace_data"]

_read_data: Any = vars(torch._C.TensorBase)["data"].__get__


def replace_data(recorder: Recorder, owner: Any, value: Any) -> None:
    """Record `owner.data = value`."""
    if owner.dtype is not value.dtype or owner.device != value.device:
        raise GraphBreak(
            BreakReason.UNSUPPORTED_MUTATION, "data of another dtype or device is assigned"
        )
    outside = recorder.is_input(owner)
    if owner.requires_grad and not outside:
        raise GraphBreak(
            BreakReason.UNSUPPORTED_MUTATION,
            "the data of a tensor with a gradient function is assigned",
        )
    alias = _read_data(value)
    old = recorder.nodes.get(id(owner))
    if old is not None and not outside:  # of an input `restore_placeholders` takes care
        old.meta["val"] = FakeTensor.create(owner.meta, recorder.context)
    with torch._C.DisableTorchFunction():
        owner.adopt(alias.meta)
    owner.storage = alias.storage
    recorder.nodes[id(owner)] = recorder.node_of(alias)
    recorder.known.written((owner,))
    if outside:
        recorder.replaced[id(owner)] = (owner, alias)


def has_history(value: Any) -> bool:
    """Whether autograd records what is done with a tensor."""
    with torch._C.DisableTorchFunctionSubclass():
        return bool(value.requires_grad and torch.is_grad_enabled())
