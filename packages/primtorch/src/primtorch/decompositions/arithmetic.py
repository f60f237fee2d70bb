"""Elementwise arithmetic that is written in the arithmetic prims: scalar overloads, fused forms, special functions."""

from __future__ import annotations

import ctypes
import math

import torch
from torch import Tensor

from primtorch.decompositions.views import contiguous
from primtorch.promotion import (
    Number,
    Promotion,
    cast,
    computation_dtype,
    elementwise,
    real_part,
    result_dtype,
)
from primtorch.registry import decomposes, overload

aten = torch.ops.aten


def constant(like: Tensor, value: Number) -> Tensor:
    """A 0-d tensor of `value` with the dtype and device of `like`."""
    return aten.full.default([], value, dtype=like.dtype, device=like.device)


def _scalar_overload(name: str, target: str) -> None:
    """Register `aten.<name>.Scalar` as the tensor overload with the number in the tensor's place."""
    called = overload(f"aten.{target}")
    assert called is not None, f"aten.{target} is in every supported torch"

    def with_number(self: Tensor, other: Number, **kwargs: object) -> Tensor:
        return called(self, other, **kwargs)

    with_number.__name__ = with_number.__qualname__ = f"{name}_scalar"
    decomposes(f"aten.{name}.Scalar")(with_number)


_scalar_overload("mul", "mul.Tensor")
_scalar_overload("div", "div.Tensor")
_scalar_overload("floor_divide", "floor_divide.default")


@decomposes(aten.add.Scalar)
def add_scalar(self: Tensor, other: Number, alpha: Number = 1) -> Tensor:
    """self + alpha * other."""
    return aten.add.Tensor(self, other, alpha=alpha)


@decomposes(aten.sub.Scalar)
def sub_scalar(self: Tensor, other: Number, alpha: Number = 1) -> Tensor:
    """self - alpha * other."""
    return aten.sub.Tensor(self, other, alpha=alpha)


@decomposes(aten.rsub.Scalar)
def rsub_scalar(self: Tensor, other: Number, alpha: Number = 1) -> Tensor:
    """other - alpha * self."""
    return aten.sub.Tensor(other, self, alpha=alpha)


@decomposes(aten.rsub.Tensor)
def rsub(self: Tensor, other: Tensor, *, alpha: Number = 1) -> Tensor:
    """other - alpha * self."""
    return aten.sub.Tensor(other, self, alpha=alpha)


@decomposes(aten.div.Scalar_mode)
def div_scalar_mode(self: Tensor, other: Number, *, rounding_mode: str | None) -> Tensor:
    """Division by a number, rounded as asked."""
    return aten.div.Tensor_mode(self, other, rounding_mode=rounding_mode)


@decomposes(aten.floor_divide.default)
def floor_divide(self: Tensor, other: Tensor | Number) -> Tensor:
    """Division rounded towards minus infinity."""
    return aten.div.Tensor_mode(self, other, rounding_mode="floor")


@decomposes(aten.remainder.Scalar)
def remainder_scalar(self: Tensor, other: Number) -> Tensor:
    """Remainder with the divisor's sign."""
    return aten.remainder.Tensor(self, _number_tensor(self, other))


@decomposes("aten.remainder.Scalar_Tensor")
def remainder_scalar_tensor(self: Number, other: Tensor) -> Tensor:
    """Remainder of a number, with the divisor's sign."""
    return aten.remainder.Tensor(_number_tensor(other, self), other)


@decomposes(aten.fmod.Scalar)
def fmod_scalar(self: Tensor, other: Number) -> Tensor:
    """Remainder with the dividend's sign."""
    return aten.fmod.Tensor(self, _number_tensor(self, other))


def _bitwise_scalar(name: str) -> None:
    called = getattr(aten, name).Tensor

    def tensor_number(self: Tensor, other: Number) -> Tensor:
        return called(self, _number_tensor(self, other))

    def number_tensor(self: Number, other: Tensor) -> Tensor:
        return called(_number_tensor(other, self), other)

    tensor_number.__name__ = tensor_number.__qualname__ = f"{name}_tensor_number"
    number_tensor.__name__ = number_tensor.__qualname__ = f"{name}_number_tensor"
    shift = name.endswith("shift")
    decomposes(f"aten.{name}.{'Tensor_Scalar' if shift else 'Scalar'}")(tensor_number)
    decomposes(f"aten.{name}.Scalar_Tensor")(number_tensor)


