"""Arguments of operators whose arguments hang together: windows, factorisations, transforms, backward formulas.

Each maker takes a source of values of one dtype and gives calls; what eager refuses is dropped by the caller. Makers of
backward operators run the forward one first, so that what they hand over is what a program would.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from primtorch.samples import Values

    Calls = list[tuple[tuple[Any, ...], dict[str, Any]]]
    Maker = Callable[[Values], Calls]

__all__ = ["MAKERS"]

aten = torch.ops.aten


def _positive(v: Values) -> Tensor:
    """Positive definite matrices."""
    square = v.tensor(2, 4, 4)
    return square @ square.mH + 4 * torch.eye(4, dtype=v.dtype)


def _image(v: Values, *sizes: int) -> Tensor:
    """An image of distinct values: which of equal ones a maximum is, is open."""
    count = 1
    for size in sizes:
        count *= size
    order = torch.randperm(count, generator=v.generator) % 200
    return (order.to(torch.float64) / 8).reshape(sizes).to(v.dtype)


def _max_pool_backward(rank: int) -> Maker:
    def make(v: Values) -> Calls:
        image = _image(v, 1, 2, *[6] * rank)
        forward = getattr(aten, f"max_pool{rank}d_with_indices").default
        window = ([2] * rank, [2] * rank, [0] * rank, [1] * rank, False)
        out, index = forward(image, *window)
        return [((torch.ones_like(out), image, *window, index), {})]

    return make


def _adaptive(name: str, rank: int, with_index: bool) -> dict[str, Maker]:
    sizes = [3, 2, 2][:rank]

    def forward(v: Values) -> Calls:
        return [((_image(v, 2, 3, *[7, 6, 5][:rank]), sizes), {})]

    def backward(v: Values) -> Calls:
        image = _image(v, 2, 3, *[7, 6, 5][:rank])
        found = getattr(aten, name).default(image, sizes)
        if with_index:
            return [((torch.ones_like(found[0]), image, found[1]), {})]
        return [((torch.ones_like(found), image), {})]

    return {f"aten.{name}.default": forward, f"aten.{name}_backward.default": backward}


def _average(rank: int) -> dict[str, Maker]:
    window = ([3] * rank, [2] * rank, [1] * rank, True, False, None)

    def forward(v: Values) -> Calls:
        return [((v.tensor(1, 2, *[6] * rank), *window), {})]

    def backward(v: Values) -> Calls:
        image = v.tensor(1, 2, *[6] * rank)
        out = getattr(aten, f"avg_pool{rank}d").default(image, *window)
        return [((torch.ones_like(out), image, *window), {})]

    return {
        f"aten.avg_pool{rank}d.default": forward,
        f"aten.avg_pool{rank}d_backward.default": backward,
    }


def _fractional(rank: int) -> dict[str, Maker]:
    name = f"fractional_max_pool{rank}d"
    window = ([2] * rank, [3] * rank)

    def forward(v: Values) -> Calls:
        share = torch.rand(1, 2, rank, generator=v.generator).to(v.dtype)
        return [((_image(v, 1, 2, *[7] * rank), *window, share), {})]

    def backward(v: Values) -> Calls:
        image = _image(v, 1, 2, *[7] * rank)
        share = torch.full((1, 2, rank), 0.5, dtype=v.dtype)
        out, index = getattr(aten, name).default(image, *window, share)
        return [((torch.ones_like(out), image, *window, index), {})]

    return {f"aten.{name}.default": forward, f"aten.{name}_backward.default": backward}


def _negative_log(tail: str, image: bool) -> Maker:
    def make(v: Values) -> Calls:
        scores = v.tensor(3, 4, 2, 2) if image else v.tensor(3, 4)
        target = v.index(3, 2, 2, below=4) if image else v.index(3, below=4)
        if tail == "_forward":
            return [((scores, target, None, how, -100), {}) for how in range(3)]
        total = torch.tensor(float(target.numel()), dtype=v.dtype)
        one = v.tensor()
        return [((one, scores, target, None, 1, -100, total), {})]

    return make


def _group_norm(backward: bool) -> Maker:
    def make(v: Values) -> Calls:
        x, weight, bias = v.tensor(2, 4, 3, 3), v.tensor(4), v.tensor(4)
        if not backward:
            return [((x, weight, bias, 2, 4, 9, 2, 1e-5), {})]
        out, mean, scale = aten.native_group_norm.default(x, weight, bias, 2, 4, 9, 2, 1e-5)
        return [((torch.ones_like(out), x, mean, scale, weight, 2, 4, 9, 2, [True] * 3), {})]

    return make


def _batch_norm_backward(v: Values) -> Calls:
    x, weight = v.tensor(3, 4, 5), v.tensor(4)
    out, mean, scale = aten._native_batch_norm_legit.no_stats(x, weight, None, True, 0.1, 1e-5)
    calls = (torch.ones_like(out), x, weight, None, None, mean, scale, True, 1e-5, [True] * 3)
    return [(calls, {})]


def _lu(v: Values) -> tuple[Tensor, Tensor]:
    factors, pivots, _ = aten.linalg_lu_factor_ex.default(_positive(v))
    return factors, pivots


def _spd_solutions() -> dict[str, Maker]:
    """Factorisations and what is solved by them; signs and orders are fixed by definiteness."""

    def ldl(v: Values) -> Calls:
        factors, pivots, _ = aten.linalg_ldl_factor_ex.default(_positive(v))
        return [((factors, pivots, v.tensor(2, 4, 3)), {})]

    return {
        "aten.linalg_cholesky_ex.default": lambda v: [((_positive(v),), {})],
        "aten.cholesky_inverse.default": lambda v: [((torch.linalg.cholesky(_positive(v)),), {})],
        "aten.cholesky_solve.default": lambda v: [
            ((v.tensor(2, 4, 3), torch.linalg.cholesky(_positive(v))), {})
        ],
        "aten.linalg_inv_ex.default": lambda v: [((_positive(v),), {})],
        "aten.linalg_lu_factor_ex.default": lambda v: [((_positive(v),), {})],
        "aten.linalg_lu_solve.default": lambda v: [((*_lu(v), v.tensor(2, 4, 3)), {})],
        "aten.lu_unpack.default": lambda v: [(_lu(v), {})],
        "aten.linalg_ldl_factor_ex.default": lambda v: [((_positive(v),), {})],
        "aten.linalg_ldl_solve.default": ldl,
        "aten.linalg_matrix_exp.default": lambda v: [((v.tensor(2, 3, 3),), {})],
        "aten.linalg_qr.default": lambda v: [((v.tensor(5, 3),), {}), ((v.tensor(2, 3, 5),), {})],
        "aten.geqrf.default": lambda v: [((v.tensor(5, 3),), {})],
        "aten.linalg_householder_product.default": lambda v: [(aten.geqrf(v.tensor(5, 3)), {})],
        "aten.ormqr.default": lambda v: [((*aten.geqrf(v.tensor(5, 3)), v.tensor(5, 2)), {})],
        "aten.linalg_lstsq.default": lambda v: [((v.tensor(5, 3), v.tensor(5, 2)), {})],
        "aten._linalg_solve_ex.default": lambda v: [
            ((_positive(v), v.tensor(2, 4, 3)), {}),
            ((_positive(v), v.tensor(2, 4)), {}),
        ],
        "aten.linalg_solve_triangular.default": lambda v: [
            ((torch.linalg.cholesky(_positive(v)), v.tensor(2, 4, 3)), {"upper": False})
        ],
        "aten.triangular_solve.default": lambda v: [
            ((v.tensor(2, 4, 3), torch.linalg.cholesky(_positive(v)), False), {})
        ],
    }


def _folding(v: Values) -> Calls:
    columns = v.tensor(1, 8, 9)
    return [((columns, [4, 4], [2, 2], [1, 1], [0, 0], [1, 1]), {})]


def _along(v: Values) -> Calls:
    return [
        ((v.tensor(4, 5), 0, torch.tensor([0, 2]), v.tensor(2, 5)), {}),
        ((v.tensor(4, 5), 1, torch.tensor([3, 1, 0]), v.tensor(4, 3)), {}),
    ]


def _read_mask(v: Values) -> Tensor:
    return torch.rand(4, 5, generator=v.generator) < 0.5


MAKERS: dict[str, Maker] = {
    **_adaptive("_adaptive_avg_pool2d", 2, with_index=False),
    **_adaptive("_adaptive_avg_pool3d", 3, with_index=False),
    **_adaptive("adaptive_max_pool2d", 2, with_index=True),
    **_adaptive("adaptive_max_pool3d", 3, with_index=True),
    **_average(2),
    **_average(3),
    **_fractional(2),
    **_fractional(3),
    **_spd_solutions(),
    "aten.max_pool3d_with_indices.default": lambda v: [((_image(v, 1, 2, 6, 6, 6), [2, 2, 2]), {})],
    "aten.max_pool2d_with_indices_backward.default": _max_pool_backward(2),
    "aten.max_pool3d_with_indices_backward.default": _max_pool_backward(3),
    "aten.nll_loss_forward.default": _negative_log("_forward", image=False),
    "aten.nll_loss_backward.default": _negative_log("_backward", image=False),
    "aten.nll_loss2d_forward.default": _negative_log("_forward", image=True),
    "aten.nll_loss2d_backward.default": _negative_log("_backward", image=True),
    "aten.native_group_norm.default": _group_norm(backward=False),
    "aten.native_group_norm_backward.default": _group_norm(backward=True),
    "aten.native_batch_norm_backward.default": _batch_norm_backward,
    "aten._native_batch_norm_legit.no_stats": lambda v: [
        ((v.tensor(3, 4, 5), v.tensor(4), v.tensor(4), True, 0.1, 1e-5), {})
    ],
    "aten.native_dropout_backward.default": lambda v: [
        ((v.tensor(4, 5), _read_mask(v), 2.0), {})
    ],
    "aten._fft_c2c.default": lambda v: [((v.tensor(4, 6), [1], 0, True), {})],
    "aten._fft_r2c.default": lambda v: [((v.tensor(4, 6), [0, 1], 0, True), {})],
    "aten._fft_c2r.default": lambda v: [((v.tensor(4, 6), [1], 2, 10), {})],
    "aten.im2col.default": lambda v: [
        ((v.tensor(1, 2, 5, 6), [2, 3], [1, 1], [1, 0], [2, 1]), {})
    ],
    "aten.col2im.default": _folding,
    "aten.grid_sampler_2d.default": lambda v: [
        ((v.tensor(1, 2, 5, 6), v.tensor(1, 3, 4, 2, low=-1.2, high=1.2), mode, pad, False), {})
        for mode in range(2)
        for pad in range(3)
    ],
    "aten.grid_sampler_2d_backward.default": lambda v: [
        (
            (
                *(v.tensor(1, 2, 3, 4), v.tensor(1, 2, 5, 6)),
                *(v.tensor(1, 3, 4, 2, low=-1.2, high=1.2), 0, 0, False, [True, True]),
            ),
            {},
        )
    ],
    "aten.index_add.default": _along,
    "aten.index_copy.default": _along,
    "aten.masked_scatter.default": lambda v: [
        ((v.tensor(4, 5), _read_mask(v), v.tensor(20)), {})
    ],
    "aten.masked_select.default": lambda v: [((v.tensor(4, 5), _read_mask(v)), {})],
    "aten.nonzero.default": lambda v: [((_read_mask(v).to(v.dtype),), {})],
    "aten.unique_consecutive.default": lambda v: [((v.tensor(9).round(), True, True), {})],
    "aten._unique2.default": lambda v: [((v.tensor(9).round(), True, True, True), {})],
    "aten.bincount.default": lambda v: [((v.index(9, below=5), v.tensor(9)), {})],
    "aten.repeat_interleave.Tensor": lambda v: [((v.index(5, below=4).to(v.dtype),), {})],
    "aten.searchsorted.Tensor": lambda v: [
        ((v.tensor(7).sort()[0], v.tensor(3, 4)), {"right": right}) for right in (False, True)
    ],
    "aten.diagonal_scatter.default": lambda v: [((v.tensor(4, 5), v.tensor(4)), {})],
    "aten.reflection_pad3d.default": lambda v: [((v.tensor(1, 2, 4, 4, 4), [1, 2, 0, 1, 3, 2]), {})],
    "aten.replication_pad3d.default": lambda v: [
        ((v.tensor(1, 2, 3, 3, 3), [1, 2, 0, 1, 3, 2]), {})
    ],
    "aten.upsample_nearest2d_backward.default": lambda v: [
        ((v.tensor(1, 2, 7, 10), [7, 10], [1, 2, 4, 5]), {})
    ],
    "aten.upsample_bilinear2d_backward.default": lambda v: [
        ((v.tensor(1, 2, 7, 10), [7, 10], [1, 2, 4, 5], align), {}) for align in (False, True)
    ],
    "aten._cdist_forward.default": lambda v: [
        ((v.tensor(3, 5), v.tensor(4, 5), p, None), {}) for p in (1.0, 2.0)
    ],
    "aten._pdist_forward.default": lambda v: [((v.tensor(4, 5), 2.0), {})],
    "aten.div.Scalar_mode": lambda v: [
        ((v.tensor(3, 4), 2), {"rounding_mode": mode}) for mode in (None, "trunc", "floor")
    ],
    "aten.fill.Scalar": lambda v: [((v.tensor(3, 4), 1), {})],
    "aten.squeeze.dim": lambda v: [((v.tensor(3, 1, 4), 1), {})],
}  # fmt: skip
