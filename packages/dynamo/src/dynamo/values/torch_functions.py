"""Which Python functions of torch go into the graph as one call.

`torch.nn.functional.*` and the Python parts of torch's public operator namespaces are the level at which
graphs are written; modules, optimisers, and everything else of torch written in Python are interpreted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    import types

__all__ = ["is_leaf"]

_LEAF_MODULES = frozenset(
    {
        "torch.nn.functional",
        "torch.functional",
        "torch._tensor",
        "torch.special",
        "torch.linalg",
        "torch.fft",
        "torch._jit_internal",
        "torch._VF",
        "torch.nn.init",
    }
)
# Python code of these modules that only chooses among operators by arguments is still one call.
_INTERPRETED: frozenset[Any] = frozenset(
    {
        getattr(torch.Tensor, name, None)
        for name in (
            "__iter__",
            "__len__",
            "__contains__",
            "__format__",
            "__repr__",
        )
    }
    # attention inside it must be seen as the operator it is
    # and these ask for data, only to raise
    | {torch.nn.functional.multi_head_attention_forward, torch.nn.functional.gaussian_nll_loss}
)


def is_leaf(function: types.FunctionType) -> bool:
    """Whether a call of this Python function becomes one node."""
    if function.__module__ == "torch.nn.init":
        # The others are no calls that an override sees: what they do under `no_grad` has to be seen as such.
        return "handle_torch_function" in function.__code__.co_names
    return function.__module__ in _LEAF_MODULES and function not in _INTERPRETED
