"""The operators that are left to the library, each group with its reason.

Everything else that has no lowering is a fallback.
"""

from __future__ import annotations

from typing import Any

import torch

from inductor.lowering.registry import vendor

aten = torch.ops.aten


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
    "matrix products run at the machine's peak in the library",
    *_named(
        "mm",
        "bmm",
        "addmm",
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
vendor(
    "convolutions run at the machine's peak in the library",
    *_named("convolution", "convolution_backward", "_convolution"),
)
vendor(
    "fused attention never writes the score matrix",
    *_named(
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_backward",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_efficient_attention_backward",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_cudnn_attention_backward",
        "_scaled_dot_product_fused_attention_overrideable",
        "_scaled_dot_product_fused_attention_overrideable_backward",
    ),
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
    "window kernels with indices are tuned per layout in the library",
    *_named(
        "max_pool2d_with_indices",
        "max_pool2d_with_indices_backward",
        "max_pool3d_with_indices",
        "max_pool3d_with_indices_backward",
        "avg_pool2d_backward",
        "avg_pool3d_backward",
        "_adaptive_avg_pool2d",
        "_adaptive_avg_pool2d_backward",
        "_adaptive_avg_pool3d",
        "_adaptive_avg_pool3d_backward",
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
    ),
)
vendor(
    "one number from the default generator, in program order",
    *([torch.ops.primtorch.draw_seed.default] if hasattr(torch.ops.primtorch, "draw_seed") else []),
)
