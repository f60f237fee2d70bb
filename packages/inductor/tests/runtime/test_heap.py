"""The heap keeps what a call frees: the next call meets no page faults."""

import os
import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
import torch
from inductor.runtime.heap import keep_heap

keep_heap()

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [torch.ones(1 << 18) for _ in range(24)]  # 24 blocks of 1 MB
    while held:
        held.pop()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

for _ in range(3):
    count = faults()
print(count)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="thresholds of another allocator")
def test_small_programs_find_their_memory_mapped():
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    # of 6,144 pages; without `keep_heap` nearly all, unless something happens to lie behind them
    assert int(done.stdout) < 1000