def _number_tensor(like: Tensor, value: Number) -> Tensor:
    """A number as a 0-d tensor in the dtype to which the two promote."""
    return aten.full.default([], value, dtype=result_dtype(like, value), device=like.device)


for _name in (
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "bitwise_left_shift",
    "bitwise_right_shift",
):
    _bitwise_scalar(_name)


@decomposes("aten.__and__.Scalar")
def and_scalar(self: Tensor, other: Number) -> Tensor:
    """Bitwise and with a number."""
    return aten.bitwise_and.Tensor(self, _number_tensor(self, other))


@decomposes("aten.__lshift__.Tensor")
def lshift(self: Tensor, other: Tensor) -> Tensor:
    """Bits moved up."""
    return aten.bitwise_left_shift.Tensor(self, other)


@decomposes("aten.__rshift__.Tensor")
def rshift(self: Tensor, other: Tensor) -> Tensor:
    """Bits moved down."""
    return aten.bitwise_right_shift.Tensor(self, other)


@decomposes("aten.__lshift__.Scalar")
def lshift_scalar(self: Tensor, other: Number) -> Tensor:
    """Bits moved up by a number."""
    return aten.bitwise_left_shift.Tensor(self, _number_tensor(self, other))


@decomposes("aten.__rshift__.Scalar")
def rshift_scalar(self: Tensor, other: Number) -> Tensor:
    """Bits moved down by a number."""
    return aten.bitwise_right_shift.Tensor(self, _number_tensor(self, other))


