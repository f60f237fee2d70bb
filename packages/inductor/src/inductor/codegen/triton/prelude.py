"""Device functions that generated Triton kernels call.

Written with `triton.language` alone, so that they run in Triton's interpreter and compile for every target. Arithmetic
is what ATen's CUDA kernels do: IEEE division and square root, NaN through maximum and minimum, integer division by zero
gives 0 without a trap. Imported by generated source only, never by the compiler itself: importing it imports Triton.
"""

# ruff: noqa: ANN001, ANN201, ANN202, D103, PLR0124 - device functions have no Python types; `x != x` is the test
# for NaN; constants are capitals, as Triton programs have them
# mypy: ignore-errors
# pyright: basic
from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
TWO_PI = tl.constexpr(6.283185307179586)


# ---- signs -----------------------------------------------------------------------------------------------------------
@triton.jit
def negate(x):
    # Triton's unary minus subtracts from zero, which loses the sign of zero.
    return x * -1.0


# ---- mathematics -----------------------------------------------------------------------------------------------------
@triton.jit
def exp(x):
    if x.dtype == tl.float64:
        return tl.exp(x)
    # exp2 of a rounded product loses |x| ulp: put back what the rounding dropped.
    scaled = x * LOG2_E
    rest = tl.where(tl.abs(scaled) < 200.0, tl.fma(x, LOG2_E, negate(scaled)), 0.0)
    return tl.exp2(scaled) * (1.0 + rest * LN_2)


@triton.jit
def narrow_exp(x):
    # For results of half types. Triton's own exp takes care of results below 2**-126, by three more instructions.
    return tl.exp2(x * LOG2_E)


@triton.jit
def expm1(x):
    # Kahan: (u - 1) * x / log(u) with u = exp(x) cancels the rounding of u.
    u = exp(x)
    shifted = u - 1.0
    ratio = tl.where((shifted == 0.0) | (u != u), x, shifted * (x / tl.log(u)))
    large = (tl.abs(x) > 0.5) | (shifted == -1.0)
    return tl.where(shifted == 0.0, x, tl.where(large, shifted, ratio))


@triton.jit
def log1p(x):
    u = 1.0 + x
    shifted = u - 1.0
    exact = tl.where(shifted == 0.0, 1.0, shifted)
    ratio = tl.log(u) * (x / exact)
    return tl.where(shifted == 0.0, x, tl.where(tl.abs(u) < float("inf"), ratio, tl.log(u)))


@triton.jit
def log10(x):
    return tl.log(x) * 0.4342944819032518


@triton.jit
def tanh(x):
    # An odd polynomial where 1 - 2 / (e + 1) would cancel; tanh is 1 in float32 above 9.1, in float64 above 20.
    size = tl.abs(x)
    if x.dtype == tl.float64:
        e = expm1(-2.0 * size)
        magnitude = tl.where(size > 20.0, 1.0, negate(e) / (2.0 + e))
    else:
        square = x * x
        p = -0.00621653
        p = p * square + 0.02108153
        p = p * square - 0.05386908
        p = p * square + 0.1333289
        p = p * square - 0.3333333
        small = size + size * (square * p)
        large = 1.0 - 2.0 / (tl.exp2(size * (2.0 * LOG2_E)) + 1.0)
        magnitude = tl.where(size < 0.625, small, large)
    magnitude = tl.where(x != x, x, magnitude)
    return tl.where(sign_bit(x), negate(magnitude), magnitude)


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + exp(negate(x)))


@triton.jit
def sinh(x):
    size = tl.abs(x)
    e = expm1(tl.minimum(size, 40.0))
    small = 0.5 * (e + e / (e + 1.0))
    half = exp(0.5 * size)
    magnitude = tl.where(size > 40.0, (0.5 * half) * half, small)
    magnitude = tl.where(x != x, x, magnitude)
    return tl.where(sign_bit(x), negate(magnitude), magnitude)


@triton.jit
def cosh(x):
    half = exp(0.5 * tl.abs(x))
    return (0.5 * half) * half + 0.5 / (half * half)


@triton.jit
def tan(x):
    return tl.sin(x) / tl.cos(x)


