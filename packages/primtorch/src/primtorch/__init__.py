"""What every PyTorch operator means: primitives, decompositions, shape rules, fake tensors and symbolic sizes."""

from primtorch.__about__ import __version__

__all__ = ["__version__"]
