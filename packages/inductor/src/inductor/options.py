"""The options of this package: one frozen dataclass, passed as an argument, part of cache keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class InductorOptions:
    """How a graph is compiled; every field has a default that suits most programs."""

    executor: Literal["native", "interpreter", "triton_interpreter"] = field(
        default="native",
        metadata={
            "help": "run generated kernels; or interpret the loops with torch; or interpret the Triton kernels of a "
            "GPU on the CPU, for tests (both slow)"
        },
    )
    device: str = field(
        default="",
        metadata={
            "help": "what builds kernels for tensors of its type, by name, where several can; empty means ours"
        },
    )
    gpu_target: str = field(
        default="",
        metadata={
            "help": "with the executor triton_interpreter: compile the kernels for this GPU too, sm_90 or gfx942"
        },
    )
    fuse: bool = field(
        default=True, metadata={"help": "let loop nodes share kernels; off for debugging"}
    )
    round_halves: bool = field(
        default=True,
        metadata={"help": "round half types at each operator boundary, as eager does"},
    )
    products: Literal["auto", "blas", "onednn"] = field(
        default="auto",
        metadata={
            "help": "the library for large single-precision matrix products on a CPU; auto takes oneDNN on AMD's "
            "processors"
        },
    )
    verify: bool = field(
        default=False, metadata={"help": "check the rules of the loop IR after every stage"}
    )
    strict: bool = field(
        default=False, metadata={"help": "raise on faults of the compiler instead of falling back"}
    )
    cuda_graphs: bool = field(
        default=False,
        metadata={
            "help": "record inference programs of a GPU into CUDA graphs and replay them; inputs and results are copied"
        },
    )
    compiler: str = field(
        default="", metadata={"help": "the C++ compiler; empty means CXX, g++, then clang++"}
    )
