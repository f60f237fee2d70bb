"""What eager refuses whatever the elements are: a number out of a dtype's range, a dtype without a kernel.

In: an operator and its arguments as a context gets them. Out: nothing, or the exception that eager raises. There is
one rule for all operators: eager itself is asked, with a tensor of at most two elements in each direction in place of
each argument, once for each combination of dtypes and numbers. Asked are operators whose answer depends on nothing
else: pointwise ones, those that write a number, products, and random ones, which draw from a generator of their own or
give the program's back as it was.
Elsewhere than on the CPU only those that write a number are asked: kernels for other dtypes are others there.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import torch

from primtorch import _torch
from primtorch.fake.registry import functional_form
from primtorch.fake.tensor import FakeTensor, meta_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch._ops import OpOverload

    from primtorch.fake.meta import TensorMeta

# Write a number: their sizes are left out, and that number is asked about whatever the device.
_FILLS = frozenset(
    f"aten::{name}"
    for name in (
        "fill", "fill_", "full", "full_like", "new_full", "index_fill", "index_fill_", "masked_fill",
        "masked_fill_", "scatter", "scatter_", "constant_pad_nd", "scalar_tensor",
    )
)  # fmt: skip
# Further ones to which two elements in each direction are a call like any other (torch 2.11 doesn't call all of them
# pointwise).
_OTHERS = frozenset(
    f"aten::{name}"
    for name in (
        "addmm", "addmv", "addr", "addbmm", "baddbmm", "addmm_", "addmv_", "addr_", "addbmm_",
        "baddbmm_", "mm", "bmm", "mv", "dot", "vdot", "index_add", "index_add_", "isin", "bucketize",
        "searchsorted", "renorm", "renorm_", "complex", "polar", "fill_diagonal_", "dist",
        "arange", "linspace", "logspace", "linalg_vector_norm", "floor_divide", "floor_divide_",
        "rrelu_with_noise", "rrelu_with_noise_", "_softmax", "_log_softmax", "histc", "hardswish",
        "hardswish_", "mean", "logsumexp", "sum", "prod", "nansum", "var", "std", "var_mean",
        "std_mean", "amax", "amin", "aminmax", "max", "min", "argmax", "argmin", "median",
        "nanmedian", "mode", "any", "all", "count_nonzero", "cumsum", "cumprod", "cummax", "cummin",
        "logcumsumexp", "sort", "argsort", "leaky_relu", "leaky_relu_",
        "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional",
        "_native_batch_norm_legit_no_training",
    )
)  # fmt: skip
_RANDOM = frozenset(
    f"aten::{name}"
    for name in (
        "uniform", "normal", "bernoulli", "exponential", "geometric", "log_normal", "cauchy",
        "uniform_", "normal_", "bernoulli_", "exponential_", "geometric_", "log_normal_", "cauchy_",
        "random", "random_", "randint", "randint_like",
    )
)  # fmt: skip
_NAMED_INDEX = frozenset({"index", "indices"})
_LIMIT = 10_000
_answers: dict[Any, _Answer] = {}
_DOUBLE = torch.finfo(torch.float64).max
_CPU = torch.device("cpu")
_FEW = 16  # steps of a range


class _StandIn:
    """A small tensor for one of the arguments: sizes of 0 and 1 as they are, 2 for all others."""

    __slots__ = ("dtype", "shape")

    def __init__(self, meta: TensorMeta) -> None:
        self.dtype = meta.dtype
        self.shape = _small(meta.shape)

    def make(self, name: str) -> torch.Tensor:
        """The tensor: of ones, of zeros where it says which element."""
        make = torch.ops.aten.zeros if name in _NAMED_INDEX else torch.ops.aten.ones
        made: torch.Tensor = make.default(self.shape, dtype=self.dtype, device=_CPU)
        return made


def _small(shape: Sequence[Any]) -> tuple[int, ...]:
    """Sizes that stand for these: one element and none are cases of their own in eager's kernels."""
    most = 2 if len(shape) < _FEW else 1
    return tuple([size if size.__class__ is int and size < most else most for size in shape])


