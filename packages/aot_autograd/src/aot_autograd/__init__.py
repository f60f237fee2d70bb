"""Traces forward and backward ahead of time and partitions the joint graph."""

from aot_autograd.__about__ import __version__
from aot_autograd.api import (
    AotFunction,
    AotModule,
    aot_function,
    aot_module,
    aot_module_simplified,
    restore,
)
from aot_autograd.errors import (
    AotError,
    CompilerContractError,
    FirstDerivativeOnly,
    IncompleteGradient,
    OptionError,
    PartitionError,
    TraceError,
    UnsupportedAliasing,
    UnsupportedOperator,
    UnsupportedTransform,
    WireError,
)
from aot_autograd.memory import PredictedMemory, predicted_memory
from aot_autograd.options import AotOptions
from aot_autograd.partition import (
    Partition,
    Saved,
    default_partition,
    min_cut_rematerialization_partition,
    split,
)
from aot_autograd.runtime import make_boxed_func

__all__ = [
    "AotError",
    "AotFunction",
    "AotModule",
    "AotOptions",
    "CompilerContractError",
    "FirstDerivativeOnly",
    "IncompleteGradient",
    "OptionError",
    "Partition",
    "PartitionError",
    "PredictedMemory",
    "Saved",
    "TraceError",
    "UnsupportedAliasing",
    "UnsupportedOperator",
    "UnsupportedTransform",
    "WireError",
    "__version__",
    "aot_function",
    "aot_module",
    "aot_module_simplified",
    "default_partition",
    "make_boxed_func",
    "min_cut_rematerialization_partition",
    "predicted_memory",
    "restore",
    "split",
]
