"""The C form of what runs at each call, where it was built; None: the Python form runs, slower.

Goes out: the module `node`. Invariant: both forms do the same; the C form hands whatever is not the ordinary case to
the Python form.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["node"]

_LOG = logging.getLogger("aot_autograd")
_FACE = 4  # counts changes of what the types of `_node.c` are called with


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
    return _node


node = _found()
