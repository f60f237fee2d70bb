"""Shape rules of convolution and pooling: sizes by the window formula, memory order by device.

A convolution's layout depends on the library behind it: on the CPU (oneDNN) and on CUDA (cuDNN)
the output is channels-last when the input or the weight is; otherwise row-major. The meta device
knows nothing of this, so there is no fall-back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from primtorch.fake.geometry import format_strides, suggested_format
from primtorch.fake.meta import Shape, TensorMeta
from primtorch.fake.registry import shape_rule
from primtorch.symbolic import Expression, Sizes, channels_last_strides, contiguous_strides

if TYPE_CHECKING:
    from collections.abc import Sequence


def spread(values: Sequence[Any] | int, count: int) -> tuple[Any, ...]:
    """One value for each dimension; a single one stands for all."""
    if isinstance(values, (int, Expression)):
        return (values,) * count
    return tuple(values) * count if len(values) == 1 else tuple(values)


def window_count(
    size: int | Expression, kernel: Any, stride: Any, padding: Any, dilation: Any
) -> int | Expression:
    """How many windows fit."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def convolution_shape(
    sizes: Sizes,
    x: Shape,
    weight: Shape,
    stride: Sequence[Any],
    padding: Sequence[Any],
    dilation: Sequence[Any],
    transposed: bool,
    output_padding: Sequence[Any],
    groups: int,
) -> Shape:
    """The shape of a convolution's output, batched."""
    count = len(x) - 2
    stride, padding, dilation = (spread(v, count) for v in (stride, padding, dilation))
    output_padding = spread(output_padding, count)
    channels = weight[1] * groups if transposed else weight[0]
    result: list[int | Expression] = [x[0], channels]
    expected = weight[0] if transposed else weight[1] * groups
    if not sizes.same(x[1], expected):
        raise RuntimeError(
            f"Given groups={groups}, weight of size {list(weight)}, expected input{list(x)} to "
            f"have {expected} channels, but got {x[1]} channels instead"
        )
    for index in range(count):
        size, kernel = x[index + 2], weight[index + 2]
        if transposed:
            length = (
                (size - 1) * stride[index]
                - 2 * padding[index]
                + dilation[index] * (kernel - 1)
                + output_padding[index]
                + 1
            )
        else:
            length = window_count(size, kernel, stride[index], padding[index], dilation[index])
        if sizes.less(length, 0) or (not transposed and sizes.less(length, 1)):
            raise RuntimeError(
                f"Calculated padded input size per channel: "
                f"({' x '.join(str(s + 2 * p) for s, p in zip(x[2:], padding, strict=True))}). "
                f"Kernel size: ({' x '.join(map(str, weight[2:]))}). Kernel size can't be greater "
                "than actual input size"
            )
        result.append(length)
    return tuple(result)


def _convolution_strides(
    sizes: Sizes,
    x: TensorMeta,
    weight: TensorMeta,
    shape: Shape,
    *,
    transposed: bool,
    output_padding: Sequence[Any],
) -> Shape:
    """Channels-last if the library is and the input or the weight asks for it."""
    if not _library_is_channels_last(x, len(shape), transposed, output_padding):
        return contiguous_strides(shape)
    for operand in (x, weight):
        if suggested_format(sizes, operand) is not torch.contiguous_format:
            return channels_last_strides(shape)
    return contiguous_strides(shape)


def _library_is_channels_last(
    x: TensorMeta, ndim: int, transposed: bool, output_padding: Sequence[Any]
) -> bool:
    """Whether the kernel that eager picks knows channels-last memory.

    CPU: all kernels for images; for volumes only oneDNN, which has no float64 and isn't taken for
    a transposed convolution with output padding. CUDA: cuDNN, except for float64.
    """
    if ndim not in (4, 5):
        return False
    if x.device.type != "cpu":
        return x.dtype is not torch.float64
    if ndim == 4:
        return True
    fast = x.dtype in (torch.float32, torch.bfloat16, torch.float16)
    return fast and not (transposed and any(pad != 0 for pad in output_padding))


