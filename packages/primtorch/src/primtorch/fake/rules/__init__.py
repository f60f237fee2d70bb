"""Shape rules by family. Importing this package registers all of them."""

from primtorch.fake.rules import (
    convolution,
    creation,
    indexing,
    normalization,
    pointwise,
    products,
    reductions,
    views,
)

__all__ = [
    "convolution",
    "creation",
    "indexing",
    "normalization",
    "pointwise",
    "products",
    "reductions",
    "views",
]
