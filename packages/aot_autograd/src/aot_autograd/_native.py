"""The C form of what runs at each call, where it was built; None: the Python form runs, slower.

Goes out: the module `node`. Invariant: both forms do the same; the C form hands whatever is not the ordinary case to
the Python form.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from aot_autograd._torch import FORWARD_LEVELS, add_dimension, library_paths

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["node"]

_LOG = logging.getLogger("aot_autograd")
_FACE = 13  # counts changes of what the types of `_node.c` and `_nodes.c` are called with


def _found() -> ModuleType | None:
    try:
        from aot_autograd import _node
    except ImportError as error:
        _LOG.debug("the C form of autograd's node is not built: %s", error)
        return None
    if getattr(_node, "FACE", None) != _FACE:
        _LOG.warning(
            "the C form of autograd's node was built from other sources and is not used; build it again: "
            "python packages/aot_autograd/hatch_build.py, or reinstall compile-api-aot-autograd"
        )
        return None
    if not _works(_node):
        _node.forget()
        _LOG.debug(
            "this torch's C ABI is not what is known of it: tangents are copied by operators"
        )
    return _node


def _works(module: ModuleType) -> bool:
    """Whether torch's C ABI was found, and what is done by it comes out right.

    Tensors that repeat one number are written out, others left alone; those without memory are told from others.
    """
    try:
        dense = torch.ones(2, device="cpu")
        if not module.set_up(*library_paths(), dense, FORWARD_LEVELS):
            return False
        if not module.has_memory(dense) or module.has_memory(add_dimension(dense, (False, 1))):
            return False
        for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.complex128):
            repeated = torch.tensor([0, 1, 2], dtype=dtype, device="cpu")[2:].expand(2, 3)
            made = module.spread(repeated, dtype.itemsize)
            if type(made) is not torch.Tensor or made.dtype != dtype or not made.is_contiguous():
                return False
            if made.tolist() != repeated.tolist():
                return False
        others = torch.ones(2, 3, device="cpu"), torch.ones(1, 3, device="cpu").expand(2, 3)
        return all(module.spread(other, 4) is None for other in others)
    except Exception:  # noqa: BLE001 - a mode of the caller's that makes other tensors: as if it were unknown
        return False


node = _found()
