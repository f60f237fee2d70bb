"""Inputs for an operator, made from its schema: dtypes, shapes, strides and edge values.

`samples_of(operator, dtype)` yields argument tuples that eager accepts. Each argument is chosen by
its type and name in the schema; operators whose arguments hang together (sizes of a view, a
convolution's weight) have a maker of their own; an operator with neither has no samples.
Invariant: the same operator and dtype always give the same samples, and every sample has been run
by eager once.
"""

from __future__ import annotations

import itertools
import math
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from primtorch.makers import MAKERS
from primtorch.prims import family_of, is_prim
from primtorch.registry import registered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch._ops import OpOverload

    Maker = Callable[["Values"], list[tuple[tuple[Any, ...], dict[str, Any]]]]

__all__ = ["Sample", "Values", "samples_of"]


@dataclass(frozen=True, slots=True)
class Sample:
    """Arguments of one call, what eager returned, and what is peculiar about the inputs."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    expected: Any
    peculiarity: str


class Values:
    """Makes tensors of one dtype from a fixed stream of numbers."""

    def __init__(self, operator: OpOverload, dtype: torch.dtype) -> None:
        self.dtype: torch.dtype = dtype
        self.generator: torch.Generator = torch.Generator().manual_seed(
            zlib.crc32(f"{operator} {dtype}".encode())
        )

    def tensor(self, *shape: int, low: float = -2.0, high: float = 3.0) -> torch.Tensor:
        """A row-major tensor of ordinary values between `low` and `high`."""
        if self.dtype is torch.bool:
            return torch.rand(shape, generator=self.generator) < 0.5
        unit = torch.rand(shape, generator=self.generator, dtype=torch.float64)
        spread = unit * (high - low) + low
        if self.dtype.is_complex:
            other = torch.rand(shape, generator=self.generator, dtype=torch.float64) - 0.5
            return torch.complex(spread, other).to(self.dtype)
        if self.dtype.is_floating_point:
            return spread.to(self.dtype)
        return (spread.clamp(min=0) if self.dtype is torch.uint8 else spread).to(self.dtype)

    def index(self, *shape: int, below: int) -> torch.Tensor:
        """Indices from 0 below `below`."""
        return torch.randint(0, below, shape, generator=self.generator)

    def edges(self) -> torch.Tensor:
        """Zero of both signs, infinities, NaN, subnormals, extremes (integers: their extremes)."""
        if self.dtype is torch.bool:
            return torch.tensor([False, True, True, False])
        if self.dtype.is_floating_point:
            limits = torch.finfo(self.dtype)
            values = [0.0, -0.0, 1.0, -1.0, 0.5, math.inf, -math.inf, math.nan, limits.max]
            values += [limits.min, limits.tiny, limits.tiny / 4, limits.eps, 3.0, -2.5, 1e-3]
            return torch.tensor(values, dtype=torch.float64).to(self.dtype)
        if self.dtype.is_complex:
            return torch.tensor([0, 1j, -1, 2 + 1j, -0.5 - 3j], dtype=self.dtype)
        limits = torch.iinfo(self.dtype)
        return torch.tensor(
            [0, 1, 2, 3, 7, limits.max, limits.min, limits.max - 1], dtype=self.dtype
        )


_SHAPES: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("ordinary", (3, 4)),
    ("no dimensions", ()),
    ("one element", (1,)),
    ("three dimensions", (2, 3, 5)),
    ("empty", (0, 3)),
    ("longer than a vector register", (67,)),
)


def _layouts(values: Values) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors of every shape, and of the strides that a kernel can meet."""
    for name, shape in _SHAPES:
        yield name, values.tensor(*shape)
    yield "transposed", values.tensor(4, 3).t()
    yield "strided", values.tensor(6, 8)[::2, 1::2]
    yield "expanded", values.tensor(1, 4).expand(3, 4)
    yield "edge values", values.edges()
    yield "channels last", values.tensor(2, 3, 4, 4).to(memory_format=torch.channels_last)


