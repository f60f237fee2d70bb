"""Attention on a GPU's fake tensors: the kernel of our table, its layouts, its backward; without a GPU."""

import pytest
import torch

from primtorch import substitute
from primtorch.fake import FakeTensor, ShapeContext, TensorMeta

CUDA = torch.device("cuda", 0)
attention = torch.nn.functional.scaled_dot_product_attention


def fake(shape, dtype=torch.bfloat16, *, requires_grad=False, context=None):
    stride, running = [], 1
    for size in reversed(shape):
        stride.append(running)
        running *= size
    meta = TensorMeta(shape, tuple(reversed(stride)), dtype, CUDA)
    return FakeTensor.create(meta, context or ShapeContext(), requires_grad=requires_grad)


def kernel_of(dtype, *, width=64, mask=None, **options):
    context = ShapeContext()
    query, key, value = (
        fake((2, 4, 128, width), dtype, requires_grad=True, context=context) for _ in range(3)
    )
    bias = None if mask is None else fake((2, 1, 128, 128), mask, context=context)
    out = substitute(attention, (query,))(query, key, value, attn_mask=bias, **options)
    assert out.shape == query.shape
    grads = torch.autograd.grad(out.float().sum(), [query, key, value])
    assert [grad.shape for grad in grads] == [query.shape] * 3
    return type(out.grad_fn).__name__


@pytest.mark.parametrize(
    ("expected", "dtype", "arguments"),
    [
        ("Cudnn", torch.bfloat16, {}),
        ("Cudnn", torch.float16, {"is_causal": True}),
        ("Flash", torch.bfloat16, {"dropout_p": 0.1}),
        ("Flash", torch.bfloat16, {"width": 256}),
        ("Efficient", torch.bfloat16, {"mask": torch.bool}),
        ("Efficient", torch.bfloat16, {"mask": torch.bfloat16}),
        ("Efficient", torch.float32, {}),
    ],
)
def test_the_kernel_follows_dtype_and_mask(expected, dtype, arguments):
    assert expected in kernel_of(dtype, **arguments)


def test_autocast_narrows_the_operands_as_eagers_own_function_has_it():
    context = ShapeContext()
    query, key = (fake((2, 4, 128, 64), torch.float32, context=context) for _ in range(2))
    value = fake((2, 4, 128, 64), torch.bfloat16, context=context)
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    try:
        out = substitute(attention, (query,))(query, key, value)
    finally:
        torch.set_autocast_enabled("cuda", False)
    assert out.dtype is torch.bfloat16


def test_what_no_kernel_takes_is_computed_by_definition():
    assert "ScaledDotProduct" not in kernel_of(torch.float64)
    assert "ScaledDotProduct" not in kernel_of(torch.bfloat16, width=63)


def test_a_processor_keeps_eagers_own_choice():
    meta = TensorMeta((2, 4, 8, 16), (512, 128, 16, 1), torch.float32, torch.device("cpu"))
    query = FakeTensor.create(meta, ShapeContext())
    assert substitute(attention, (query,)) is attention
    assert substitute(torch.add, (query,)) is torch.add
