"""Shape rules of matrix products and of attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from primtorch.fake.geometry import broadcast, common_device, format_strides
from primtorch.fake.meta import Shape, TensorMeta
from primtorch.fake.promotion import result_dtype
from primtorch.fake.registry import shape_rule
from primtorch.fake.rules.pointwise import pointwise
from primtorch.symbolic import Expression, Sizes, contiguous_strides

if TYPE_CHECKING:
    from collections.abc import Sequence


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise RuntimeError(message)


def _same_dtype(first: TensorMeta, second: TensorMeta, name: str) -> None:
    if first.dtype is not second.dtype:
        raise RuntimeError(
            f"expected m1 and m2 to have the same dtype, but got: {first.dtype} != {second.dtype} "
            f"(in {name})"
        )


@shape_rule("mm")
def mm(sizes: Sizes, x: TensorMeta, mat2: TensorMeta) -> TensorMeta:
    """(n, k) @ (k, m) -> (n, m), row-major."""
    _require(x.ndim == 2, "self must be a matrix")
    _require(mat2.ndim == 2, "mat2 must be a matrix")
    _same_dtype(x, mat2, "mm")
    _require(
        sizes.same(x.shape[1], mat2.shape[0]),
        f"mat1 and mat2 shapes cannot be multiplied ({x.shape[0]}x{x.shape[1]} and "
        f"{mat2.shape[0]}x{mat2.shape[1]})",
    )
    common_device((x, mat2))
    return x.contiguous((x.shape[0], mat2.shape[1]))


@shape_rule("addmm", "_addmm_activation")
def addmm(
    sizes: Sizes, x: TensorMeta, mat1: TensorMeta, mat2: TensorMeta, **kwargs: Any
) -> TensorMeta:
    """Add mat1 @ mat2."""
    del kwargs
    result = mm(sizes, mat1, mat2)
    _same_dtype(x, mat1, "addmm")
    _require_expandable(sizes, x.shape, result.shape)
    return result


def _require_expandable(sizes: Sizes, shape: Shape, target: Shape) -> None:
    wanted = target[max(0, len(target) - len(shape)) :]
    if len(shape) > len(target) or not all(
        have == want
        or (not sizes.alike(have, want) and sizes.is_one(have))
        or sizes.same(have, want)
        for have, want in zip(shape, wanted, strict=False)
    ):
        raise RuntimeError(
            f"The expanded size of the tensor {list(target)} must match the existing size "
            f"{list(shape)}"
        )


@shape_rule("bmm")
def bmm(sizes: Sizes, x: TensorMeta, mat2: TensorMeta) -> TensorMeta:
    """(b, n, k) @ (b, k, m) -> (b, n, m)."""
    _require(x.ndim == 3, "batch1 must be a 3D tensor")
    _require(mat2.ndim == 3, "batch2 must be a 3D tensor")
    _same_dtype(x, mat2, "bmm")
    _require(
        sizes.same(x.shape[0], mat2.shape[0]) and sizes.same(x.shape[2], mat2.shape[1]),
        f"Expected size for first two dimensions of batch2 tensor to be: [{x.shape[0]}, "
        f"{x.shape[2]}] but got: [{mat2.shape[0]}, {mat2.shape[1]}].",
    )
    return x.contiguous((x.shape[0], x.shape[1], mat2.shape[2]))


@shape_rule("baddbmm")
def baddbmm(
    sizes: Sizes, x: TensorMeta, batch1: TensorMeta, batch2: TensorMeta, **kwargs: Any
) -> TensorMeta:
    """Add batch1 @ batch2."""
    del kwargs
    result = bmm(sizes, batch1, batch2)
    _require_expandable(sizes, x.shape, result.shape)
    return result


@shape_rule("addbmm")
def addbmm(
    sizes: Sizes, x: TensorMeta, batch1: TensorMeta, batch2: TensorMeta, **kwargs: Any
) -> TensorMeta:
    """Add the sum over the batch of batch1 @ batch2."""
    del x, kwargs
    result = bmm(sizes, batch1, batch2)
    return result.contiguous(result.shape[1:])


@shape_rule("mv")
def mv(sizes: Sizes, x: TensorMeta, vec: TensorMeta) -> TensorMeta:
    """(n, k) @ (k) -> (n)."""
    _require(x.ndim == 2 and vec.ndim == 1, "vector + matrix @ vector expected")
    _require(
        sizes.same(x.shape[1], vec.shape[0]),
        f"size mismatch, got input ({x.shape[0]}), mat ({x.shape[0]}x{x.shape[1]}), vec "
        f"({vec.shape[0]})",
    )
    return x.contiguous((x.shape[0],))


@shape_rule("addmv")
def addmv(
    sizes: Sizes, x: TensorMeta, mat: TensorMeta, vec: TensorMeta, **kwargs: Any
) -> TensorMeta:
    """Add mat @ vec."""
    del x, kwargs
    return mv(sizes, mat, vec)


@shape_rule("dot", "vdot")
def dot(sizes: Sizes, x: TensorMeta, tensor: TensorMeta) -> TensorMeta:
    """The inner product of two vectors."""
    _require(
        x.ndim == 1 and tensor.ndim == 1,
        f"1D tensors expected, but got {x.ndim}D and {tensor.ndim}D tensors",
    )
    if x.dtype is not tensor.dtype:
        raise RuntimeError(
            "dot : expected both vectors to have same dtype, but found "
            f"{x.dtype} and {tensor.dtype}"
        )
    _require(
        sizes.same(x.shape[0], tensor.shape[0]),
        "inconsistent tensor size, expected tensor "
        f"[{x.shape[0]}] and src [{tensor.shape[0]}] to have the same number of elements",
    )
    return x.contiguous(())


@shape_rule("addr")
def addr(
    sizes: Sizes, x: TensorMeta, vec1: TensorMeta, vec2: TensorMeta, **kwargs: Any
) -> TensorMeta:
    """Add the outer product."""
    del kwargs
    column = vec1.strided((vec1.shape[0], 1), (vec1.stride[0], 0))
    row = vec2.strided((1, vec2.shape[0]), (0, vec2.stride[0]))
    return pointwise(sizes, (x, column, row), result_dtype((x, vec1, vec2)))


@shape_rule("linear")
def linear(
    sizes: Sizes, x: TensorMeta, weight: TensorMeta, bias: TensorMeta | None = None
) -> TensorMeta:
    """Multiply x @ weight.t() + bias over the last dimension."""
    del bias
    _require(
        sizes.same(x.shape[-1], weight.shape[-1]),
        f"mat1 and mat2 shapes cannot be multiplied ({x.shape} and {weight.shape})",
    )
    return x.contiguous((*x.shape[:-1], *weight.shape[:-1]))


@shape_rule("_grouped_mm")
def grouped_mm(
    sizes: Sizes, x: TensorMeta, mat2: TensorMeta, offs: TensorMeta | None = None, *rest: Any
) -> TensorMeta:
    """Products of groups of rows with a matrix each."""
    del sizes, rest
    if x.ndim == 2 and mat2.ndim == 2:
        assert offs is not None
        return x.contiguous((offs.shape[0], x.shape[0], mat2.shape[1]))
    if x.ndim == 3 and mat2.ndim == 3:
        return x.contiguous((x.shape[0], x.shape[1], mat2.shape[2]))
    if x.ndim == 2:
        return x.contiguous((x.shape[0], mat2.shape[2]))
    return x.contiguous((x.shape[1], mat2.shape[1]))


# ---------------------------------------------------------------- attention
def _permuted_like(meta: TensorMeta, shape: Shape) -> Shape:
    """Dense strides for `shape` in the order of the strides of `meta`."""
    if not meta.is_static:
        return (
            _token_major(shape)
            if meta.stride == _token_major(meta.shape)
            else contiguous_strides(shape)
        )
    order = sorted(range(meta.ndim), key=lambda i: (meta.stride[i], -i))
    result: list[int | Expression] = [0] * len(shape)
    step: int | Expression = 1
    for dimension in order:
        result[dimension] = step
        step = step * shape[dimension]
    return tuple(result)


def _token_major(shape: Shape) -> Shape:
    """Strides of (batch, heads, tokens, width) stored as (batch, tokens, heads, width)."""
    _, heads, tokens, width = shape
    return (tokens * heads * width, width, heads * width, 1)


def _value_shape(query: TensorMeta, value: TensorMeta) -> Shape:
    return (*query.shape[:-1], value.shape[-1])


@shape_rule("_scaled_dot_product_flash_attention_for_cpu")
def flash_attention_cpu(
    sizes: Sizes, query: TensorMeta, key: TensorMeta, value: TensorMeta, *args: Any, **kwargs: Any
) -> tuple[TensorMeta, TensorMeta]:
    """(output in the query's order of dimensions, log-sum-exp stored (batch, tokens, heads))."""
    del key, args, kwargs
    batch, heads, tokens, _ = query.shape
    shape = _value_shape(query, value)
    # Sizes of another head width than the query's are refused by the kernel.
    stride = format_strides(sizes, query, query.shape, None)
    accumulate = torch.float32 if query.dtype in (torch.float16, torch.bfloat16) else query.dtype
    return (
        TensorMeta(shape, stride, query.dtype, query.device),
        TensorMeta((batch, heads, tokens), (tokens * heads, 1, heads), accumulate, query.device),
    )


@shape_rule("_scaled_dot_product_flash_attention_for_cpu_backward")
def flash_attention_cpu_backward(
    sizes: Sizes,
    grad_out: TensorMeta,
    query: TensorMeta,
    key: TensorMeta,
    value: TensorMeta,
    *args: Any,
    **kwargs: Any,
) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
    """Gradients of query, key, value, stored token-major."""
    del sizes, grad_out, args, kwargs
    return tuple(  # type: ignore[return-value]
        TensorMeta(m.shape, _token_major(m.shape), m.dtype, m.device) for m in (query, key, value)
    )


def _seed(meta: TensorMeta) -> tuple[TensorMeta, TensorMeta]:
    """The two tensors of a CUDA attention kernel's random state."""
    state = TensorMeta((2,), (1,), torch.uint64, meta.device)
    return state, TensorMeta((), (), torch.uint64, meta.device)


@shape_rule("_scaled_dot_product_flash_attention")
def flash_attention(
    sizes: Sizes,
    query: TensorMeta,
    key: TensorMeta,
    value: TensorMeta,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    **kwargs: Any,
) -> tuple[Any, ...]:
    """CUDA flash attention: output, log-sum-exp, no tables, lengths, random state, mask."""
    del sizes, dropout_p, is_causal, return_debug_mask, kwargs
    batch, heads, tokens, _ = query.shape
    shape = _value_shape(query, value)
    seed, unused = _seed(query)
    return (
        TensorMeta(shape, _permuted_like(query, shape), query.dtype, query.device),
        query.contiguous((batch, heads, tokens), torch.float32),
        None,
        None,
        tokens,
        key.shape[2],
        seed,
        unused,
        query.contiguous((0,)),
    )


@shape_rule("_scaled_dot_product_flash_attention_backward")
def flash_attention_backward(
    sizes: Sizes,
    grad_out: TensorMeta,
    query: TensorMeta,
    key: TensorMeta,
    value: TensorMeta,
    *args: Any,
    **kwargs: Any,
) -> tuple[TensorMeta, ...]:
    """Gradients of query, key, value in their memory order."""
    del sizes, grad_out, args, kwargs
    return tuple(
        TensorMeta(m.shape, _permuted_like(m, m.shape), m.dtype, m.device)
        for m in (query, key, value)
    )


@shape_rule("_scaled_dot_product_efficient_attention")
def efficient_attention(
    sizes: Sizes,
    query: TensorMeta,
    key: TensorMeta,
    value: TensorMeta,
    attn_bias: TensorMeta | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **kwargs: Any,
) -> tuple[TensorMeta, ...]:
    """CUDA memory-efficient attention: output token-major, log-sum-exp padded to 32, state."""
    del sizes, key, attn_bias, dropout_p, is_causal, kwargs
    batch, heads, tokens, _ = query.shape
    shape = _value_shape(query, value)
    padded = (tokens + 31) // 32 * 32 if compute_log_sumexp else 0
    scalar = TensorMeta((), (), torch.int64, torch.device("cpu"))  # outside of graph capture
    return (
        TensorMeta(shape, _token_major(shape), query.dtype, query.device),
        query.contiguous((batch, heads, padded), torch.float32),
        scalar,
        scalar,
    )


@shape_rule("_scaled_dot_product_efficient_attention_backward")
def efficient_attention_backward(
    sizes: Sizes,
    grad_out_: TensorMeta,
    query: TensorMeta,
    key: TensorMeta,
    value: TensorMeta,
    attn_bias: TensorMeta | None,
    out: TensorMeta,
    logsumexp: TensorMeta,
    philox_seed: TensorMeta,
    philox_offset: TensorMeta,
    dropout_p: float,
    grad_input_mask: Sequence[bool],
    *args: Any,
    **kwargs: Any,
) -> tuple[TensorMeta | None, ...]:
    """Gradients of query, key, value (token-major) and of the bias if asked for."""
    del sizes, grad_out_, out, logsumexp, philox_seed, philox_offset, dropout_p, args, kwargs
    gradients: list[TensorMeta | None] = [
        TensorMeta(m.shape, _token_major(m.shape), m.dtype, m.device) for m in (query, key, value)
    ]
    wanted = attn_bias is not None and grad_input_mask[3]
    gradients.append(attn_bias.contiguous() if wanted and attn_bias is not None else None)
    return tuple(gradients)


@shape_rule("_scaled_dot_product_cudnn_attention")
def cudnn_attention(
    sizes: Sizes,
    query: TensorMeta,
    key: TensorMeta,
    value: TensorMeta,
    attn_bias: TensorMeta | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    **kwargs: Any,
) -> tuple[Any, ...]:
    """CUDA cuDNN attention: output in the query's order, log-sum-exp, tables, lengths, state."""
    del sizes, attn_bias, dropout_p, is_causal, return_debug_mask, kwargs
    batch, heads, tokens, _ = query.shape
    shape = _value_shape(query, value)
    scalar = TensorMeta((), (), torch.int64, query.device)
    return (
        TensorMeta(shape, _permuted_like(query, shape), query.dtype, query.device),
        query.contiguous((batch, heads, tokens, 1), torch.float32) if compute_log_sumexp else None,
        None,
        None,
        tokens,
        key.shape[2],
        scalar,
        scalar,
        None,
    )


@shape_rule("_scaled_dot_product_cudnn_attention_backward")
def cudnn_attention_backward(
    sizes: Sizes,
    grad_out: TensorMeta,
    query: TensorMeta,
    key: TensorMeta,
    value: TensorMeta,
    *args: Any,
    **kwargs: Any,
) -> tuple[TensorMeta, ...]:
    """Gradients of query, key, value in their memory order."""
    return flash_attention_backward(sizes, grad_out, query, key, value, *args, **kwargs)


@shape_rule(
    "_scaled_dot_product_attention_math_for_mps", "_scaled_dot_product_fused_attention_overrideable"
)
def fused_attention(
    sizes: Sizes, query: TensorMeta, key: TensorMeta, value: TensorMeta, *args: Any, **kwargs: Any
) -> Any:
    """Attention kernels of other devices: as CUDA flash attention."""
    return flash_attention(sizes, query, key, value, *args, **kwargs)


@shape_rule("_fused_sdp_choice")
def fused_sdp_choice(
    sizes: Sizes,
    query: TensorMeta,
    key: TensorMeta,
    value: TensorMeta,
    attn_mask: TensorMeta | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> int:
    """Which kernel `scaled_dot_product_attention` takes: 0 math, 1 flash, 2 efficient, 3 cuDNN.

    Our own choice by the logical device: what the library supports for these operands.
    """
    del scale
    if query.ndim != 4 or key.ndim != 4 or value.ndim != 4:
        return 0
    if query.device.type == "cpu":
        return _cpu_choice(sizes, query, key, value, attn_mask, dropout_p)
    if query.device.type != "cuda":
        return 0
    half = query.dtype in (torch.float16, torch.bfloat16)
    width = query.shape[-1]
    small = isinstance(width, int) and width <= 256 and width % 8 == 0
    same_width = value.shape[-1] == width
    cuda = torch.backends.cuda
    plain = half and small and same_width and attn_mask is None
    narrow = isinstance(width, int) and width <= 128
    if plain and narrow and not enable_gqa and dropout_p == 0.0 and cuda.cudnn_sdp_enabled():
        return 3
    if plain and cuda.flash_sdp_enabled():
        return 1
    if cuda.mem_efficient_sdp_enabled() and not enable_gqa and query.dtype is not torch.float64:
        multiple = 8 if half else 4
        if isinstance(width, int) and width % multiple == 0:
            return 2
    del is_causal
    return 0


def _cpu_choice(
    sizes: Sizes,
    query: TensorMeta,
    key: TensorMeta,
    value: TensorMeta,
    attn_mask: TensorMeta | None,
    dropout_p: float,
) -> int:
    if not torch.backends.cuda.flash_sdp_enabled() or dropout_p != 0.0:
        return 0
    if query.dtype not in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        return 0
    if attn_mask is not None and attn_mask.ndim not in (2, 4):
        return 0
    if not (
        sizes.same(query.shape[-1], key.shape[-1]) and sizes.same(query.shape[-1], value.shape[-1])
    ):
        return 0
    if any(size == 0 for m in (query, key, value) for size in m.shape):
        return 0
    if any(m.stride[-1] != 1 for m in (query, key, value)):
        return 0
    return 1


@shape_rule("_cdist_forward")
def cdist_forward(
    sizes: Sizes, x1: TensorMeta, x2: TensorMeta, p: float, compute_mode: int | None
) -> TensorMeta:
    """Distances of the rows of two batches of matrices."""
    del p, compute_mode
    _require(x1.ndim >= 2 and x2.ndim >= 2, "cdist only supports at least 2D tensors")
    _require(
        sizes.must_be_same(x1.shape[-1], x2.shape[-1]),
        f"X1 and X2 must have the same number of columns. X1: {x1.shape[-1]} X2: {x2.shape[-1]}",
    )
    batch = broadcast(sizes, x1.shape[:-2], x2.shape[:-2])
    return x1.contiguous((*batch, x1.shape[-2], x2.shape[-2]))
