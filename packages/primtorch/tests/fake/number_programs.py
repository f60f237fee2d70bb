"""Calls that take a tensor `x` of two elements, a number, and how further tensors are made: `(x, number, tensor)`."""

import torch
import torch.nn.functional as F


def assigned(x, index, number):
    y = x.clone()
    y[index] = number
    return y


def mask(tensor):
    return tensor([True, False])


def index(tensor):
    return tensor([1])


FILLS = {
    "full": lambda x, v, t: torch.full((2,), v, dtype=x.dtype),
    "full, dtype by number": lambda x, v, t: torch.full((2,), v),
    "full, one element": lambda x, v, t: torch.full((1,), v, dtype=x.dtype),
    "full_like": lambda x, v, t: torch.full_like(x, v),
    "new_full": lambda x, v, t: x.new_full((2,), v),
    "fill": lambda x, v, t: torch.fill(x, v),
    "fill_": lambda x, v, t: x.clone().fill_(v),
    "index_fill": lambda x, v, t: x.index_fill(0, index(t), v),
    "index_fill_": lambda x, v, t: x.clone().index_fill_(0, index(t), v),
    "scatter": lambda x, v, t: x.scatter(0, index(t), v),
    "scatter_": lambda x, v, t: x.clone().scatter_(0, index(t), v),
    "scatter, add": lambda x, v, t: x.scatter(0, index(t), v, reduce="add"),
    "scatter, multiply": lambda x, v, t: x.scatter(0, index(t), v, reduce="multiply"),
    "masked_fill": lambda x, v, t: x.masked_fill(mask(t), v),
    "masked_fill_": lambda x, v, t: x.clone().masked_fill_(mask(t), v),
    "pad": lambda x, v, t: F.pad(x, (1, 1), value=v),
    "pad, cut": lambda x, v, t: F.pad(x, (-1, 1), value=v),
    "pad, only cut": lambda x, v, t: F.pad(x, (-1, 0), value=v),
    "constant_pad_nd": lambda x, v, t: torch.constant_pad_nd(x, (1, 0), v),
    "fill_diagonal_": lambda x, v, t: x.view(2, 1).clone().fill_diagonal_(v),
    "scalar_tensor": lambda x, v, t: torch.scalar_tensor(v, dtype=x.dtype),
    "x[0] =": lambda x, v, t: assigned(x, 0, v),
    "x[0:1] =": lambda x, v, t: assigned(x, slice(0, 1), v),
    "x[mask] =": lambda x, v, t: assigned(x, mask(t), v),
    "arange": lambda x, v, t: torch.arange(v, v + 2, dtype=x.dtype),
    "linspace": lambda x, v, t: torch.linspace(0, v, 3, dtype=x.dtype),
}

POINTWISE = {
    "where, number last": lambda x, v, t: torch.where(mask(t), x, v),
    "where, number first": lambda x, v, t: torch.where(mask(t), v, x),
    "clamp": lambda x, v, t: torch.clamp(x, v, v),
    "clamp, min": lambda x, v, t: torch.clamp(x, min=v),
    "clamp, max": lambda x, v, t: torch.clamp(x, max=v),
    "clamp_": lambda x, v, t: x.clone().clamp_(v, v),
    "clamp_min_": lambda x, v, t: x.clone().clamp_min_(v),
    "pow": lambda x, v, t: torch.pow(x, v),
    "number ** x": lambda x, v, t: torch.pow(v, x),
    "pow_": lambda x, v, t: x.clone().pow_(v),
    "float_power": lambda x, v, t: torch.float_power(x, v),
    "x + number": lambda x, v, t: x + v,
    "add_": lambda x, v, t: x.clone().add_(v),
    "add, alpha": lambda x, v, t: torch.add(x, x, alpha=v),
    "x - number": lambda x, v, t: x - v,
    "number - x": lambda x, v, t: v - x,
    "sub_": lambda x, v, t: x.clone().sub_(v),
    "sub, alpha": lambda x, v, t: torch.sub(x, x, alpha=v),
    "rsub, alpha": lambda x, v, t: torch.rsub(x, 1, alpha=v),
    "x * number": lambda x, v, t: x * v,
    "mul_": lambda x, v, t: x.clone().mul_(v),
    "x / number": lambda x, v, t: x / v,
    "div_": lambda x, v, t: x.clone().div_(v),
    "x // number": lambda x, v, t: x // v,
    "floor_divide_": lambda x, v, t: x.clone().floor_divide_(v),
    "div, trunc": lambda x, v, t: torch.div(x, v, rounding_mode="trunc"),
    "x % number": lambda x, v, t: x % v,
    "remainder_": lambda x, v, t: x.clone().remainder_(v),
    "fmod": lambda x, v, t: torch.fmod(x, v),
    "addcmul": lambda x, v, t: torch.addcmul(x, x, x, value=v),
    "addcdiv": lambda x, v, t: torch.addcdiv(x, x, x, value=v),
    "lerp": lambda x, v, t: torch.lerp(x, x, v),
    "x == number": lambda x, v, t: x == v,
    "x < number": lambda x, v, t: x < v,
    "lt_": lambda x, v, t: x.clone().lt_(v),
    "x & number": lambda x, v, t: x & v,
    "x &= number": lambda x, v, t: x.clone().__iand__(v),
    "number & x": lambda x, v, t: torch.bitwise_and(v, x),
    "x << number": lambda x, v, t: x << v,
    "number << x": lambda x, v, t: torch.bitwise_left_shift(v, x),
    "x >> number": lambda x, v, t: x >> v,
    "threshold": lambda x, v, t: F.threshold(x, 0, v),
    "threshold, at": lambda x, v, t: F.threshold(x, v, 0),
    "hardtanh": lambda x, v, t: F.hardtanh(x, v, v),
    "leaky_relu": lambda x, v, t: F.leaky_relu(x, v),
    "rrelu": lambda x, v, t: F.rrelu(x, 0.1, v),
    "elu": lambda x, v, t: F.elu(x, v),
    "celu": lambda x, v, t: F.celu(x, v),
    "softplus": lambda x, v, t: F.softplus(x, v),
    "softshrink": lambda x, v, t: F.softshrink(x, v),
    "hardshrink": lambda x, v, t: F.hardshrink(x, v),
    "nan_to_num": lambda x, v, t: torch.nan_to_num(x, v, v, v),
    "logit": lambda x, v, t: torch.logit(x, v),
    "xlogy": lambda x, v, t: torch.xlogy(x, v),
    "zeta": lambda x, v, t: torch.special.zeta(x, v),
    "copysign": lambda x, v, t: torch.copysign(x, v),
    "hermite_polynomial_h": lambda x, v, t: torch.special.hermite_polynomial_h(x, v),
}

