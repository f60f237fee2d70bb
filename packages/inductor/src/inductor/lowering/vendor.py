"""The operators that are left to the library, each group with its reason.

What has a lowering that leaves some calls to the library is not listed here, but gives the same reason. Everything else
that has no lowering is a fallback.
"""

from __future__ import annotations

from typing import Any

import torch

from inductor.lowering.registry import vendor
from primtorch import ATTENTION_KERNELS

aten = torch.ops.aten
PRODUCTS = "matrix products run at the machine's peak in the library"
CONVOLUTIONS = "convolutions run at the machine's peak in the library"
POOLING = "window kernels with indices are tuned per layout in the library"


def _named(*names: str) -> list[Any]:
    """Overloads of aten by name; those that this torch version lacks are skipped."""
    found: list[Any] = []
    for name in names:
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(aten, packet, None), overload or "default", None)
        if operator is not None:
            found.append(operator)
    return found


vendor(
    PRODUCTS,
    *_named(
        "bmm",
        "baddbmm",
        "addmv",
        "mv",
        "dot",
        "vdot",
        "addr",
        "_int_mm",
        "_scaled_mm",
        "linear",
    ),
)
vendor(CONVOLUTIONS, *_named("_convolution"))
vendor(
    "fused attention never writes the score matrix",
    *ATTENTION_KERNELS,
)
vendor(
    "sorting is no loop over independent points",
    *_named(
        "sort.stable",
        "sort",
        "topk",
        "kthvalue",
        "median.dim",
        "nanmedian.dim",
        "mode",
        "searchsorted.Tensor",
        "cummax",
        "cummin",
        "unique_consecutive",
        "_unique2",
        "bincount",
    ),
)
vendor(
    POOLING,
    *_named(
        "max_pool3d_with_indices",
        "max_pool3d_with_indices_backward",
        "avg_pool3d_backward",
        "_adaptive_avg_pool2d",
        "_adaptive_avg_pool2d_backward",
        "_adaptive_avg_pool3d",
        "_adaptive_avg_pool3d_backward",
        "adaptive_max_pool2d",
        "adaptive_max_pool2d_backward",
        "adaptive_max_pool3d",
        "adaptive_max_pool3d_backward",
        "fractional_max_pool2d",
        "fractional_max_pool2d_backward",
        "fractional_max_pool3d",
        "fractional_max_pool3d_backward",
    ),
)
LAYOUT_GIVERS = {
    **dict.fromkeys(
        _named(
            "max_pool2d_with_indices",
            "max_pool3d_with_indices",
            "_adaptive_avg_pool2d",
            "_adaptive_avg_pool3d",
        ),
        0,
    ),
    **dict.fromkeys(
        _named(
            "max_pool2d_with_indices_backward",
            "avg_pool2d_backward",
            "_adaptive_avg_pool2d_backward",
        ),
        1,
    ),
}
"""The library's operators whose result is laid out as one of their operands, and which one."""
vendor(
    "functions by series or recurrences whose length depends on the argument",
    *_named(
        "special_bessel_j0",
        "special_bessel_j1",
        "special_bessel_y0",
        "special_bessel_y1",
        "special_modified_bessel_i0",
        "special_modified_bessel_i1",
        "special_modified_bessel_k0",
        "special_modified_bessel_k1",
        "special_scaled_modified_bessel_k0",
        "special_scaled_modified_bessel_k1",
        "special_spherical_bessel_j0",
        "special_airy_ai",
        "special_zeta",
        "special_erfcx",
        "special_ndtri",
        "i0",
        "special_i0e",
        "special_i1",
        "special_i1e",
        "polygamma",
        "igamma",
        "igammac",
        "gcd",
    ),
)
vendor(
    "polynomials by a recurrence as long as the degree, which is data",
    *_named(
        "special_chebyshev_polynomial_t",
        "special_chebyshev_polynomial_u",
        "special_chebyshev_polynomial_v",
        "special_chebyshev_polynomial_w",
        "special_shifted_chebyshev_polynomial_t",
        "special_shifted_chebyshev_polynomial_u",
        "special_shifted_chebyshev_polynomial_v",
        "special_shifted_chebyshev_polynomial_w",
        "special_hermite_polynomial_h",
        "special_hermite_polynomial_he",
        "special_laguerre_polynomial_l",
        "special_legendre_polynomial_p",
    ),
)
vendor(
    "how much is written where depends on data, and the library checks that it fits",
    *_named("masked_scatter", "masked_select", "nonzero", "multinomial", "histc"),
)
vendor("the library's transforms", *_named("_fft_c2c", "_fft_r2c", "_fft_c2r"))
vendor(
    "LAPACK's factorisations",
    *_named(
        "_linalg_eigh",
        "_linalg_svd",
        "linalg_eig",
        "linalg_qr",
        "linalg_cholesky_ex",
        "linalg_lu_factor_ex",
        "linalg_lu_solve",
        "linalg_solve_triangular",
        "linalg_ldl_factor_ex",
        "linalg_ldl_solve",
        "linalg_householder_product",
        "geqrf",
        "ormqr",
        "linalg_lstsq",
        "cholesky_inverse",
        "cholesky_solve",
        "triangular_solve",
        "lu_unpack",
        "linalg_inv_ex",
        "_linalg_solve_ex",
        "linalg_matrix_exp",
    ),
)
vendor(
    "a condition on numbers is for the host to look at",
    *([torch.ops.primtorch.checked.default] if hasattr(torch.ops.primtorch, "checked") else []),
    torch.ops.aten._assert_async.default,
    torch.ops.aten._assert_async.msg,
)
vendor(
    "random numbers in the order in which eager draws them",
    *(
        [torch.ops.primtorch.drawn_in_place.default]
        if hasattr(torch.ops.primtorch, "drawn_in_place")
        else []
    ),
)
vendor(
    "one number from the default generator, in program order",
    *([torch.ops.primtorch.draw_seed.default] if hasattr(torch.ops.primtorch, "draw_seed") else []),
)
