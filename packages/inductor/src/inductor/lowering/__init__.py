"""From operators to loops: one function per operator, by family.

`lower` walks an FX graph; `registry` holds who lowers what, filled by importing the families.
"""

from inductor.lowering import (
    assembly,
    creation,
    indexing,
    normalization,
    pointwise,
    recurrent,
    reduction,
    scatter_reductions,
    views,
)
from inductor.lowering import vendor as vendor_operators

from inductor.lowering import convolution, max_pooling, pooling, product  # isort: skip  # take over from the vendor list
from inductor.lowering.lower import lower
from inductor.lowering.registry import LOWERINGS, VENDOR, VIEWS

FAMILIES = (
    assembly,
    convolution,
    creation,
    indexing,
    max_pooling,
    normalization,
    pointwise,
    pooling,
    product,
    recurrent,
    reduction,
    scatter_reductions,
    vendor_operators,
    views,
)

__all__ = ["FAMILIES", "LOWERINGS", "VENDOR", "VIEWS", "lower"]