def _argument(argument: Any, position: int, base: torch.Tensor, values: Values) -> list[Any]:
    """Candidates for one argument of a schema, given the first tensor."""
    kind, name, rank = str(argument.type), argument.name, base.dim()
    if kind == "Tensor":
        if name in ("index", "indices"):
            return [values.index(*base.shape, below=max(min(base.shape, default=1), 1))]
        if name in ("mask", "condition"):
            return [torch.rand(base.shape, generator=values.generator) < 0.5]
        if position == 0:
            return [base]
        turned = base.flip(0).contiguous() if rank else base.clone()
        broadcast = values.tensor(*base.shape[-1:])
        return [turned, broadcast]
    match kind:
        case "int" | "SymInt":
            return [0, -1] if "dim" in name else [1]
        case "List[int]" | "List[SymInt]":
            if "dim" in name:
                return [[0], [-1], list(range(rank))] if rank else [[]]
            return [list(base.shape)]
        case "bool":
            return [False, True]
        case "float":
            return [0.5]
        case "number":
            return [2, -1] if not values.dtype.is_floating_point else [2, 0.5, -1.5]
        case "List[Tensor]":
            return [[base, base.clone()], [base]]
        case "Device":
            return [base.device]
        case _:
            return [None] if argument.has_default_value() else []


def _from_schema(
    operator: OpOverload, values: Values
) -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    arguments = operator._schema.arguments
    for name, base in _layouts(values):
        candidates = []
        for position, argument in enumerate(arguments):
            if argument.kwarg_only:
                continue
            optional = str(argument.type).startswith("Optional") or argument.has_default_value()
            found = _argument(argument, position, base, values)
            if optional and position:
                found = [argument.default_value, *found] if found else [argument.default_value]
            candidates.append(found)
        for chosen in itertools.islice(itertools.product(*candidates), 6):
            yield name, chosen, {}


def _views(values: Values) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    base = values.tensor(4, 6)
    return [((base, [2, 12]), {}), ((base, [-1]), {}), ((base, [4, 2, 3]), {})]