@triton.jit
def _narrow_erf_rest(size):
    # 1 - erf(size) as 2**P(size), P fitted to its logarithm by reweighted least squares of the absolute error (9e-8 in
    # float32; P falls without bound, so that nothing has to be clamped). Two thirds of the instructions of a rational
    # function.
    p = -4.536046981229447e-05
    p = 0.00044552047620527446 + size * p
    p = -0.0014894758351147175 + size * p
    p = -0.0007745845359750092 + size * p
    p = 0.028253650292754173 + size * p
    p = -0.1484816074371338 + size * p
    p = -0.9184163808822632 + size * p
    p = -1.6279085874557495 + size * p
    return tl.exp2(size * p)


@triton.jit
def narrow_erf(x):
    # For results of half types. What 1 - 2**P has lost below 0.02 a straight line has (1.4e-4).
    if x.dtype == tl.float64:
        return tl.erf(x)
    size = tl.abs(x)
    bits = (1.0 - _narrow_erf_rest(size)).to(tl.int32, bitcast=True)
    sign = x.to(tl.int32, bitcast=True) & -2147483648
    return tl.where(size < 0.02, x * 1.1283791670955126, (bits | sign).to(tl.float32, bitcast=True))


@triton.jit
def narrow_erf_plus_one(x):
    # erf(x) + 1 for results of half types, as a GELU needs it: below zero it is 2**P itself, which loses nothing.
    if x.dtype == tl.float64:
        return tl.erf(x) + 1.0
    rest = _narrow_erf_rest(tl.abs(x))
    return tl.where(x < 0.0, rest, 2.0 - rest)


@triton.jit
def erfc(x):
    # erf loses everything above 4: the continued fraction there, 1 - erf below 0.5, a rational fit between.
    if x.dtype == tl.float64:
        return 1.0 - tl.erf(x)
    size = tl.abs(x)
    t = 2.0 / (2.0 + size)
    p = 0.17087277
    p = -0.82215223 + t * p
    p = 1.48851587 + t * p
    p = -1.13520398 + t * p
    p = 0.27886807 + t * p
    p = -0.18628806 + t * p
    p = 0.09678418 + t * p
    p = 0.37409196 + t * p
    p = 1.00002368 + t * p
    p = -1.26551223 + t * p
    tail = t * exp(negate(size) * size + p)
    tail = tl.where(x < 0.0, 2.0 - tail, tail)
    return tl.where(size < 0.5, 1.0 - tl.erf(x), tail)


@triton.jit
def atan(x):
    size = tl.abs(x)
    inverted = size > 1.0
    z = tl.where(inverted, 1.0 / size, size)
    upper = z > 0.4142135623730950
    w = tl.where(upper, (z - 1.0) / (z + 1.0), z)
    s = w * w
    p = 8.05374449538e-2
    p = p * s - 1.38776856032e-1
    p = p * s + 1.99777106478e-1
    p = p * s - 3.33329491539e-1
    value = p * s * w + w
    if x.dtype == tl.float64:
        # one Newton step on tan brings the float32 fit to double precision
        sine = tl.sin(value)
        cosine = tl.cos(value)
        value = value + (w * cosine - sine) / (cosine + w * sine)
        sine = tl.sin(value)
        cosine = tl.cos(value)
        value = value + (w * cosine - sine) / (cosine + w * sine)
    value = tl.where(upper, value + 0.7853981633974483, value)
    value = tl.where(inverted, 1.5707963267948966 - value, value)
    value = tl.where(x != x, x, value)
    return tl.where(sign_bit(x), negate(value), value)


@triton.jit
def atan2(y, x):
    size_x = tl.abs(x)
    size_y = tl.abs(y)
    both_infinite = (size_x == float("inf")) & (size_y == float("inf"))
    both_zero = (size_x == 0.0) & (size_y == 0.0)
    ratio = tl.where(both_infinite, 1.0, size_y / tl.where(size_x == 0.0, 1.0, size_x))
    angle = tl.where(size_x == 0.0, 1.5707963267948966, atan(ratio))
    angle = tl.where(both_zero, 0.0, angle)
    angle = tl.where(sign_bit(x), 3.141592653589793 - angle, angle)
    angle = tl.where(sign_bit(y), negate(angle), angle)
    return tl.where((x != x) | (y != y), x + y, angle)


