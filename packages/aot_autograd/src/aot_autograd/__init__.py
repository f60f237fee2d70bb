"""Traces forward and backward ahead of time and partitions the joint graph."""

from aot_autograd.__about__ import __version__

__all__ = ["__version__"]
