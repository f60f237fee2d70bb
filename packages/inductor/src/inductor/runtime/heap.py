"""What one call of a program frees, the next finds again, still mapped.

glibc gives the end of its heap back to the system whenever more than a threshold lies free there; whoever asks again
pays a page fault for each 4 kB, a quarter to one microsecond (a training step of an LSTM with 25 MB of intermediate
values: 4,000 faults, a tenth of its time). The threshold is twice the largest block that was mapped alone and freed so
far, at most 64 MB: a program that ever freed a large tensor has it there. `keep_heap` frees one, untouched, so that
small programs have it too. Invariant: no memory is held that glibc wouldn't hold by itself; an environment that sets
thresholds (MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_) or another allocator is left as it is.
"""

from __future__ import annotations

from functools import lru_cache

import torch

__all__ = ["keep_heap"]

_LARGEST = (32 << 20) - (1 << 16)
"""Bytes: a little under the largest block whose release still moves glibc's thresholds."""


@lru_cache(maxsize=1)
def keep_heap() -> None:
    """Free a large block, once a process; nothing is written into it."""
    torch.empty(_LARGEST, dtype=torch.uint8, device="cpu")