PRODUCTS_AND_OTHERS = {
    "addmm, beta": lambda x, v, t: torch.addmm(x, x.view(2, 1), x.view(1, 2), beta=v),
    "addmm, alpha": lambda x, v, t: torch.addmm(x, x.view(2, 1), x.view(1, 2), alpha=v),
    "addmv": lambda x, v, t: torch.addmv(x, x.view(2, 1), x[:1], beta=v, alpha=v),
    "addr": lambda x, v, t: torch.addr(x, x[:1], x, beta=v, alpha=v),
    "baddbmm": lambda x, v, t: torch.baddbmm(x, x.view(1, 2, 1), x.view(1, 1, 2), beta=v, alpha=v),
    "index_add": lambda x, v, t: torch.index_add(x, 0, t([1, 0]), x, alpha=v),
    "renorm": lambda x, v, t: torch.renorm(x.view(2, 1), 2, 0, v),
    "vector_norm": lambda x, v, t: torch.linalg.vector_norm(x, v),
    "dist": lambda x, v, t: torch.dist(x, x, v),
    "isin": lambda x, v, t: torch.isin(x, v),
    "bucketize": lambda x, v, t: torch.bucketize(v, x),
    "searchsorted": lambda x, v, t: torch.searchsorted(x, v),
    "histc": lambda x, v, t: torch.histc(x, 3, min=0, max=v),
}

RANDOM = {
    "uniform_": lambda x, v, t: x.clone().uniform_(0, v),
    "normal_": lambda x, v, t: x.clone().normal_(0, v),
    "random_": lambda x, v, t: x.clone().random_(0, v),
    "random_, one bound": lambda x, v, t: x.clone().random_(v),
    "bernoulli_": lambda x, v, t: x.clone().bernoulli_(v),
    "exponential_": lambda x, v, t: x.clone().exponential_(v),
    "geometric_": lambda x, v, t: x.clone().geometric_(v),
    "log_normal_": lambda x, v, t: x.clone().log_normal_(0, v),
    "cauchy_": lambda x, v, t: x.clone().cauchy_(0, v),
    "randint": lambda x, v, t: torch.randint(0, v, (2,), dtype=x.dtype),
    "randint_like": lambda x, v, t: torch.randint_like(x, v),
}

WITHOUT_NUMBERS = {
    "argmax": lambda x, v, t: x.argmax(0),
    "argmin": lambda x, v, t: x.argmin(),
    "amax": lambda x, v, t: x.amax(0),
    "var": lambda x, v, t: x.var(0),
    "std": lambda x, v, t: x.std(correction=0),
    "mean": lambda x, v, t: x.mean(),
    "logcumsumexp": lambda x, v, t: x.logcumsumexp(0),
    "sort": lambda x, v, t: x.sort(),
    "mode": lambda x, v, t: x.mode(),
    "softmax": lambda x, v, t: x.softmax(0),
    "hardswish": lambda x, v, t: F.hardswish(x),
    "add, out": lambda x, v, t: torch.add(x, x, out=t([0, 0])),
    "mul, out": lambda x, v, t: torch.mul(x, x, out=t([0.0, 0.0])),
    "remainder, out": lambda x, v, t: torch.remainder(x, x, out=t([1, 1])),
}

PROGRAMS = FILLS | POINTWISE | PRODUCTS_AND_OTHERS | RANDOM
