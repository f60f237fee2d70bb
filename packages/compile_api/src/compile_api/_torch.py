"""The private names of torch that the facade needs, each with a test per supported version.

`has_hooks` reads the per-module and the global hook tables, for which there is no public reading.
"""

from __future__ import annotations

from typing import Any

from torch.nn.modules import module as torch_module

__all__ = ["has_hooks"]

_GLOBAL = tuple(
    getattr(torch_module, name)
    for name in (
        "_global_backward_pre_hooks",
        "_global_backward_hooks",
        "_global_forward_pre_hooks",
        "_global_forward_hooks",
    )
)


def has_hooks(state: dict[str, Any]) -> bool:
    """Tells from a module's `__dict__` whether a call would run anything besides its forward."""
    return bool(
        state["_forward_hooks"]
        or state["_forward_pre_hooks"]
        or state["_backward_hooks"]
        or state["_backward_pre_hooks"]
        or _GLOBAL[0]
        or _GLOBAL[1]
        or _GLOBAL[2]
        or _GLOBAL[3]
    )