@triton.jit
def asin(x):
    return atan2(x, sqrt((1.0 - x) * (1.0 + x)))


@triton.jit
def acos(x):
    return atan2(sqrt((1.0 - x) * (1.0 + x)), x)


@triton.jit
def asinh(x):
    size = tl.abs(x)
    big = size > 1e9
    squared = tl.where(big, 1.0, size * size)
    value = log1p(size + squared / (1.0 + sqrt(squared + 1.0)))
    value = tl.where(big, tl.log(size) + LN_2, value)
    value = tl.where(x != x, x, value)
    return tl.where(sign_bit(x), negate(value), value)


@triton.jit
def acosh(x):
    shifted = x - 1.0
    big = x > 1e9
    value = log1p(shifted + sqrt(tl.where(big, 1.0, shifted * (x + 1.0))))
    return tl.where(big, tl.log(x) + LN_2, value)


@triton.jit
def atanh(x):
    return 0.5 * log1p(2.0 * x / (1.0 - x))


@triton.jit
def erfinv(x):
    # Giles, "Approximating the erfinv function" (2010), then Newton steps on erf.
    w = negate(tl.log((1.0 - x) * (1.0 + x)))
    near = w - 2.5
    p = 2.81022636e-08
    p = 3.43273939e-07 + p * near
    p = -3.5233877e-06 + p * near
    p = -4.39150654e-06 + p * near
    p = 0.00021858087 + p * near
    p = -0.00125372503 + p * near
    p = -0.00417768164 + p * near
    p = 0.246640727 + p * near
    p = 1.50140941 + p * near
    far = sqrt(tl.maximum(w, 5.0)) - 3.0
    q = -0.000200214257
    q = 0.000100950558 + q * far
    q = 0.00134934322 + q * far
    q = -0.00367342844 + q * far
    q = 0.00573950773 + q * far
    q = -0.0076224613 + q * far
    q = 0.00943887047 + q * far
    q = 1.00167406 + q * far
    q = 2.83297682 + q * far
    value = tl.where(w < 5.0, p, q) * x
    step = (tl.erf(value) - x) / (1.1283791670955126 * exp(negate(value) * value))
    value = tl.where(tl.abs(x) < 0.999, value - step, value)
    if x.dtype == tl.float64:
        step = (tl.erf(value) - x) / (1.1283791670955126 * exp(negate(value) * value))
        value = value - step / (1.0 + value * step)
    value = tl.where(tl.abs(x) <= 1.0, value, float("nan"))
    return tl.where(tl.abs(x) == 1.0, x * float("inf"), value)


@triton.jit
def lgamma(x):
    # float64 throughout: the terms cancel near the zeros at 1 and 2
    return _lgamma(x.to(tl.float64)).to(x.dtype)


@triton.jit
def _lgamma(x):
    # Lanczos, g = 7, nine terms; reflection below 0.5.
    reflected = x < 0.5
    z = tl.where(reflected, negate(x), x - 1.0)
    total = 0.99999999999980993 + 676.5203681218851 / (z + 1.0)
    total += -1259.1392167224028 / (z + 2.0)
    total += 771.32342877765313 / (z + 3.0)
    total += -176.61502916214059 / (z + 4.0)
    total += 12.507343278686905 / (z + 5.0)
    total += -0.13857109526572012 / (z + 6.0)
    total += 9.9843695780195716e-6 / (z + 7.0)
    total += 1.5056327351493116e-7 / (z + 8.0)
    t = z + 7.5
    value = 0.9189385332046727 + (z + 0.5) * tl.log(t) - t + tl.log(total)
    fraction = tl.abs(x - tl.floor(x + 0.5))
    other = 1.1447298858494002 - tl.log(tl.abs(tl.sin(3.141592653589793 * fraction))) - value
    value = tl.where(reflected, other, value)
    value = tl.where((x <= 0.0) & (fraction == 0.0), float("inf"), value)
    value = tl.where((x == 1.0) | (x == 2.0), 0.0, value)
    return tl.where(tl.abs(x) == float("inf"), float("inf"), value)