def _convolutions(values: Values) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    image, weight, bias = values.tensor(2, 4, 7, 7), values.tensor(6, 4, 3, 3), values.tensor(6)
    last = image.to(memory_format=torch.channels_last)
    plain = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    return [
        ((image, weight, bias, *plain), {}),
        ((last, weight, None, [2, 2], [1, 1], [1, 1], False, [0, 0], 1), {}),
        ((image, values.tensor(4, 2, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 2), {}),
        ((image, values.tensor(4, 5, 3, 3), None, [2, 2], [1, 1], [1, 1], True, [1, 1], 1), {}),
    ]


def _pools(values: Values) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    image = values.tensor(2, 3, 8, 8)
    return [
        ((image, [2, 2]), {}),
        ((image, [3, 3], [2, 2], [1, 1]), {}),
        ((image.to(memory_format=torch.channels_last), [2, 2]), {}),
    ]


def _random(values: Values) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    if not values.dtype.is_floating_point:
        return []
    seed = torch.tensor([20261129])
    return [
        ((seed, 0, [3, 5]), {"dtype": values.dtype}),
        ((seed, 7, [129]), {"dtype": values.dtype}),
    ]


def _scatter_source(values: Values) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    base, index = values.tensor(4, 5), values.index(3, 5, below=4)
    return [
        ((base, 0, index, values.tensor(3, 5)), {}),
        ((base.t(), 1, index.t(), values.tensor(5, 3)), {}),
    ]


_SAME_SIZE = {
    torch.float32: torch.int32,
    torch.float64: torch.int64,
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
    torch.int64: torch.float64,
    torch.int32: torch.float32,
    torch.uint8: torch.int8,
    torch.bool: torch.uint8,
    torch.complex64: torch.float32,
}


_MAKERS: dict[str, Maker] = {
    "aten.view.dtype": lambda v: [
        ((v.tensor(3, 4), _SAME_SIZE[v.dtype]), {}),
        ((v.tensor(4, 3).t(), v.dtype), {}),
    ],
    "aten.view.default": _views,
    "aten.reshape.default": _views,
    "aten.convolution.default": _convolutions,
    "aten.max_pool2d_with_indices.default": _pools,
    "aten.avg_pool2d.default": _pools,
    "aten._adaptive_avg_pool2d.default": lambda v: [((v.tensor(2, 3, 8, 6), [2, 3]), {})],
    "primtorch.checked.default": lambda v: [
        ((v.tensor(3, 4).t(), torch.ones(2, dtype=torch.bool), "never said"), {})
    ],
    "primtorch.philox_uniform.default": _random,
    "primtorch.philox_normal.default": _random,
    "primtorch.philox_randint.default": lambda v: [
        ((torch.tensor([5]), 0, [40], -3, 9), {"dtype": v.dtype})
    ],
    "aten.mm.default": lambda v: [
        ((v.tensor(3, 4), v.tensor(4, 5)), {}),
        ((v.tensor(4, 3).t(), v.tensor(5, 4).t()), {}),
    ],
    "aten.bmm.default": lambda v: [((v.tensor(2, 3, 4), v.tensor(2, 4, 5)), {})],
    "aten.addmm.default": lambda v: [
        ((v.tensor(5), v.tensor(3, 4), v.tensor(4, 5)), {}),
        ((v.tensor(3, 5), v.tensor(3, 4), v.tensor(4, 5)), {"beta": 2, "alpha": 3}),
    ],
    "aten.baddbmm.default": lambda v: [
        ((v.tensor(2, 3, 5), v.tensor(2, 3, 4), v.tensor(2, 4, 5)), {})
    ],
    "aten.permute.default": lambda v: [((v.tensor(2, 3, 4), [2, 0, 1]), {})],
    "aten.expand.default": lambda v: [((v.tensor(3, 1), [2, 3, 4]), {})],
    "aten.slice.Tensor": lambda v: [((v.tensor(5, 6), 1, 1, 6, 2), {}), ((v.tensor(5), 0, -3), {})],
    "aten.as_strided.default": lambda v: [((v.tensor(12), [3, 2], [4, 1], 1), {})],
    "aten.unfold.default": lambda v: [((v.tensor(3, 8), 1, 3, 2), {})],
    "aten._to_copy.default": lambda v: [
        ((v.tensor(3, 4),), {"dtype": dtype})
        for dtype in (torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16)
    ],
    "aten.full.default": lambda v: [(([2, 3], 1), {"dtype": v.dtype})],
    "aten.arange.start_step": lambda v: [((1, 9, 2), {"dtype": v.dtype})],
    "aten.eye.m": lambda v: [((3, 4), {"dtype": v.dtype})],
    "aten.scalar_tensor.default": lambda v: [((1,), {"dtype": v.dtype})],
    "aten.cat.default": lambda v: [
        (([v.tensor(2, 3), v.tensor(4, 3)], 0), {}),
        (([v.tensor(2, 3), v.tensor(2, 1).expand(2, 2)], 1), {}),
    ],
    "aten.constant_pad_nd.default": lambda v: [((v.tensor(3, 4), [1, 2, 0, 1], 1), {})],
    "aten.repeat.default": lambda v: [((v.tensor(2, 3), [2, 1, 2]), {})],
    "aten.index.Tensor": lambda v: [
        ((v.tensor(5, 4), [v.index(3, below=5)]), {}),
        ((v.tensor(5, 4, 3), [None, v.index(2, 2, below=4), v.index(2, 2, below=3)]), {}),
    ],
    "aten.index_put.default": lambda v: [
        ((v.tensor(5, 4), [torch.tensor([0, 3])], v.tensor(2, 4)), {}),
        ((v.tensor(5, 4), [torch.tensor([1, 1, 2])], v.tensor(3, 4), True), {}),
    ],
    "aten.index_select.default": lambda v: [((v.tensor(5, 4), 0, v.index(3, below=5)), {})],
    "aten.gather.default": lambda v: [((v.tensor(4, 5), 1, v.index(4, 3, below=5)), {})],
    "aten.scatter.src": lambda v: [
        ((v.tensor(4, 5), 0, torch.tensor([[0, 1, 2, 3, 0]]), v.tensor(1, 5)), {})
    ],
    "aten.scatter_add.default": _scatter_source,
    "aten.scatter.value": lambda v: [((v.tensor(4, 5), 0, v.index(2, 5, below=4), 1), {})],
    "aten.scatter_reduce.two": lambda v: [
        ((v.tensor(4, 5), 0, v.index(3, 5, below=4), v.tensor(3, 5), how), {})
        for how in ("sum", "prod", "amax", "amin", "mean")
    ],
    "aten.embedding.default": lambda v: [((v.tensor(7, 4), v.index(2, 3, below=7)), {})],
    "aten.native_layer_norm.default": lambda v: [
        ((v.tensor(3, 4, 6), [6], v.tensor(6), v.tensor(6), 1e-5), {}),
        ((v.tensor(3, 4), [4], None, None, 1e-5), {}),
    ],
    "aten._softmax.default": lambda v: [
        ((v.tensor(3, 70), 1, False), {}),
        ((v.tensor(3, 4), 0, False), {}),
    ],
    "aten._log_softmax.default": lambda v: [((v.tensor(3, 70), 1, False), {})],
    "aten.topk.default": lambda v: [
        ((torch.randperm(20, generator=v.generator).to(v.dtype), 5), {})
    ],
    "aten.sort.stable": lambda v: [((v.tensor(3, 9),), {"stable": True, "dim": 1})],
    "aten.clamp.default": lambda v: [((v.tensor(3, 4), 0, 1), {}), ((v.edges(), None, 1), {})],
    "aten.clamp.Tensor": lambda v: [((v.tensor(3, 4), v.tensor(4), None), {})],
    "aten.div.Tensor_mode": lambda v: [
        (
            (
                v.tensor(3, 4),
                v.tensor(3, 4, low=1),
            ),
            {"rounding_mode": mode},
        )
        for mode in (None, "trunc", "floor")
    ],
    "aten.full_like.default": lambda v: [((v.tensor(4, 3).t(), 1), {})],
    "aten.logsumexp.default": lambda v: [
        ((v.tensor(3, 70), [1]), {}),
        ((v.tensor(3, 4), [0], True), {}),
    ],
    "aten.tril.default": lambda v: [((v.tensor(4, 5),), {}), ((v.tensor(2, 4, 4), 1), {})],
    "aten.triu.default": lambda v: [((v.tensor(4, 5),), {}), ((v.tensor(2, 4, 4), -1), {})],
    "aten.view_as_complex.default": lambda v: [((v.tensor(3, 2),), {})],
    "aten.split_with_sizes.default": lambda v: [((v.tensor(5, 4), [2, 3]), {})],
    "aten.roll.default": lambda v: [((v.tensor(4, 5), [1, 2], [0, 1]), {})],
    "aten.reflection_pad1d.default": lambda v: [((v.tensor(2, 3, 6), [2, 1]), {})],
    "aten.reflection_pad2d.default": lambda v: [((v.tensor(2, 3, 6, 5), [2, 1, 0, 3]), {})],
    "aten.replication_pad2d.default": lambda v: [((v.tensor(2, 3, 6, 5), [2, 1, 0, 3]), {})],
    "aten.upsample_nearest2d.default": lambda v: [((v.tensor(1, 2, 4, 5), [7, 10]), {})],
    "aten.upsample_bilinear2d.default": lambda v: [
        ((v.tensor(1, 2, 4, 5), [7, 10], align), {}) for align in (False, True)
    ],
    "aten._softmax_backward_data.default": lambda v: [
        ((v.tensor(3, 9), torch.softmax(v.tensor(3, 9), 1), 1, v.dtype), {})
    ],
    "aten._log_softmax_backward_data.default": lambda v: [
        ((v.tensor(3, 9), torch.log_softmax(v.tensor(3, 9), 1), 1, v.dtype), {})
    ],
    "aten.nll_loss_forward.default": lambda v: [
        ((v.tensor(4, 5), torch.tensor([0, 4, -100, 2]), None, reduction, -100), {})
        for reduction in range(3)
    ],
    "aten.native_layer_norm_backward.default": lambda v: [
        (
            (
                *(
                    v.tensor(3, 4, 6),
                    v.tensor(3, 4, 6),
                    [6],
                    v.tensor(3, 4, 1),
                    v.tensor(3, 4, 1, low=0.5),
                ),
                *(v.tensor(6), v.tensor(6), [True, True, True]),
            ),
            {},
        )
    ],
    "aten._native_batch_norm_legit_no_training.default": lambda v: [
        (
            (
                v.tensor(2, 3, 4, 4),
                *(v.tensor(3) for _ in range(3)),
                v.tensor(3, low=0.5),
                0.1,
                1e-5,
            ),
            {},
        )
    ],
    "aten.embedding_dense_backward.default": lambda v: [
        ((v.tensor(2, 3, 4), v.index(2, 3, below=7), 7, -1, False), {})
    ],
    "aten.convolution_backward.default": lambda v: [
        (
            (
                *(v.tensor(2, 6, 5, 5), v.tensor(2, 4, 7, 7), v.tensor(6, 4, 3, 3), [6]),
                *([1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, True]),
            ),
            {},
        )
    ],
    "aten._scaled_dot_product_flash_attention_for_cpu.default": lambda v: [
        ((*(v.tensor(2, 3, 5, 8) for _ in range(3)), 0.0, causal), {}) for causal in (False, True)
    ],
    "aten.var_mean.correction": lambda v: [
        ((v.tensor(3, 40), [1]), {"correction": 0, "keepdim": True}),
        ((v.tensor(3, 40), [0, 1]), {"correction": 1}),
    ],
}


# Families and modules whose operators refuse bad arguments in good order. Eager's kernels for
# windows, factorisations or backward formulas may read out of bounds when arguments that hang
# together don't fit: those need a maker.
_SAFE_FAMILIES = frozenset(
    (
        *("unary, dtype kept", "unary, to floating", "special functions", "unary, to bool"),
        *("binary arithmetic", "bits", "comparison and logic", "selection"),
        *("conversion and copy", "view", "assembly", "reduction", "scan and order"),
    )
)
_SAFE_MODULES = frozenset(
    f"primtorch.decompositions.{name}" for name in ("activation", "arithmetic", "reduction")
)


def _takes_any_arguments(operator: OpOverload) -> bool:
    if is_prim(operator):
        return family_of(operator).name in _SAFE_FAMILIES
    function = registered().get(operator)
    return function is not None and function.__module__ in _SAFE_MODULES


def samples_of(operator: OpOverload, dtype: torch.dtype) -> Iterator[Sample]:
    """Calls of `operator` on operands of `dtype` that eager accepts, with what eager returns."""
    values = Values(operator, dtype)
    maker = _MAKERS.get(str(operator)) or MAKERS.get(str(operator))
    if maker is None:
        calls: Any = _from_schema(operator, values) if _takes_any_arguments(operator) else ()
    else:
        try:
            calls = [("as made", args, kwargs) for args, kwargs in maker(values)]
        except (RuntimeError, ValueError, NotImplementedError):
            return  # eager can't even make operands of this dtype
    for peculiarity, args, kwargs in calls:
        try:
            expected = operator(*args, **kwargs)
        except Exception:  # noqa: BLE001, S112  what eager refuses is no sample
            continue
        yield Sample(args, kwargs, expected, peculiarity)
