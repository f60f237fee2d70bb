"""Counters that programs of a GPU kernel meet at: memory of the stream, which every kernel leaves zero.

Comes in: a device. Goes out: a tensor of 32-bit zeros. Kernels of one stream run one after another, so that all may use
the same counters; streams have their own, because what runs beside must not count along. Invariant: what is recorded
into a CUDA graph has counters of its own, set to zero in the graph: a graph may be replayed on any stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from inductor._torch import current_stream

__all__ = ["COUNTERS", "Counters"]

COUNTERS = 4096
"""How many there are: a kernel with more groups of programs is not ended in one launch."""


@lru_cache(maxsize=64)
def _zeros(device: torch.device, stream: int) -> torch.Tensor:
    """Those of a stream, made on it."""
    del stream
    return torch.zeros(COUNTERS, dtype=torch.int32, device=device)


@dataclass(frozen=True, slots=True)
class Counters:
    """An operator without arguments that gives the current stream's counters on a device."""

    device: torch.device

    def __call__(self) -> torch.Tensor:
        """`COUNTERS` int32 zeros."""
        if self.device.type != "cuda" or not torch.cuda.is_initialized():
            return _zeros(torch.device("cpu"), 0)  # a card that is played by the processor
        if torch.cuda.is_current_stream_capturing():
            return torch.zeros(COUNTERS, dtype=torch.int32, device=self.device)
        index = self.device.index
        if index is None:
            index = torch.cuda.current_device()
        return _zeros(torch.device("cuda", index), current_stream(index))

    def __str__(self) -> str:
        """As calls are printed."""
        return "counters of the stream"

    @property
    def tags(self) -> list[Any]:
        """None: it is no operator of torch's."""
        return []

    @property
    def namespace(self) -> str:
        """Ours; it can be recorded."""
        return "inductor"