@triton.jit
def digamma(x):
    return _digamma(x.to(tl.float64)).to(x.dtype)


@triton.jit
def _digamma(x):
    reflected = x < 0.0
    z = tl.where(reflected, 1.0 - x, x)
    shift = tl.zeros_like(z)
    for _ in tl.static_range(10):
        small = z < 10.0
        shift = tl.where(small, shift - 1.0 / z, shift)
        z = tl.where(small, z + 1.0, z)
    s = 1.0 / (z * z)
    series = s * (
        0.08333333333333333
        - s * (0.008333333333333333 - s * (0.003968253968253968 - s * 0.004166666666666667))
    )
    value = shift + tl.log(z) - 0.5 / z - series
    fraction = x - tl.floor(x + 0.5)
    angle = 3.141592653589793 * fraction
    value = tl.where(reflected, value - 3.141592653589793 * tl.cos(angle) / tl.sin(angle), value)
    pole = reflected & (fraction == 0.0)
    value = tl.where(pole, float("nan"), value)
    return tl.where(x == 0.0, copysign(tl.full(x.shape, float("inf"), x.dtype), negate(x)), value)


@triton.jit
def sqrt(x):
    return tl.sqrt(x) if x.dtype == tl.float64 else tl.sqrt_rn(x)


@triton.jit
def divide(x, y):
    return x / y if x.dtype == tl.float64 else tl.div_rn(x, y)


@triton.jit
def divide_by_row(x, y):
    # For results of half types, by a reciprocal that is computed once for a row; scaled, so that it is a normal number.
    size = tl.abs(y)
    scale = tl.where(size < 5e-29, 4294967296.0, tl.where(size > 2e28, 2.3283064365386963e-10, 1.0))
    return (x * scale) * (1.0 / (y * scale))


@triton.jit
def trunc(x):
    return tl.where(x < 0.0, tl.ceil(x), tl.floor(x))


@triton.jit
def round_half_even(x):
    size = tl.abs(x)
    below = tl.floor(size)
    rest = size - below
    odd = below - 2.0 * tl.floor(0.5 * below)
    up = (rest > 0.5) | ((rest == 0.5) & (odd == 1.0))
    value = tl.where(up, below + 1.0, below)
    value = tl.where(size < 4503599627370496.0, value, size)
    return tl.where(sign_bit(x), negate(value), value)


@triton.jit
def sign_bit(x):
    if x.dtype == tl.float64:
        return x.to(tl.int64, bitcast=True) < 0
    if x.dtype == tl.float32:
        return x.to(tl.int32, bitcast=True) < 0
    return x < 0


@triton.jit
def copysign(x, y):
    return tl.where(sign_bit(x) == sign_bit(y), x, negate(x))


@triton.jit
def sign(x):
    return tl.where(x > 0, 1, 0).to(x.dtype) - tl.where(x < 0, 1, 0).to(x.dtype)


@triton.jit
def hypot(x, y):
    big = tl.maximum(tl.abs(x), tl.abs(y))
    small = tl.minimum(tl.abs(x), tl.abs(y))
    ratio = small / tl.where(big == 0.0, 1.0, big)
    value = big * sqrt(1.0 + ratio * ratio)
    infinite = (tl.abs(x) == float("inf")) | (tl.abs(y) == float("inf"))
    value = tl.where((x != x) | (y != y), x + y, value)
    return tl.where(infinite, float("inf"), value)


@triton.jit
def nextafter(x, y):
    if x.dtype == tl.float64:
        bits = x.to(tl.int64, bitcast=True)
        tiny = tl.full(x.shape, 1, tl.int64)
        step = tl.where((x < y) == (x > 0.0), 1, -1).to(tl.int64)
        moved = (bits + step).to(tl.float64, bitcast=True)
        first = copysign(tiny.to(tl.float64, bitcast=True), y)
    else:
        bits = x.to(tl.int32, bitcast=True)
        tiny = tl.full(x.shape, 1, tl.int32)
        step = tl.where((x < y) == (x > 0.0), 1, -1).to(tl.int32)
        moved = (bits + step).to(tl.float32, bitcast=True)
        first = copysign(tiny.to(tl.float32, bitcast=True), y)
    moved = tl.where(x == 0.0, first, moved)
    return tl.where((x != x) | (y != y), x + y, tl.where(x == y, y, moved))