@dataclass(frozen=True, slots=True)
class _Answer:
    """What eager raises, or None and the dtype of its result."""

    error: Exception | None = None
    dtype: torch.dtype | None = None


def refuse(op: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise what eager raises for these dtypes and numbers, if it does.

    A number that varies gets a guard that it stays within the dtype, where eager refuses one that doesn't.
    """
    kind = _kind_of(op)
    if kind is None:
        return
    if op._schema.name == "aten::arange" and any(map(_varies, args)):
        return  # another number in its place may lie on the other side of the range's end
    varying: list[Any] = []
    answer = _answer(op, kind, args, kwargs, varying, _one)
    if answer.error is None and answer.dtype is not None and any(map(_may_guard, varying)):
        too_large = _answer(op, kind, args, kwargs, [], _too_large)
        if too_large.error is not None:
            number = partial(_within, _largest(answer.dtype))
            answer = _answer(op, kind, args, kwargs, [], number)
    if answer.error is not None:
        raise type(answer.error)(*answer.error.args)


def _answer(
    op: OpOverload,
    kind: str,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    varying: list[Any],
    number: Callable[[Any], Any],
) -> _Answer:
    """What eager says, as it is remembered; `number` gives what stands for one that varies."""
    question = _Question([op], varying, number)
    plain = [question.plain(value) for value in args]
    named = {}
    for name, value in kwargs.items():
        question.key.append(name)
        named[name] = question.plain(value)
    elsewhere = question.elsewhere or torch.device(kwargs.get("device") or _CPU).type != "cpu"
    if elsewhere and kind != "fill":
        return _Answer()
    key = tuple(question.key)
    answer = _answers.get(key)
    if answer is None:
        if len(_answers) > _LIMIT:
            _answers.clear()
        answer = _answers[key] = _ask(op, plain, named)
    return answer


class _Question:
    """Arguments as they are asked about, and the key of what the answer depends on."""

    __slots__ = ("elsewhere", "key", "number", "varying")

    def __init__(self, key: list[Any], varying: list[Any], number: Callable[[Any], Any]) -> None:
        self.key = key
        self.varying = varying
        self.number = number
        self.elsewhere = False

    def plain(self, value: Any) -> Any:
        """One argument; a tensor's stand-in is made later, if nobody asked before."""
        key = self.key
        if isinstance(value, torch.Tensor):
            meta = value.meta if value.__class__ is FakeTensor else meta_of(value)
            self.elsewhere = self.elsewhere or meta.device.type != "cpu"
            stand_in = _StandIn(meta)
            key.append((meta.dtype, stand_in.shape))
            return stand_in
        if isinstance(value, (list, tuple)):
            key.append(len(value))
            return [self.plain(item) for item in value]
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            self.varying.append(value)
            value = self.number(value)
        elif isinstance(value, torch.SymBool):
            value = True  # every dtype holds both
        elif isinstance(value, torch.Generator):
            value = None
        key.append(value.__class__)
        key.append(str(value) if isinstance(value, (float, complex)) else value)  # NaN, -0.0
        return value


def _varies(value: Any) -> bool:
    return isinstance(value, (torch.SymInt, torch.SymFloat))


def _one(value: Any) -> Any:
    return 1 if isinstance(value, torch.SymInt) else 1.0


def _too_large(value: Any) -> Any:
    """A number that no dtype but the widest holds."""
    return 2**62 if isinstance(value, torch.SymInt) else 1e39


def _may_guard(value: Any) -> bool:
    """Whether questions about a number that varies may still become guards."""
    node = value.node
    return node.has_hint() and not node.environment.frozen


def _largest(dtype: torch.dtype) -> float:
    if dtype.is_floating_point or dtype.is_complex:
        return torch.finfo(dtype).max
    return 1 if dtype is torch.bool else torch.iinfo(dtype).max


def _within(largest: float, value: Any) -> Any:
    """What stands for a number that varies: itself, if it isn't within these bounds, and a guard either way."""
    one = _one(value)
    if not _may_guard(value) or -largest <= value <= largest:
        return one
    if isinstance(value, torch.SymFloat) and not -_DOUBLE <= value <= _DOUBLE:
        return value.node.hint  # infinite, or no number
    return type(one)(value)


@lru_cache(None)
def _kind_of(op: OpOverload) -> str | None:
    """Which rule an operator comes under; None for those that aren't asked."""
    name = op._schema.name
    if any(argument.is_out for argument in op._schema.arguments):
        form = functional_form(
            op
        )  # it asks for the dtype that is written, once sizes are known to fit
        told = form is not None and form._schema.name == "aten::floor_divide"  # without the tag
        if form is None or not (told or torch.Tag.pointwise in form.tags):
            return None
        return None if _kind_of(form) is None else "cpu"
    if name in _FILLS:
        return "fill"
    if name in _RANDOM:
        return "random"
    form = functional_form(op) if name.endswith("_") else None
    pointwise = torch.Tag.pointwise in (op if form is None else form).tags
    return "cpu" if name in _OTHERS or (pointwise and op.namespace == "aten") else None


@lru_cache(None)
def _generator() -> torch.Generator:
    return torch.Generator()


def _ask(op: OpOverload, args: list[Any], kwargs: dict[str, Any]) -> _Answer:
    """Call the operator on stand-ins."""
    name = op._schema.name
    arguments = op._schema.arguments
    given: dict[str, Any] = {
        a.name: value for a, value in zip(arguments, args, strict=False)
    } | kwargs
    if name == "aten::constant_pad_nd":
        return _ask_pad(given)
    if name == "aten::arange":
        _shorten(given)
    if "size" in given:
        given["size"] = list(_small(given["size"]))
    if "correction" in given:
        given["correction"] = 1
    if "steps" in given:
        given["steps"] = min(given["steps"], _FEW)
    own = any(argument.name == "generator" for argument in arguments)
    if own:
        given["generator"] = _generator()
    if "device" in given:
        given["device"] = _CPU
    given.pop("pin_memory", None)
    with _torch.handed_over():
        made = {key: _made(value, key) for key, value in given.items()}
        leading = takewhile(lambda a: not a.kwarg_only and a.name in made, arguments)
        positional = [made.pop(argument.name) for argument in list(leading)]
        try:
            with nullcontext() if own or name not in _RANDOM else torch.random.fork_rng(()):
                result = op(*positional, **made)
        except Exception as error:  # noqa: BLE001  whatever eager raises is the answer
            return _Answer(error.with_traceback(None))
    return _Answer(dtype=result.dtype if isinstance(result, torch.Tensor) else None)


def _ask_pad(given: dict[str, Any]) -> _Answer:
    """Padding writes its number where there is something to pad."""
    if not any(amount > 0 for amount in given["pad"]):
        return _Answer()
    stand_in = given["self"]
    stand_in.shape = (2,)
    return _ask(torch.ops.aten.full_like.default, [stand_in, given.get("value", 0)], {})


def _shorten(given: dict[str, Any]) -> None:
    """A range of a few numbers for one of many."""
    start, step = given.get("start", 0), given.get("step", 1)
    try:
        many = (given["end"] - start) / step > _FEW
    except (ArithmeticError, TypeError):
        return  # eager refuses it before it makes any
    if many and math.isfinite(given["end"]):
        given["end"] = start + 2 * step


def _made(value: Any, name: str) -> Any:
    if value.__class__ is _StandIn:
        return value.make(name)
    return [_made(item, name) for item in value] if value.__class__ is list else value