@shape_rule("convolution", "_convolution", "convolution_overrideable")
def convolution(
    sizes: Sizes,
    x: TensorMeta,
    weight: TensorMeta,
    bias: TensorMeta | None,
    stride: Sequence[Any],
    padding: Sequence[Any],
    dilation: Sequence[Any],
    transposed: bool,
    output_padding: Sequence[Any],
    groups: int,
    *rest: Any,
) -> TensorMeta:
    """Convolution of any rank, transposed or not; the input may lack the batch dimension."""
    del bias, rest
    if x.dtype is not weight.dtype:
        raise RuntimeError(
            f"Input type ({x.dtype}) and bias type ({weight.dtype}) should be the same"
        )
    batched = x.ndim == weight.ndim
    inner = x.shape if batched else (1, *x.shape)
    shape = convolution_shape(
        sizes, inner, weight.shape, stride, padding, dilation, transposed, output_padding, groups
    )
    stride_ = _convolution_strides(
        sizes, x, weight, shape, transposed=transposed, output_padding=output_padding
    )
    result = TensorMeta(shape, stride_, x.dtype, x.device)
    if batched:
        return result
    return result.contiguous(shape[1:])


@shape_rule("convolution_backward")
def convolution_backward(
    sizes: Sizes,
    grad_output: TensorMeta,
    x: TensorMeta,
    weight: TensorMeta,
    bias_sizes: Sequence[int | Expression] | None,
    stride: Sequence[Any],
    padding: Sequence[Any],
    dilation: Sequence[Any],
    transposed: bool,
    output_padding: Sequence[Any],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[TensorMeta | None, ...]:
    """Gradients of input, weight and bias, each if its mask is set."""
    del stride, padding, dilation, groups
    results: list[TensorMeta | None] = []
    for wanted, operand in zip(output_mask, (x, weight), strict=False):
        if not wanted:
            results.append(None)
            continue
        stride_ = _convolution_strides(
            sizes, x, weight, operand.shape, transposed=transposed, output_padding=output_padding
        )
        results.append(TensorMeta(operand.shape, stride_, operand.dtype, operand.device))
    bias = None
    if output_mask[2]:
        channels = tuple(bias_sizes) if bias_sizes is not None else (grad_output.shape[1],)
        bias = grad_output.contiguous(channels)
    return (*results, bias)


# ---------------------------------------------------------------- pooling
def pooled_length(
    size: int | Expression, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool
) -> int | Expression:
    """How many windows pooling takes; with ceil_mode the last must start inside the input."""
    reach = size + 2 * padding - dilation * (kernel - 1) - 1
    if not ceil_mode:
        return reach // stride + 1
    length = (reach + stride - 1) // stride + 1
    if isinstance(length, int) and isinstance(size, int):
        return length - 1 if (length - 1) * stride >= size + padding else length
    return length


def _pooled(
    sizes: Sizes,
    x: TensorMeta,
    rank: int,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    *,
    keeps_format: bool,
) -> TensorMeta:
    if x.ndim not in (rank + 1, rank + 2):
        raise RuntimeError(
            f"non-empty {rank + 1}D or {rank + 2}D (batch mode) tensor expected for input"
        )
    kernels = spread(kernel, rank)
    strides = spread(stride, rank) if stride else kernels
    pads, dilations = spread(padding, rank), spread(dilation, rank)
    lengths = []
    for index, size in enumerate(x.shape[-rank:]):
        if pads[index] < 0:
            raise RuntimeError(f"pad must be non-negative, but got pad: {pads[index]}")
        if pads[index] > ((kernels[index] - 1) * dilations[index] + 1) // 2:
            raise RuntimeError(
                "pad should be at most half of effective kernel size, but got "
                f"pad={pads[index]}, kernel_size={kernels[index]} and dilation={dilations[index]}"
            )
        length = pooled_length(
            size, kernels[index], strides[index], pads[index], dilations[index], ceil_mode
        )
        if sizes.less(length, 1):
            raise RuntimeError(
                f"Given input size: {list(x.shape)}. Calculated output size is too small"
            )
        lengths.append(length)
    shape = (*x.shape[:-rank], *lengths)
    stride_ = contiguous_strides(shape)
    if keeps_format and x.ndim == rank + 2:
        stride_ = format_strides(sizes, x, shape, suggested_format(sizes, x))
    return TensorMeta(shape, stride_, x.dtype, x.device)


def _max_pool(rank: int) -> Any:
    def rule(
        sizes: Sizes,
        x: TensorMeta,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,
    ) -> tuple[TensorMeta, TensorMeta]:
        result = _pooled(
            sizes, x, rank, kernel_size, stride, padding, dilation, ceil_mode, keeps_format=True
        )
        return result, result.with_dtype(torch.int64)

    return rule


shape_rule("max_pool2d_with_indices")(_max_pool(2))
shape_rule("max_pool3d_with_indices")(_max_pool(3))


def _average_pool(rank: int) -> Any:
    def rule(
        sizes: Sizes,
        x: TensorMeta,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> TensorMeta:
        del count_include_pad
        if divisor_override == 0:
            raise RuntimeError("divisor must be not zero")
        return _pooled(
            sizes, x, rank, kernel_size, stride, padding, (1,), ceil_mode, keeps_format=rank == 2
        )

    return rule


shape_rule("avg_pool1d")(_average_pool(1))
shape_rule("avg_pool2d")(_average_pool(2))
shape_rule("avg_pool3d")(_average_pool(3))


@shape_rule("fractional_max_pool2d_backward", "fractional_max_pool3d_backward")
def fractional_pool_backward(
    sizes: Sizes, grad_output: TensorMeta, x: TensorMeta, *args: Any
) -> TensorMeta:
    """The gradient of the input, row-major."""
    del sizes, grad_output, args
    return x.contiguous()


@shape_rule(
    "max_pool2d_with_indices_backward",
    "avg_pool2d_backward",
    "_adaptive_avg_pool2d_backward",
    "adaptive_max_pool2d_backward",
)
def pool2d_backward(sizes: Sizes, grad_output: TensorMeta, x: TensorMeta, *args: Any) -> TensorMeta:
    """The gradient of the input, in the input's memory format."""
    del grad_output, args
    if x.ndim != 4:
        return x.contiguous()
    return TensorMeta(
        x.shape, format_strides(sizes, x, x.shape, suggested_format(sizes, x)), x.dtype, x.device
    )


@shape_rule("avg_pool3d_backward", "_adaptive_avg_pool3d_backward", "adaptive_max_pool3d_backward")
def row_major_backward(
    sizes: Sizes, grad_output: TensorMeta, x: TensorMeta, *args: Any
) -> TensorMeta:
    """The gradient of the input, row-major."""
    del sizes, grad_output, args
    return x.contiguous()


@shape_rule("max_pool3d_with_indices_backward")
def pool3d_backward(sizes: Sizes, grad_output: TensorMeta, x: TensorMeta, *args: Any) -> TensorMeta:
    """The gradient of the input, in the input's memory format."""
    del grad_output, args
    if x.ndim != 5:
        return x.contiguous()
    return TensorMeta(
        x.shape, format_strides(sizes, x, x.shape, suggested_format(sizes, x)), x.dtype, x.device
    )


def _adaptive(rank: int, *, with_index: bool) -> Any:
    def rule(sizes: Sizes, x: TensorMeta, output_size: Sequence[Any]) -> Any:
        lengths = spread(output_size, rank)
        shape = (*x.shape[:-rank], *lengths)
        stride = contiguous_strides(shape)
        if x.ndim == 4 and rank == 2:
            stride = format_strides(sizes, x, shape, suggested_format(sizes, x))
        result = TensorMeta(shape, stride, x.dtype, x.device)
        return (result, result.with_dtype(torch.int64)) if with_index else result

    return rule


shape_rule("_adaptive_avg_pool2d")(_adaptive(2, with_index=False))
shape_rule("_adaptive_avg_pool3d")(_adaptive(3, with_index=False))
shape_rule("adaptive_max_pool2d")(_adaptive(2, with_index=True))
shape_rule("adaptive_max_pool3d")(_adaptive(3, with_index=True))


@shape_rule("im2col")
def im2col(
    sizes: Sizes,
    x: TensorMeta,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> TensorMeta:
    """Windows as columns; there is one in each direction at least."""
    kernels, dilations = spread(kernel_size, 2), spread(dilation, 2)
    pads, strides = spread(padding, 2), spread(stride, 2)
    rows, columns = [
        window_count(
            x.shape[index - 2], kernels[index], strides[index], pads[index], dilations[index]
        )
        for index in range(2)
    ]
    if sizes.less(rows, 1) or sizes.less(columns, 1):
        raise RuntimeError(
            f"Given input with spatial size ({x.shape[-2]}, {x.shape[-1]}), kernel_size=({kernels[0]}, {kernels[1]}), "
            f"dilation=({dilations[0]}, {dilations[1]}), padding=({pads[0]}, {pads[1]}), calculated shape of the array "
            f"of sliding blocks as ({rows}, {columns}), but its components must be at least one."
        )
    return x.contiguous((*x.shape[:-3], x.shape[-3] * kernels[0] * kernels[1], rows * columns))


@shape_rule("col2im")
def col2im(
    sizes: Sizes,
    x: TensorMeta,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    *rest: Any,
) -> TensorMeta:
    """Columns summed back into an image."""
    del sizes, rest
    kernels = spread(kernel_size, 2)
    return x.contiguous((*x.shape[:-2], x.shape[-2] // (kernels[0] * kernels[1]), *output_size))
