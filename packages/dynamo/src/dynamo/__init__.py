"""Captures PyTorch programs from CPython bytecode into torch.fx graphs with guards."""

from dynamo.__about__ import __version__

__all__ = ["__version__"]
