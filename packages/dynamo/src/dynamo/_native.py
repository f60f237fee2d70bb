"""Which form of the fast parts runs: the C extension where it was built, else the same in Python.

The extension is optional: without a compiler at install time everything works, with a larger
overhead per call. `HAVE_C` and `why_no_c` are for reports. Invariant: both forms have the same
classes and meaning.
"""

from __future__ import annotations

from dynamo.guards.dispatch import CodeCache, CompiledFunction, Entry, bind, run_original

__all__ = [
    "HAVE_C",
    "CodeCache",
    "CompiledFunction",
    "Entry",
    "bind",
    "run_original",
    "why_no_c",
]

HAVE_C = False
why_no_c = "not built"
