"""The heap keeps what a call frees: the next call meets no page faults."""

import os
import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import torch
from inductor.runtime.heap import keep_heap

if sys.argv[1] == "keep":
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


def faults_of(mode):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", PROGRAM, mode]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="thresholds of another allocator")
def test_small_programs_find_their_memory_mapped():
    assert faults_of("keep") < 1000 < 3000 < faults_of("leave")  # of 6,144 pages
