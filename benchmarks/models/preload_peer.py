"""What torch.compile's rows don't pay for: imports, and a first compile with its precompiled header."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys

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


_TRAINING = """
import sys, torch
torch.compile(lambda x: (x.sin() * x).sum())(torch.zeros(64, requires_grad=True)).backward()
print("modules:", *(name for name in sys.modules if name.startswith("torch.")))
"""


def _import_what_training_needs() -> None:
    """The modules of a compile of a backward, made elsewhere: autograd's threads may start, and end forks."""
    done = subprocess.run(
        [sys.executable, "-c", _TRAINING], stdout=subprocess.PIPE, text=True, check=True
    )
    for name in done.stdout.rsplit("modules:", 1)[1].split():
        if name not in sys.modules and importlib.util.find_spec(name) is not None:
            importlib.import_module(name)


_import_what_training_needs()
