"""Named decomposition tables: immutable mappings from an operator overload to the function that replaces it.

"prims"      every decomposition: what remains is the closed list of `primtorch.prims`, and declared fallbacks.
"core_aten"  stops at the canonical ATen operators (`CORE_ATEN`): what remains is for backends at ATen's level.
"inductor"   what our loop compiler wants: everything down to the prims, except what a library does better or what is
             lowered better whole (`INDUCTOR_KEEPS`).

What "inductor" keeps whole, beside the prims, and why:
    addmm, baddbmm                      the product and its epilogue are one library call
    attention kernels, both directions  the library's kernel is many times faster than its parts
    embedding                           one gather with a bounds check on the row
    index_add, index_copy               one scatter that refuses negative indices, as eager does
    lerp.Scalar and like                nothing: elementwise operators are always taken apart, fusion rebuilds them
    sort, topk, kthvalue, scans, windows, convolutions, factorisations, transforms: prims already
    bags of embeddings, the CTC loss, histc, multinomial: the library loops over what varies, and checks values

A table is passed as an argument, never registered globally. Invariant: no table maps an operator that it keeps, so
applying it repeatedly ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from torch import Tag
from torch._ops import OpOverload

import primtorch.decompositions
from primtorch.errors import UnknownTableError
from primtorch.prims import PRIMS
from primtorch.registry import check_entry, overload, registered
from primtorch.verification import checked

__all__ = ["CORE_ATEN", "INDUCTOR_KEEPS", "DecompositionTable", "decomposition_table"]

assert primtorch.decompositions.__doc__, "importing the decompositions fills the registry"


class DecompositionTable(Mapping[OpOverload, Callable[..., Any]]):
    """An immutable mapping from overload to decomposition, with a name for reports and cache keys."""

    __slots__ = ("_functions", "get", "name")

    def __init__(self, name: str, functions: Mapping[OpOverload, Callable[..., Any]]) -> None:
        for operator, function in functions.items():
            check_entry(operator, function)
        self.name: Final = name
        self._functions: Final = MappingProxyType(dict(functions))
        # Asked once for each traced operator: no Python frame in between.
        self.get = self._functions.get  # type: ignore[method-assign]

    def __getitem__(self, operator: OpOverload) -> Callable[..., Any]:
        return self._functions[operator]

    def __iter__(self) -> Iterator[OpOverload]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)

    def __contains__(self, operator: object) -> bool:
        return operator in self._functions

    def __repr__(self) -> str:
        return f"<decomposition table {self.name!r}: {len(self)} operators>"

    def __hash__(self) -> int:
        return hash(frozenset(self._functions.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DecompositionTable) and self._functions == other._functions

    def verified(self) -> DecompositionTable:
        """A table whose functions compare what they return with the operators' shape rules.

        Such a function raises DecompositionError, which names the operator, what was expected and
        what was found. It is slower: for tests of decompositions.
        """
        functions = {o: checked(o, f) for o, f in self._functions.items()}
        return DecompositionTable(f"{self.name}, verified", functions)

    def without(self, *operators: OpOverload) -> DecompositionTable:
        """A table that keeps `operators` whole. Naming one that isn't in the table changes nothing.

        Raises:
            RegistrationError: for something that is no overload.
        """
        for operator in operators:
            check_entry(operator, check_entry)
        left_out = frozenset(operators)
        kept = {o: f for o, f in self._functions.items() if o not in left_out}
        return DecompositionTable(f"{self.name}, changed", kept)

    def extended(self, functions: Mapping[OpOverload, Callable[..., Any]]) -> DecompositionTable:
        """A table in which `functions` are added, or stand in place of its own.

        Raises:
            RegistrationError: for a key that is no overload or a value that can't be called.
        """
        return DecompositionTable(f"{self.name}, changed", {**self._functions, **functions})


def _overloads(*names: str) -> frozenset[OpOverload]:
    return frozenset(o for o in (overload(f"aten.{n}") for n in names) if o is not None)


# One call of the library each: loops over time, bags, data that is checked by value.
_LEFT_TO_THE_LIBRARY = _overloads(
    "native_batch_norm",
    "_ctc_loss",
    "_ctc_loss.Tensor",
    "_ctc_loss_backward",
    "_ctc_loss_backward.Tensor",
    "_embedding_bag",
    "_embedding_bag_forward_only",
    "_embedding_bag_backward",
    "_embedding_bag_dense_backward",
    "_embedding_bag_per_sample_weights_backward",
    "histc",
    "multinomial",
)

ATTENTION_KERNELS: frozenset[OpOverload] = _overloads(
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_backward",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_cudnn_attention_backward",
    "_scaled_dot_product_fused_attention_overrideable",
    "_scaled_dot_product_fused_attention_overrideable_backward",
)
"""The library's kernels for `scaled_dot_product_attention`, forward and backward."""