@decomposes(aten.addcmul.default)
@elementwise()
def addcmul(self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> Tensor:
    """self + value * tensor1 * tensor2."""
    if isinstance(value, float) and not (self.dtype.is_floating_point or self.dtype.is_complex):
        value = int(value)  # eager's kernel holds it in the tensors' own dtype
    product = tensor1 * tensor2 if value == 1 else tensor1 * value * tensor2
    return self + product


@decomposes(aten.addcdiv.default)
def addcdiv(self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> Tensor:
    """self + value * tensor1 / tensor2."""
    if all(not (t.dtype.is_floating_point or t.dtype.is_complex) for t in (tensor1, tensor2)):
        raise RuntimeError(
            "Integer division with addcdiv is no longer supported, and in a future  release addcdiv will perform a "
            "true division of tensor1 and tensor2. The historic addcdiv behavior can be implemented as "
            "(input + value * torch.trunc(tensor1 / tensor2)).to(input.dtype) for integer inputs and as "
            "(input + value * tensor1 / tensor2) for float inputs. The future addcdiv behavior is just the latter "
            "implementation: (input + value * tensor1 / tensor2), for all dtypes."
        )
    return _addcdiv(self, tensor1, tensor2, value)


@elementwise()
def _addcdiv(self: Tensor, tensor1: Tensor, tensor2: Tensor, value: Number) -> Tensor:
    return self + (tensor1 if value == 1 else tensor1 * value) / tensor2


@decomposes(aten.lerp.Scalar)
@elementwise()
def lerp_scalar(self: Tensor, end: Tensor, weight: Number) -> Tensor:
    """self + weight * (end - self), reckoned from the nearer end so that both ends are exact."""
    if isinstance(weight, torch.SymFloat):
        return lerp(self, end, aten.full.default([], weight, dtype=self.dtype, device=self.device))
    rest = 1 - weight
    if self.dtype is torch.float32 and not isinstance(weight, complex):
        # Eager subtracts the weight in this precision.
        weight = ctypes.c_float(weight).value
        rest = ctypes.c_float(1 - weight).value
    if abs(weight) < 0.5:
        return self + (end - self) * weight
    return end - (end - self) * rest


@decomposes(aten.lerp.Tensor)
@elementwise()
def lerp(self: Tensor, end: Tensor, weight: Tensor) -> Tensor:
    """self + weight * (end - self), reckoned from the nearer end so that both ends are exact."""
    difference = end - self
    near = aten.lt.Scalar(aten.abs.default(weight), 0.5)
    return aten.where.self(near, self + difference * weight, end - difference * (1 - weight))


@decomposes(aten.square.default)
def square(self: Tensor) -> Tensor:
    """x squared."""
    return aten.pow.Tensor_Scalar(self, 2)


@decomposes(aten.frac.default)
def frac(self: Tensor) -> Tensor:
    """x without its integer part."""
    return self - aten.trunc.default(self)


@decomposes(aten.deg2rad.default)
@elementwise(Promotion.FLOAT)
def deg2rad(self: Tensor) -> Tensor:
    """Degrees to radians."""
    return self * (math.pi / 180)


@decomposes(aten.rad2deg.default)
@elementwise(Promotion.FLOAT)
def rad2deg(self: Tensor) -> Tensor:
    """Radians to degrees."""
    return self * (180 / math.pi)


@decomposes(aten.round.decimals)
@elementwise()
def round_decimals(self: Tensor, *, decimals: int) -> Tensor:
    """Rounded to `decimals` places, half to even."""
    if not self.dtype.is_floating_point:
        return aten.round.default(self)
    if decimals == 0:
        return aten.round.default(self)
    factor = 10.0 ** abs(decimals)
    if decimals > 0:
        return aten.round.default(self * factor) / factor
    return aten.round.default(self / factor) * factor


@decomposes(aten.heaviside.default)
def heaviside(self: Tensor, values: Tensor) -> Tensor:
    """0 below zero, `values` at zero, 1 above; NaN counts as below."""
    if self.dtype.is_complex or values.dtype.is_complex:
        raise RuntimeError("heaviside is not yet implemented for complex tensors.")
    if self.dtype is not values.dtype:
        raise RuntimeError("heaviside is not yet implemented for tensors with different dtypes.")
    step = aten.where.self(aten.gt.Scalar(self, 0), constant(self, 1), constant(self, 0))
    return aten.where.self(aten.eq.Scalar(self, 0), values, step)


@decomposes(aten.isneginf.default)
def isneginf(self: Tensor) -> Tensor:
    """Whether x is minus infinity."""
    if self.dtype.is_complex:
        raise RuntimeError("isneginf does not support complex inputs.")
    if not self.dtype.is_floating_point:
        return aten.full_like.default(self, False, dtype=torch.bool)
    return aten.eq.Scalar(self, -math.inf)


@decomposes(aten.isposinf.default)
def isposinf(self: Tensor) -> Tensor:
    """Whether x is plus infinity."""
    if self.dtype.is_complex:
        raise RuntimeError("isposinf does not support complex inputs.")
    if not self.dtype.is_floating_point:
        return aten.full_like.default(self, False, dtype=torch.bool)
    return aten.eq.Scalar(self, math.inf)


@decomposes(aten.nan_to_num.default)
def nan_to_num(
    self: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """NaN replaced by `nan` (0), infinities by the given or the dtype's extreme finite values."""
    dtype = self.dtype
    if dtype.is_complex:
        parts = nan_to_num(aten.view_as_real.default(self), nan, posinf, neginf)
        return aten.view_as_complex.default(parts)
    if not dtype.is_floating_point:
        return aten.clone.default(self)
    limits = torch.finfo(dtype)
    out = aten.where.self(
        aten.isnan.default(self), constant(self, 0.0 if nan is None else nan), self
    )
    out = aten.where.self(
        aten.eq.Scalar(self, math.inf),
        constant(self, limits.max if posinf is None else posinf),
        out,
    )
    return aten.where.self(
        aten.eq.Scalar(self, -math.inf),
        constant(self, limits.min if neginf is None else neginf),
        out,
    )


@decomposes(aten.clamp_min.default)
def clamp_min(self: Tensor, min: Number) -> Tensor:
    """No less than `min`."""
    return aten.clamp.default(self, min, None)


@decomposes(aten.clamp_max.default)
def clamp_max(self: Tensor, max: Number) -> Tensor:
    """No more than `max`."""
    return aten.clamp.default(self, None, max)


@decomposes(aten.clamp_min.Tensor)
def clamp_min_tensor(self: Tensor, min: Tensor) -> Tensor:
    """No less than `min`, elementwise."""
    return aten.maximum.default(self, min)


@decomposes(aten.clamp_max.Tensor)
def clamp_max_tensor(self: Tensor, max: Tensor) -> Tensor:
    """No more than `max`, elementwise."""
    return aten.minimum.default(self, max)


@decomposes(aten.logaddexp.default)
@elementwise(Promotion.FLOAT)
def logaddexp(self: Tensor, other: Tensor) -> Tensor:
    """log(exp(a) + exp(b)), equal infinities kept; declined for complex numbers."""
    if self.dtype.is_complex:
        return NotImplemented
    same = aten.logical_and.default(aten.isinf.default(self), aten.eq.Tensor(self, other))
    largest = aten.maximum.default(self, other)
    total = largest + aten.log1p.default(aten.exp.default(-aten.abs.default(self - other)))
    return aten.where.self(same, self, total)


@decomposes(aten.logaddexp2.default)
@elementwise(Promotion.FLOAT)
def logaddexp2(self: Tensor, other: Tensor) -> Tensor:
    """log2(2^a + 2^b), equal infinities kept."""
    same = aten.logical_and.default(aten.isinf.default(self), aten.eq.Tensor(self, other))
    largest = aten.maximum.default(self, other)
    total = largest + aten.log1p.default(aten.exp2.default(-aten.abs.default(self - other))) * (
        1 / math.log(2)
    )
    return aten.where.self(same, self, total)


@decomposes(aten.sinc.default)
@elementwise(Promotion.FLOAT)
def sinc(self: Tensor) -> Tensor:
    """sin(pi x) / (pi x), 1 at zero."""
    scaled = self * math.pi
    return aten.where.self(
        aten.eq.Scalar(self, 0), constant(self, 1), aten.sin.default(scaled) / scaled
    )


def _product_with_logarithm(name: str, logarithm: object) -> None:
    """Register x * logarithm(y), 0 where x is 0 (NaN where y is), for a tensor or number on either side."""

    @elementwise(Promotion.FLOAT)
    def product(self: Tensor, other: Tensor) -> Tensor:
        out = aten.where.self(aten.eq.Scalar(self, 0), constant(self, 0), self * logarithm(other))  # type: ignore[operator]
        return aten.where.self(aten.isnan.default(other), constant(other, math.nan), out)

    def number_first(self: Number, other: Tensor) -> Tensor:
        return product(_floating_constant(other, self), other)

    def number_second(self: Tensor, other: Number) -> Tensor:
        return product(self, _floating_constant(self, other))

    for tail, function in (
        ("Tensor" if name == "xlogy" else "default", product),
        ("Scalar_Self" if name == "xlogy" else "self_scalar", number_first),
        ("Scalar_Other" if name == "xlogy" else "other_scalar", number_second),
    ):
        decomposes(f"aten.{name}.{tail}")(function)


def _floating_constant(like: Tensor, value: Number) -> Tensor:
    dtype = result_dtype(like, value, kind=Promotion.FLOAT)
    return aten.full.default(
        [], value, dtype=computation_dtype(dtype) if like.dim() == 0 else dtype, device=like.device
    )


_product_with_logarithm("xlogy", aten.log.default)
_product_with_logarithm("special_xlog1py", aten.log1p.default)


@decomposes("aten.special_entr.default")
@elementwise(Promotion.FLOAT)
def special_entr(self: Tensor) -> Tensor:
    """-x log(x), 0 at zero, -inf below, NaN kept."""
    positive = aten.where.self(
        aten.gt.Scalar(self, 0), -self * aten.log.default(self), constant(self, -math.inf)
    )
    out = aten.where.self(aten.eq.Scalar(self, 0), constant(self, 0), positive)
    return aten.where.self(aten.isnan.default(self), self, out)


@decomposes(aten.lcm.default)
def lcm(self: Tensor, other: Tensor) -> Tensor:
    """Least common multiple, 0 if both are 0."""
    divisor = aten.gcd.default(self, other)
    zero = aten.eq.Scalar(divisor, 0)
    safe = aten.where.self(zero, constant(divisor, 1), divisor)
    quotient = aten.div.Tensor_mode(self, safe, rounding_mode="trunc")
    # C++ multiplies small integers as 32-bit ones: what overflows is cut after its sign is taken.
    wide = torch.int32 if divisor.dtype.itemsize < 4 else divisor.dtype
    multiple = cast(aten.abs.default(cast(quotient, wide) * cast(other, wide)), divisor.dtype)
    return aten.where.self(zero, constant(divisor, 0), multiple)


@decomposes(aten.mvlgamma.default)
def mvlgamma(self: Tensor, p: int) -> Tensor:
    """Logarithm of the multivariate gamma function of dimension `p`."""
    if p < 1:
        raise RuntimeError("p has to be greater than or equal to 1")
    return _mvlgamma(self, p=p)


@elementwise(Promotion.FLOAT)
def _mvlgamma(self: Tensor, *, p: int) -> Tensor:
    total = aten.lgamma.default(self)
    for step in range(1, p):
        total = total + aten.lgamma.default(self - step / 2)
    return total + p * (p - 1) / 4 * math.log(math.pi)


@decomposes(aten.where.ScalarSelf)
def where_scalar_self(condition: Tensor, self: Number, other: Tensor) -> Tensor:
    """A number where the condition holds."""
    return aten.where.self(condition, _number_tensor(other, self), other)


_HALVES = {torch.float16: "c10::Half", torch.bfloat16: "c10::BFloat16"}


@decomposes(aten.masked_fill.Scalar)
def masked_fill(self: Tensor, mask: Tensor, value: Number) -> Tensor:
    """`value` where the mask holds, the tensor's own dtype kept."""
    if not (self.dtype.is_floating_point or self.dtype.is_complex) and self.dtype is not torch.bool:
        limits = torch.iinfo(self.dtype)
        if not limits.min <= real_part(value) <= limits.max:
            name = str(self.dtype).removeprefix("torch.")
            raise RuntimeError(f"value cannot be converted to type {name}_t without overflow")
    half = _HALVES.get(self.dtype)
    if half is not None and torch.finfo(self.dtype).max < abs(value) < math.inf:
        raise RuntimeError(f"value cannot be converted to type {half} without overflow")
    return _masked_fill(self, mask, constant(self, value))


@decomposes(aten.masked_fill.Tensor)
def masked_fill_tensor(self: Tensor, mask: Tensor, value: Tensor) -> Tensor:
    """A 0-d tensor's value where the mask holds, the tensor's own dtype kept."""
    if value.dim():
        raise RuntimeError(
            f"masked_fill only supports a 0-dimensional value tensor, but got tensor with {value.dim()} dimension(s)."
        )
    if value.dtype.is_complex and not self.dtype.is_complex:
        name = str(self.dtype).removeprefix("torch.")
        raise RuntimeError(f"value cannot be converted to type {name} without overflow")
    if value.device != self.device:
        value = aten._to_copy.default(value, device=self.device)
    return _masked_fill(self, mask, cast(value, self.dtype))


def _masked_fill(self: Tensor, mask: Tensor, value: Tensor) -> Tensor:
    if mask.dtype is not torch.bool:
        raise RuntimeError(
            "masked_fill only supports boolean masks, but got dtype " + _scalar_name(mask.dtype)
        )
    return contiguous(aten.where.self(mask, value, self))  # as eager, whatever the order of self


def _scalar_name(dtype: torch.dtype) -> str:
    return {torch.uint8: "Byte", torch.int64: "Long", torch.float32: "Float"}.get(dtype, str(dtype))


@decomposes(aten.angle.default)
def angle(self: Tensor) -> Tensor:
    """The argument of a complex number, row-major as eager's; 0 or pi for a real one, NaN kept."""
    if self.dtype.is_complex:
        parts = contiguous(aten.view_as_real.default(self))
        return aten.atan2.default(aten.select.int(parts, -1, 1), aten.select.int(parts, -1, 0))
    dtype = self.dtype if self.dtype.is_floating_point else torch.get_default_dtype()
    turned = aten.full.default([], math.pi, dtype=dtype, device=self.device)
    out = aten.where.self(aten.lt.Scalar(self, 0), turned, constant(turned, 0))
    return (
        aten.where.self(aten.isnan.default(self), self, out)
        if self.dtype.is_floating_point
        else out
    )


@decomposes(aten.polar.default)
def polar(abs: Tensor, angle: Tensor) -> Tensor:
    """abs * (cos(angle) + i sin(angle))."""
    return aten.complex.default(abs * aten.cos.default(angle), abs * aten.sin.default(angle))


@decomposes("aten._conj_physical.default")
def _conj_physical(self: Tensor) -> Tensor:
    """The conjugate, computed."""
    return aten.conj_physical.default(self)


@decomposes(aten.isfinite.default)
def isfinite(self: Tensor) -> Tensor:
    """Whether x is neither infinite nor NaN."""
    if not (self.dtype.is_floating_point or self.dtype.is_complex):
        return aten.full_like.default(self, True, dtype=torch.bool)
    return aten.eq.Tensor(self, self) & aten.ne.Scalar(aten.abs.default(self), math.inf)


@decomposes("aten.copysign.Scalar")
def copysign_scalar(self: Tensor, other: Number) -> Tensor:
    """The magnitude of each element with the sign of a number."""
    return aten.copysign.Tensor(self, _number_tensor(self, other))
