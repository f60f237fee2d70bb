"""Operands that eager refuses are refused, in its words; numbers are held as eager holds them."""

import pytest
import torch

from primtorch import decomposition_table
from primtorch.fake import ShapeContext, fakeify

aten = torch.ops.aten
TRUTHS = torch.tensor([True, False])
NUMBERS = torch.tensor([1.0, -2.0])
BYTES = torch.tensor([1, -2], dtype=torch.int8)

CALLS = [
    (aten.sub.Tensor, (TRUTHS, TRUTHS)),
    (aten.sub.Tensor, (NUMBERS, TRUTHS)),
    (aten.sub.Tensor, (TRUTHS, BYTES)),
    (aten.sub.Scalar, (TRUTHS, True)),
    (aten.sub.Scalar, (NUMBERS, True)),
    (aten.rsub.Scalar, (TRUTHS, 1)),
    (aten.rsub.Tensor, (TRUTHS, NUMBERS)),
    (aten.add.Tensor, (BYTES, BYTES, 1.5)),
    (aten.add.Tensor, (BYTES, BYTES, True)),
    (aten.add.Tensor, (NUMBERS, NUMBERS, False)),
    (aten.sub.Tensor, (BYTES, BYTES, 0.5)),
]


@pytest.mark.parametrize("call", CALLS, ids=[str(call[0]) for call in CALLS])
def test_shape_rules_refuse_what_eager_refuses(call):
    operator, (first, *rest) = call
    if len(rest) == 2:
        rest, keywords = rest[:1], {"alpha": rest[1]}
    else:
        keywords = {}
    with pytest.raises(RuntimeError) as expected:
        operator(first, *rest, **keywords)
    context = ShapeContext()
    faked = [
        fakeify(one, context) if isinstance(one, torch.Tensor) else one for one in (first, *rest)
    ]
    with pytest.raises(RuntimeError) as found:
        operator(*faked, **keywords)
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        (aten.slice_scatter.default, (torch.ones(2, 4), 0, 1, 2)),
        (aten.select_scatter.default, (torch.ones(5), 0, 1)),
        (aten.select_scatter.default, (torch.ones(4), 0, 7)),
        (aten.diagonal_scatter.default, (torch.ones(4),)),
        (aten.as_strided_scatter.default, (torch.ones(3, 2), (2, 2), (1, 2))),
    ],
    ids=["slice", "select", "no such place", "diagonal", "strided"],
)
def test_a_part_is_replaced_by_as_many_elements(operator, arguments):
    x = torch.ones(3, 4)
    with pytest.raises((RuntimeError, IndexError)) as expected:
        operator(x, *arguments)
    context = ShapeContext()
    with pytest.raises(expected.type) as found:
        operator(fakeify(x, context), fakeify(arguments[0], context), *arguments[1:])
    assert str(found.value) == str(expected.value)


def test_an_image_holds_a_window_at_least():
    x, sizes = torch.ones(1, 1, 1, 4), ([2, 2], [1, 1], [0, 0], [1, 1])
    with pytest.raises(RuntimeError) as expected:
        aten.im2col.default(x, *sizes)
    with pytest.raises(RuntimeError) as found:
        aten.im2col.default(fakeify(x, ShapeContext()), *sizes)
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("value", [-1e39, 1e39, -torch.inf, torch.nan, 3.0])
def test_a_fill_that_a_half_type_cannot_hold(dtype, value):
    x = torch.tensor([1.0, -2.0], dtype=dtype)
    ours = decomposition_table("inductor")[aten.masked_fill.Scalar]
    assert outcome(ours, x, x > 0, value) == outcome(torch.masked_fill, x, x > 0, value)


def outcome(function, *args):
    """The result's elements as text, or what was raised."""
    try:
        return str(function(*args).tolist())
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("value", [1.5, -2.7, 3])
def test_the_factor_of_integers_is_an_integer(value):
    ours = decomposition_table("inductor")[aten.addcmul.default]
    expected = torch.addcmul(BYTES, BYTES, BYTES, value=value)
    assert torch.equal(ours(BYTES, BYTES, BYTES, value=value), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("statistics", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_takes_the_dtypes_that_eager_takes(dtype, statistics, training):
    def messages(context):
        tensors = [torch.ones(4, 6, 5, dtype=dtype), *[torch.ones(6, dtype=statistics)] * 2]
        if context is not None:
            tensors = [fakeify(one, context) for one in tensors]
        try:
            torch.nn.functional.batch_norm(*tensors, training=training)
        except RuntimeError as error:
            return str(error)
        return ""

    assert messages(ShapeContext()) == messages(None)
