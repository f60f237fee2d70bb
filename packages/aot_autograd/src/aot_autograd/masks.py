"""Attention masks that are the same in every call: dropped, or named, so that the fastest kernel fits.

Model code that can't look at data while it is captured builds a mask even where nothing is masked. Such a mask
depends on no input of the graph; its few operators are run once, for real, at compile time. All true means no mask,
lower triangular means causal. Comes in: the captured graph. Goes out: keyword arguments for its attention nodes.
Invariant: attention's value is unchanged; a mask that can't be proven constant stays.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from torch import fx

__all__ = ["simplified_masks"]

_MOST_NODES = 200
_MOST_ELEMENTS = 1 << 26
_NOT_FIXED = (
    "rand",
    "empty",
    "new_empty",
    "bernoulli",
    "dropout",
    "normal",
    "multinomial",
    "poisson",
)
_WRITES = {
    operator.setitem,
    operator.delitem,
    operator.iadd,
    operator.isub,
    operator.imul,
    operator.itruediv,
    operator.ifloordiv,
    operator.imod,
    operator.ipow,
    operator.iand,
    operator.ior,
    operator.ixor,
    operator.ilshift,
    operator.irshift,
}
_WRITING_METHODS = {f"__{function.__name__}__" for function in _WRITES}


def simplified_masks(module: fx.GraphModule) -> dict[fx.Node, dict[str, Any]]:
    """For each attention node whose mask can go: the keyword arguments that change.

    Runs a mask's operators for real: call it while no tracing mode is active.
    """
    constant = _constants(module)
    known: dict[fx.Node, dict[str, Any]] = {}
    result: dict[fx.Node, dict[str, Any]] = {}
    for node in module.graph.nodes:
        if (
            node.target is not torch.nn.functional.scaled_dot_product_attention
            or len(node.args) > 3
        ):
            continue
        mask = node.kwargs.get("attn_mask")
        if not hasattr(mask, "all_input_nodes") or node.kwargs.get("is_causal"):
            continue
        if mask not in known:
            known[mask] = _change(module, mask) if mask in constant else {}
        if known[mask]:
            result[node] = known[mask]
    return result


def _change(module: fx.GraphModule, mask: fx.Node) -> dict[str, Any]:
    value = _constant(module, mask)
    if value is None:
        return {}
    taking_part = value if value.dtype is torch.bool else value == 0
    if bool(taking_part.all()):
        return {"attn_mask": None}
    if _is_causal(value, taking_part):
        return {"attn_mask": None, "is_causal": True}
    return {}


def _is_causal(value: torch.Tensor, taking_part: torch.Tensor) -> bool:
    if value.ndim < 2 or value.shape[-1] != value.shape[-2]:
        return False
    lower = torch.ones(value.shape[-2:], dtype=torch.bool, device=value.device).tril()
    if not torch.equal(taking_part, lower.expand_as(taking_part)):
        return False
    return value.dtype is torch.bool or bool((value[~taking_part] == float("-inf")).all())


def _constant(module: fx.GraphModule, mask: fx.Node) -> torch.Tensor | None:
    """The mask's value, if it depends on no input and no random number."""
    fake = mask.meta.get("val")
    if not isinstance(fake, torch.Tensor) or any(not isinstance(size, int) for size in fake.shape):
        return None
    if fake.numel() > _MOST_ELEMENTS:
        return None
    needed = _ancestors(mask)
    if needed is None:
        return None
    values: dict[fx.Node, Any] = {}
    try:
        with torch.no_grad():
            for node in module.graph.nodes:
                if node in needed:
                    values[node] = _run(node, values)
    except Exception:  # noqa: BLE001 - what can't be run here stays in the graph
        return None
    value = values[mask]
    return value if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor) else None


def _constants(module: fx.GraphModule) -> set[fx.Node]:
    """The nodes whose value is the same in every call; none of those that a later node writes to.

    A view of a constant is one too, so that a write through any of its views is seen: it takes all
    constants of the graph away, which is more than it must and simple.
    """
    found: set[fx.Node] = set()
    for node in module.graph.nodes:
        inputs = node.all_input_nodes
        if node.op not in ("call_function", "call_method"):
            continue
        if _writes(node) and any(source in found for source in inputs):
            return set()
        if not _name(node).startswith(_NOT_FIXED) and all(source in found for source in inputs):
            found.add(node)
    return found


def _ancestors(mask: fx.Node) -> set[fx.Node] | None:
    found: set[fx.Node] = set()
    stack = [mask]
    while stack:
        node = stack.pop()
        if node in found:
            continue
        if len(found) > _MOST_NODES:
            return None
        found.add(node)
        stack.extend(node.all_input_nodes)
    return found


def _name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _writes(node: fx.Node) -> bool:
    """Whether the node may change one of its inputs in place."""
    name = _name(node)
    if node.target in _WRITES or name in _WRITING_METHODS or "out" in node.kwargs:
        return True
    return name.endswith("_") and not name.endswith("__")


def _run(node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    args = torch.fx.node.map_arg(node.args, values.__getitem__)
    kwargs = dict(torch.fx.node.map_arg(node.kwargs, values.__getitem__))
    if kwargs.get("device") is not None:
        kwargs["device"] = torch.device("cpu")
    args = tuple(
        torch.device("cpu") if isinstance(value, torch.device) else value for value in args
    )
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    assert callable(node.target)
    return node.target(*args, **kwargs)
