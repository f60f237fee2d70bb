"""What differs between the supported versions of CPython, as the interpreter sees it."""

from __future__ import annotations

import sys

__all__ = ["NULL_FIRST", "PY312", "PY313"]

PY312 = sys.version_info >= (3, 12)
PY313 = sys.version_info >= (3, 13)
# 3.11 and 3.12 push NULL below the callable, 3.13 above it.
NULL_FIRST = not PY313
