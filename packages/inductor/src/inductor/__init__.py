"""Compiles graphs of core operators to fused C++ and Triton kernels."""

from inductor.__about__ import __version__
from inductor.api import compile_fx
from inductor.errors import (
    InductorError,
    OptionError,
    UnsupportedOperationError,
    VerificationError,
    WireError,
)
from inductor.options import InductorOptions
from inductor.stored import restore

__all__ = [
    "InductorError",
    "InductorOptions",
    "OptionError",
    "UnsupportedOperationError",
    "VerificationError",
    "WireError",
    "__version__",
    "compile_fx",
    "restore",
]
