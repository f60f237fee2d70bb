"""Questions about bodies that scheduling asks: accesses, coefficients, cost."""

from inductor.analysis.accesses import Accesses, accesses_of
from inductor.analysis.affine import coefficient, coefficients, linear_in
from inductor.analysis.cost import body_work, buffer_bytes, operation_weight

__all__ = [
    "Accesses",
    "accesses_of",
    "body_work",
    "buffer_bytes",
    "coefficient",
    "coefficients",
    "linear_in",
    "operation_weight",
]
