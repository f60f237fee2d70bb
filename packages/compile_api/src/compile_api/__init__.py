"""A PyTorch compiler that can be taken apart: five packages behind one call."""

from compile_api.__about__ import __version__

__all__ = ["__version__"]
