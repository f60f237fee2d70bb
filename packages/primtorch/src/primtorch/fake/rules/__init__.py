"""Shape rules by family. Importing this package registers all of them."""

from primtorch.fake.rules import (
    convolution,
    creation,
    data_dependent,
    histograms,
    indexing,
    linear_algebra,
    normalization,
    pointwise,
    products,
    quantization,
    reductions,
    transforms,
    views,
)

__all__ = [
    "convolution",
    "creation",
    "data_dependent",
    "histograms",
    "indexing",
    "linear_algebra",
    "normalization",
    "pointwise",
    "products",
    "quantization",
    "reductions",
    "transforms",
    "views",
]
