"""Which form of the fast parts runs: the C extension where it was built, else the same in Python.

The extension is optional: without a compiler at install time everything works, with a larger
overhead per call. `HAVE_C` and `why_no_c` are for reports. Invariant: both forms have the same
classes and meaning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynamo.guards.binding import bind, run_original
from dynamo.guards.extension import fast, reads_state, reads_tensors, why_not

__all__ = [
    "HAVE_C",
    "READS_STATE",
    "READS_TENSORS",
    "CodeCache",
    "CompiledFunction",
    "Entry",
    "FrameHook",
    "bind",
    "forget_codes",
    "hooked_cache",
    "is_hooked",
    "never_hook",
    "run_original",
    "unhooked",
    "why_no_c",
]

HAVE_C = fast is not None
READS_TENSORS = reads_tensors
"""Whether C reads a tensor's metadata in place; if not, it asks Python."""
READS_STATE = reads_state
"""The same for the state of thread and process."""
why_no_c: str = why_not

if TYPE_CHECKING or fast is None:
    from dynamo.guards.dispatch import CodeCache, CompiledFunction, Entry
    from dynamo.guards.hook import (
        FrameHook,
        forget_codes,
        hooked_cache,
        is_hooked,
        never_hook,
        unhooked,
    )
else:
    CodeCache = fast.CodeCache
    CompiledFunction = fast.CompiledFunction
    Entry = fast.Entry
    FrameHook = fast.FrameHook
    forget_codes = fast.forget_codes
    hooked_cache = fast.hooked_cache
    is_hooked = fast.is_hooked
    never_hook = fast.never_hook
    unhooked = fast.unhooked