@triton.jit
def power(x, y):
    # |x|**y by exp2 of a product whose low part is kept; signs and special values as C's pow.
    size = tl.abs(x)
    if x.dtype == tl.float64:
        value = tl.exp(y * tl.log(size))
    else:
        # float64 carries the rounding error of log2 that y multiplies
        value = tl.exp2(y.to(tl.float64) * tl.log2(size.to(tl.float64))).to(tl.float32)
    whole = tl.floor(y) == y
    odd = whole & ((y - 2.0 * tl.floor(0.5 * y)) == 1.0)
    value = tl.where((x < 0.0) & odd, negate(value), value)
    value = tl.where(
        (x < 0.0) & (tl.abs(x) < float("inf")) & (tl.abs(y) < float("inf")) & (whole == 0),
        float("nan"),
        value,
    )
    zero = size == 0.0
    at_zero = tl.where(y > 0.0, size, float("inf"))
    at_zero = tl.where(odd, copysign(at_zero, x), at_zero)
    value = tl.where(zero, at_zero, value)
    infinite_power = tl.abs(y) == float("inf")
    at_infinity = tl.where((size > 1.0) == (y > 0.0), float("inf"), 0.0)
    value = tl.where(infinite_power, tl.where(size == 1.0, 1.0, at_infinity), value)
    value = tl.where((x != x) | (y != y), x + y, value)
    return tl.where((y == 0.0) | (x == 1.0), 1.0, value)


@triton.jit
def integer_power(x, y):
    base = x
    left = tl.where(y < 0, 0, y)
    value = tl.full(x.shape, 1, x.dtype)
    for _ in tl.static_range(6):
        value = tl.where((left & 1) == 1, value * base, value)
        base = base * base
        left = left >> 1
    odd = (y & 1) == 1
    # An exponent of 64 or more leaves only 0, 1, -1 and even bases' wrapped zeros; a negative one 0, 1 and -1.
    if x.dtype.is_int_signed():
        unit = tl.where(x == 1, 1, tl.where(x == -1, tl.where(odd, -1, 1), 0)).to(x.dtype)
        is_unit = (x == 1) | (x == -1)
    else:
        unit = tl.where(x == 1, 1, 0).to(x.dtype)
        is_unit = x == 1
    value = tl.where(y >= 64, tl.where((x & 1) == 0, 0, tl.where(is_unit, unit, value)), value)
    return tl.where(y < 0, unit, value)


@triton.jit
def maximum(x, y):
    if x.dtype.is_floating():
        return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)
    return tl.maximum(x, y)


@triton.jit
def minimum(x, y):
    if x.dtype.is_floating():
        return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)
    return tl.minimum(x, y)


