"""What torch.compile's rows don't pay for: imports, and a first compile with its precompiled header."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # in this process, so that the time is seen
os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"

import torch
import transformers.modeling_utils

import benchmarks.models.check
import benchmarks.models.measure

__all__ = ["benchmarks", "torch", "transformers"]

benchmarks.models.measure.peak_bytes(lambda: torch.zeros(8))  # the profiler's start takes seconds
with torch.no_grad():
    torch.compile(lambda x: x.sin() + 1)(torch.zeros(64))
# compiles the backward too, and doesn't run it: a process in which autograd's threads have started can't be forked
torch.compile(lambda x: (x.sin() * x).sum())(torch.zeros(64, requires_grad=True))
