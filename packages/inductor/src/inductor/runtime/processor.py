"""What the code generator wants to know of this machine's processor.

Comes in: `/proc/cpuinfo`. Goes out: the instruction sets, as part of a kernel's identity, the width of vectors,
and which of torch's libraries for matrix products is the faster one. Invariant: fixed while the process lives.
"""

from __future__ import annotations

import os
import platform
from functools import lru_cache
from pathlib import Path

import torch

from inductor.ir.machine import DeviceProperties

__all__ = ["has_wide_vectors", "instruction_sets", "this_processor"]

_MAKER = "vendor_id"
_KINDS = ("flags", "Features", "model name", "CPU part")


@lru_cache(maxsize=1)
def _described() -> frozenset[str]:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            return frozenset(line for line in lines if line.startswith((_MAKER, *_KINDS)))
    except OSError:
        return frozenset()


def instruction_sets() -> str:
    """The processor's instruction sets: `-march=native` binaries are only good where these are the same."""
    found = sorted(line for line in _described() if line.startswith(_KINDS))
    return platform.machine() + ("".join(found) or platform.processor())


@lru_cache(maxsize=1)
def has_wide_vectors() -> bool:
    """Whether vectors have 512 bits (AVX-512)."""
    return any("avx512f" in line for line in _described() if line.startswith("flags"))


@lru_cache(maxsize=1)
def this_processor() -> DeviceProperties:
    """What this machine's processor is like."""
    names = [line.partition(":")[2] for line in _described() if line.startswith("model name")]
    return DeviceProperties(
        name=names[0].strip() if names else platform.machine(),
        lanes=16 if has_wide_vectors() else 8,
        units=os.cpu_count() or 1,
        products="onednn" if _onednn_is_faster() else "blas",
    )


def _onednn_is_faster() -> bool:
    """Whether large products in single precision run faster in oneDNN than in MKL: on AMD's processors."""
    makers = [line for line in _described() if line.startswith(_MAKER)]
    amd = any("AuthenticAMD" in line for line in makers)
    return amd and torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
