"""CPython as the interpreter sees it: what differs between the supported versions, and what stands for its NULL."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["NULL", "NULL_FIRST", "PY312", "PY313"]

PY312 = sys.version_info >= (3, 12)
PY313 = sys.version_info >= (3, 13)
# 3.11 and 3.12 push NULL below the callable, 3.13 above it.
NULL_FIRST = not PY313


class _Null:
    __slots__ = ()

    def __repr__(self) -> str:
        return "NULL"


NULL: Any = _Null()
"""An unbound slot of a frame, and CPython's NULL on its stack."""