INDUCTOR_KEEPS: frozenset[OpOverload] = (
    PRIMS
    | _LEFT_TO_THE_LIBRARY
    | _overloads(
        "addmm",
        "baddbmm",
        "embedding",
        "index_add",
        "index_copy",
    )
    | ATTENTION_KERNELS
)

# Canonical beside torch's own `core` tag: operators that backends at ATen's level implement as one kernel.
_CANONICAL = _overloads(
    "baddbmm",
    "native_layer_norm_backward",
    "native_group_norm_backward",
    "native_batch_norm_backward",
    "_softmax_backward_data",
    "_log_softmax_backward_data",
    "gelu_backward",
    "silu",
    "silu_backward",
    "tanh_backward",
    "sigmoid_backward",
    "threshold_backward",
    "leaky_relu_backward",
    "elu_backward",
    "hardswish",
    "hardswish_backward",
    "hardsigmoid",
    "hardsigmoid_backward",
    "hardtanh_backward",
    "mish",
    "mish_backward",
    "softplus",
    "softplus_backward",
    "nll_loss_forward",
    "nll_loss_backward",
    "nll_loss2d_forward",
    "nll_loss2d_backward",
    "grid_sampler_2d_backward",
    "upsample_nearest2d",
    "upsample_nearest2d_backward",
    "upsample_bilinear2d",
    "upsample_bilinear2d_backward",
    "logsumexp",
    "linalg_vector_norm",
    "tril",
    "triu",
    "roll",
    "addcmul",
    "addcdiv",
    "lerp.Scalar",
    "lerp.Tensor",
    "std.correction",
    "masked_fill.Scalar",
    "masked_fill.Tensor",
    "native_dropout_backward",
    "im2col",
    "col2im",
)


def _core_aten() -> frozenset[OpOverload]:
    return (
        PRIMS
        | _CANONICAL
        | (INDUCTOR_KEEPS - _LEFT_TO_THE_LIBRARY)
        | frozenset(
            o
            for o in registered()
            if Tag.core in o.tags and Tag.nondeterministic_seeded not in o.tags
        )
    )


CORE_ATEN: frozenset[OpOverload] = _core_aten()

_KEPT: Mapping[str, frozenset[OpOverload]] = {
    "prims": PRIMS,
    "core_aten": CORE_ATEN,
    "inductor": INDUCTOR_KEEPS,
}

_TABLES: Mapping[str, DecompositionTable] = {
    name: DecompositionTable(name, {o: f for o, f in registered().items() if o not in kept})
    for name, kept in _KEPT.items()
}


def decomposition_table(name: str) -> DecompositionTable:
    """The table called `name`: "prims", "core_aten" or "inductor".

    Raises:
        UnknownTableError: for another name.
    """
    try:
        return _TABLES[name]
    except KeyError:
        raise UnknownTableError(
            f"there is no decomposition table {name!r}; the tables are {', '.join(map(repr, _TABLES))}"
        ) from None
