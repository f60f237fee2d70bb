"""What recorded calls write of tensors that others made.

Comes in: the nodes of a region. Goes out: whether one of them changes a tensor that was there before. Invariant: views
and detached ones count as what they are views of, and so do running statistics, whose changes no version tells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dynamo.graph.recorder import Recorder

__all__ = ["writes_outside"]


def writes_outside(recorder: Recorder, nodes: Iterable[torch.fx.Node]) -> bool:
    """Whether one of these calls writes a tensor that none of them made."""
    inside = set(nodes)
    return any(
        _moves_statistics(node)
        or any(not _made_by(recorder, value, inside) for value in _written(recorder, node))
        for node in inside
    )


def _written(recorder: Recorder, node: torch.fx.Node) -> Iterator[FakeTensor]:
    """The tensors that a call changed: it gives back what another call made, nothing, or its `out`."""
    value = node.meta.get("val")
    out = node.kwargs.get("out")
    given: list[Any] = [out] if isinstance(out, torch.fx.Node) else list(out or ())
    found = [one.meta.get("val") for one in (node.all_input_nodes if value is None else given)]
    if recorder.nodes.get(id(value)) is not node:
        found.append(value)
    return (one for one in found if type(one) is FakeTensor and id(one) in recorder.mutated)


def _made_by(recorder: Recorder, value: FakeTensor, nodes: set[torch.fx.Node]) -> bool:
    with torch._C.DisableTorchFunction():
        base = value._base
    made = recorder.nodes.get(id(value if base is None else base))
    while made is not None and made in nodes and _name(made) == "detach":
        made = made.all_input_nodes[0]  # of which autograd knows no base
    return made in nodes


def _name(node: torch.fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def _moves_statistics(node: torch.fx.Node) -> bool:
    """Whether a normalisation writes its running statistics, which no version counter tells."""
    name = _name(node)
    if name not in _NORMALISATIONS:
        return False
    found = dict(zip(_NORMALISATIONS[name], node.args[: len(_NORMALISATIONS[name])], strict=False))
    found.update(node.kwargs)
    training = found.get("training", found.get("use_input_stats", name == "instance_norm"))
    return bool(training) and found.get("running_mean") is not None


_NORMALISATIONS = {
    "batch_norm": ("input", "running_mean", "running_var", "weight", "bias", "training"),
    "instance_norm": ("input", "running_mean", "running_var", "weight", "bias", "use_input_stats"),
}
