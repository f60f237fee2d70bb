"""Triton source for kernels: the same `Kernel`s that `codegen.cpp` reads, plus `Blocks` (tile sizes, warps).

`write_kernel(kernel, blocks)` gives a `TritonSource`; `inductor.runtime.triton_build` compiles it.
"""

from inductor.codegen.triton.kernel import TritonSource, write_kernel

__all__ = ["TritonSource", "write_kernel"]
