"""Compiles graphs of core operators to fused C++ and Triton kernels."""

from inductor.__about__ import __version__

__all__ = ["__version__"]
