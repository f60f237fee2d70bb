"""Strides of operators on a tensor and a number, where a dimension has one place or none: as eager's."""

import pytest
import torch

from primtorch.fake import infer

aten = torch.ops.aten
SHAPES = [
    (0, 4),
    (4, 0),
    (1, 4),
    (4, 1),
    (1, 1),
    (0, 0),
    (1, 0),
    (0, 1),
    (2, 3),
    (2, 0, 3),
    (1, 2, 1),
    (),
    (3,),
]
SECOND = (
    *(["add", "sub", "rsub", "mul", "remainder", "fmod", "floor_divide", "div",
       "true_divide", "copysign", "eq", "ne", "lt", "le", "gt", "ge"]),
    *(["bitwise_and", "bitwise_or", "bitwise_xor", "__and__", "__or__", "__xor__", "__lshift__", "__rshift__"]),
    *("fill", "_add_relu"),
)  # fmt: skip
CALLS = {
    **{name: (getattr(aten, name).Scalar, lambda x: (x, 2)) for name in SECOND},
    "left shift": (aten.bitwise_left_shift.Tensor_Scalar, lambda x: (x, 2)),
    "right shift of a number": (aten.bitwise_right_shift.Scalar_Tensor, lambda x: (2, x)),
    "and of a number": (aten.bitwise_and.Scalar_Tensor, lambda x: (2, x)),
    "pow": (aten.pow.Tensor_Scalar, lambda x: (x, 3)),
    "pow of a number": (aten.pow.Scalar, lambda x: (2.0, x)),
    "xlogy": (aten.xlogy.Scalar_Other, lambda x: (x, 2.0)),
    "zeta": (aten.special_zeta.other_scalar, lambda x: (x, 2.0)),
    "clamp": (aten.clamp.default, lambda x: (x, 0, 1)),
    "clamp_min": (aten.clamp_min.default, lambda x: (x, 0)),
    "lerp": (aten.lerp.Scalar, lambda x: (x, x, 0.5)),
    "where": (aten.where.ScalarOther, lambda x: (x > 1, x, 2.0)),
    "tensor without dimensions": (aten.add.Tensor, lambda x: (x, torch.tensor(2))),
    "clamp by a tensor": (aten.clamp.Tensor, lambda x: (x, torch.tensor(1))),
    "two tensors": (aten.add.Tensor, lambda x: (x, x)),
    "relu": (aten.relu.default, lambda x: (x,)),
    "nan_to_num": (aten.nan_to_num.default, lambda x: (x, 1.0)),
    "hardtanh": (aten.hardtanh.default, lambda x: (x,)),
    "threshold": (aten.threshold.default, lambda x: (x, 1, 2)),
}


@pytest.mark.parametrize("name", CALLS)
def test_strides_are_those_of_eager(name):
    operator, arguments = CALLS[name]
    compared = 0
    for shape in SHAPES:
        for dtype in (torch.float32, torch.int64):
            whole = torch.ones(shape, dtype=dtype)
            for tensor in (whole, whole.permute(tuple(reversed(range(whole.dim()))))):
                given = arguments(tensor)
                try:
                    wanted = operator(*given)
                except (RuntimeError, TypeError):
                    continue  # not of this dtype
                found = infer(operator, given, {})
                assert (found.shape, found.stride) == (tuple(wanted.shape), wanted.stride()), shape
                compared += 1
    assert compared >= len(SHAPES)
