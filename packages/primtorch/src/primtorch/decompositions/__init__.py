"""Every operator that isn't primitive, written in simpler ones; one module per field of mathematics.

A decomposition is a plain function with the signature of its operator. It takes real tensors or fake ones, calls
`torch.ops.aten` and `torch.ops.primtorch` overloads (never a composite operator: below autograd nobody would take it
apart), and returns values with eager's dtype, shape and strides. It returns
NotImplemented for a call that it can't take apart (an explicit generator, say): the caller then keeps that operator
whole. It may call factories, so a caller that traces keeps its factory mode active around it. Importing this package
registers all of them.
"""

from primtorch.decompositions import (
    activation,
    antialiasing,
    arithmetic,
    attention,
    creation,
    distance,
    factorization,
    grid,
    histogram,
    indexing,
    linear,
    loss,
    normalization,
    optimizer,
    padding,
    random,
    recurrent,
    reduction,
    resampling,
    sequences,
    softmax,
    views,
)

__all__ = [
    "activation",
    "antialiasing",
    "arithmetic",
    "attention",
    "creation",
    "distance",
    "factorization",
    "grid",
    "histogram",
    "indexing",
    "linear",
    "loss",
    "normalization",
    "optimizer",
    "padding",
    "random",
    "recurrent",
    "reduction",
    "resampling",
    "sequences",
    "softmax",
    "views",
]
