"""What torch.compile's rows don't pay for: imports, and a first compile with its precompiled header."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # in this process, so that the time is seen
os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"

import torch
import transformers.modeling_utils

import benchmarks.models.check
import benchmarks.models.measure

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["benchmarks", "torch", "transformers"]

benchmarks.models.measure.peak_bytes(lambda: torch.zeros(8))  # the profiler's start takes seconds
with torch.no_grad():
    torch.compile(lambda x: x.sin() + 1)(torch.zeros(64))


def _compile_training() -> None:
    """Compiles a backward and doesn't run it."""
    torch.compile(lambda x: (x.sin() * x).sum())(torch.zeros(64, requires_grad=True))


def _leaves_forks_whole() -> bool:
    """Whether a process can be forked after it: not where the compile starts autograd's threads (torch 2.11)."""

    def ends_well(work: Callable[[], object]) -> bool:
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if work() is not False else 1)
            except BaseException:  # noqa: BLE001 - a child that goes on would serve rows as well
                os._exit(1)
        return os.waitpid(child, 0)[1] == 0

    def backward() -> None:
        torch.zeros(1, requires_grad=True).sum().backward()

    def compile_and_fork() -> bool:
        _compile_training()
        return ends_well(backward)

    return ends_well(compile_and_fork)


if _leaves_forks_whole():  # elsewhere a training row pays for a few more imports
    _compile_training()