# ---- division --------------------------------------------------------------------------------------------------------
@triton.jit
def trunc_div(x, y):
    zero = y == 0
    return tl.where(zero, 0, x // tl.where(zero, 1, y)).to(x.dtype)


@triton.jit
def floor_div(x, y):
    zero = y == 0
    divisor = tl.where(zero, 1, y).to(y.dtype)
    quotient = x // divisor
    rest = x - quotient * divisor
    down = (rest != 0) & ((rest < 0) != (divisor < 0))
    return tl.where(zero, 0, quotient - tl.where(down, 1, 0)).to(x.dtype)


@triton.jit
def floor_modulo(x, y):
    zero = y == 0
    divisor = tl.where(zero, 1, y).to(y.dtype)
    rest = x % divisor
    wrong = (rest != 0) & ((rest < 0) != (divisor < 0))
    return tl.where(zero, 0, rest + tl.where(wrong, divisor, 0)).to(x.dtype)


@triton.jit
def trunc_modulo(x, y):
    zero = y == 0
    return tl.where(zero, 0, x % tl.where(zero, 1, y)).to(x.dtype)


@triton.jit
def float_fmod(x, y):
    # exact for quotients below 2**52; float32 goes through float64
    wide_x = x.to(tl.float64)
    wide_y = y.to(tl.float64)
    quotient = trunc(wide_x / wide_y)
    rest = tl.fma(negate(quotient), wide_y, wide_x)
    over = (tl.abs(rest) >= tl.abs(wide_y)) & (wide_y != 0.0)
    rest = tl.where(over, rest - copysign(wide_y, rest), rest)
    wrong = (rest != 0.0) & (sign_bit(rest) != sign_bit(wide_x))
    rest = tl.where(wrong, rest + copysign(wide_y, wide_x), rest)
    rest = copysign(rest, wide_x)
    rest = tl.where((tl.abs(y) == float("inf")) & (tl.abs(x) < float("inf")), wide_x, rest)
    return tl.where((y == 0.0) | (tl.abs(x) == float("inf")), float("nan"), rest).to(x.dtype)


@triton.jit
def float_remainder(x, y):
    rest = float_fmod(x, y)
    wrong = (rest != 0.0) & ((y < 0.0) != (rest < 0.0))
    return tl.where(wrong, rest + y, rest)


@triton.jit
def float_floor_divide(x, y):
    # as torch.floor_divide: from the remainder, so that the result is the exact quotient rounded down
    rest = float_fmod(x, y)
    quotient = divide(x - rest, y)
    quotient = tl.where((rest != 0.0) & ((y < 0.0) != (rest < 0.0)), quotient - 1.0, quotient)
    whole = tl.floor(quotient)
    whole = tl.where(quotient - whole > 0.5, whole + 1.0, whole)
    zero = copysign(tl.zeros_like(x), divide(x, y))
    whole = tl.where(quotient == 0.0, zero, whole)
    return tl.where(y == 0.0, divide(x, y), whole)


@triton.jit
def shift_left(x, y, BITS: tl.constexpr):
    outside = (y < 0) | (y >= BITS)
    return tl.where(outside, 0, x << tl.where(outside, 0, y)).to(x.dtype)


@triton.jit
def shift_right(x, y, BITS: tl.constexpr):
    outside = (y < 0) | (y >= BITS)
    return (x >> tl.where(outside, BITS - 1, y)).to(x.dtype)


# ---- combinations for tl.reduce and tl.associative_scan -------------------------------------------------------------
@triton.jit
def combine_sum(x, y):
    return x + y


@triton.jit
def combine_prod(x, y):
    return x * y


@triton.jit
def combine_max(x, y):
    return maximum(x, y)


@triton.jit
def combine_min(x, y):
    return minimum(x, y)


@triton.jit
def combine_or(x, y):
    return x | y


@triton.jit
def combine_and(x, y):
    return x & y


@triton.jit
def combine_logaddexp(x, y):
    high = maximum(x, y)
    low = minimum(x, y)
    same = (x == y) & (tl.abs(x) == float("inf"))
    return tl.where(same, x, high + log1p(exp(low - high)))


@triton.jit
def combine_argmax(x, i, y, j):
    x_nan = x != x
    y_nan = y != y
    equal = (x == y) | (x_nan & y_nan)
    first = tl.where(equal, i < j, ((x > y) & (y_nan == 0)) | x_nan)
    return tl.where(first, x, y), tl.where(first, i, j)


@triton.jit
def combine_argmin(x, i, y, j):
    x_nan = x != x
    y_nan = y != y
    equal = (x == y) | (x_nan & y_nan)
    first = tl.where(equal, i < j, ((x < y) & (y_nan == 0)) | x_nan)
    return tl.where(first, x, y), tl.where(first, i, j)


@triton.jit
def combine_welford(mean, m2, count, other_mean, other_m2, other_count):
    total = count + other_count
    share = tl.where(total == 0.0, 0.0, other_count / tl.where(total == 0.0, 1.0, total))
    delta = other_mean - mean
    return mean + delta * share, m2 + other_m2 + delta * delta * count * share, total


@triton.jit
def select_reduced(x, mask, neutral):
    return tl.where(mask, x, neutral)


# ---- random numbers --------------------------------------------------------------------------------------------------
@triton.jit
def philox(seed, offset, element):
    """Philox 4x32-10, as `primtorch.library` defines it: four uint32 words."""
    mask = tl.full([1], 0xFFFFFFFF, tl.uint64)
    wide_seed = seed.to(tl.uint64)
    wide_offset = offset.to(tl.uint64)
    wide_element = element.to(tl.uint64)
    key_0 = (wide_seed & mask).to(tl.uint32)
    key_1 = (wide_seed >> 32).to(tl.uint32)
    c0 = (wide_element & mask).to(tl.uint32)
    c1 = (wide_element >> 32).to(tl.uint32)
    c2 = (wide_offset & mask).to(tl.uint32) + tl.zeros_like(c0)
    c3 = (wide_offset >> 32).to(tl.uint32) + tl.zeros_like(c0)
    multiplier_0 = tl.full([1], 0xD2511F53, tl.uint64)
    multiplier_1 = tl.full([1], 0xCD9E8D57, tl.uint64)
    weyl_0 = tl.full([1], 0x9E3779B9, tl.uint32)
    weyl_1 = tl.full([1], 0xBB67AE85, tl.uint32)
    for _ in tl.static_range(10):
        # both halves of a product by one instruction
        product_0 = multiplier_0 * c0.to(tl.uint64)
        product_1 = multiplier_1 * c2.to(tl.uint64)
        c0 = (product_1 >> 32).to(tl.uint32) ^ c1 ^ key_0
        c2 = (product_0 >> 32).to(tl.uint32) ^ c3 ^ key_1
        c1 = product_1.to(tl.uint32)
        c3 = product_0.to(tl.uint32)
        key_0 = key_0 + weyl_0
        key_1 = key_1 + weyl_1
    return c0, c1, c2, c3


@triton.jit
def unit_float(word):
    """In [0, 1): the upper 24 bits."""
    return (word >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08


@triton.jit
def philox_uniform(seed, offset, element, DOUBLE: tl.constexpr):
    """In [0, 1), for any elements."""
    if DOUBLE:
        w0, w1, _w2, _w3 = philox(seed, offset, element)
        number = (w0.to(tl.uint64) << 21) | (w1 >> 11).to(tl.uint64)
        return number.to(tl.int64).to(tl.float64) * 1.1102230246251565e-16
    else:  # noqa: RET505 - Triton types both ways where the second isn't a branch
        w0, w1, w2, w3 = philox(seed, offset, element >> 2)
        odd = (element & 1) != 0
        return unit_float(
            tl.where((element & 2) != 0, tl.where(odd, w3, w2), tl.where(odd, w1, w0))
        )


@triton.jit
def philox_four_words(seed, offset, counter):
    """All words of each counter, along two new axes whose order is that of the elements."""
    w0, w1, w2, w3 = philox(seed, offset, counter)
    return tl.join(tl.join(w0, w2), tl.join(w1, w3))


@triton.jit
def philox_normal(seed, offset, element, DOUBLE: tl.constexpr):
    """Box and Muller."""
    w0, w1, w2, w3 = philox(seed, offset, element)
    if DOUBLE:
        first = ((w0.to(tl.uint64) << 21) | (w1 >> 11).to(tl.uint64)).to(tl.int64) + 1
        second = ((w2.to(tl.uint64) << 21) | (w3 >> 11).to(tl.uint64)).to(tl.int64)
        radius = first.to(tl.float64) * 1.1102230246251565e-16
        angle = second.to(tl.float64) * 1.1102230246251565e-16
        return tl.sqrt(tl.log(radius) * -2.0) * tl.cos(angle * TWO_PI)
    else:  # noqa: RET505 - as above
        radius = ((w0 >> 8) + 1).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08
        angle = (w1 >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08
        return tl.sqrt_rn(tl.log(radius) * -2.0) * tl.cos(angle * TWO_PI)


@triton.jit
def philox_bits(seed, offset, element):
    """64 random bits: word 1 above word 0."""
    w0, w1, _w2, _w3 = philox(seed, offset, element)
    return ((w1.to(tl.uint64) << 32) | w0.to(tl.uint64)).to(tl.int64)
