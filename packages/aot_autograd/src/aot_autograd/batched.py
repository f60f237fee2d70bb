"""The backward of several gradients at once: what transforms hand to the node of a compiled call.

`is_grads_batched=True`, `jacobian(..., vectorize=True)` and `torch.func.vmap` over a backward give a node tensors that
stand for many, one for each place along a dimension that they don't show. They have no memory that a compiled program
could read. Comes in: the gradients of a node's results, some of that kind. Goes out: the gradients of its inputs, which
stand for as many. They are computed where no transform runs, along one dimension: in one pass where that can be
(`mapped.py`), else by the compiled backward for each of the many, which is recorded for `create_graph=True` like any
other operator. Invariant: what was saved is asked for once, and let go of at the end, if the graph isn't retained.
"""

from __future__ import annotations

import math
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import torch

from aot_autograd._torch import (
    Dimension,
    add_dimension,
    belongs_to_transform,
    dimension_in_front,
    dimension_of_autograd,
    functional_in,
    has_memory,
    inside_of,
    inside_of_functional,
    is_dual,
    is_functional,
    level_of,
    levels_of_gradients,
    outside_of_transforms,
    records_operators,
    runs_in_this_backward,
    stands_for_many,
    stands_for_many_to_autograd,
)
from aot_autograd.errors import UnsupportedTransform
from aot_autograd.tangents import tangent_outputs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aot_autograd.mapped import Mapped
    from aot_autograd.metadata import FunctionMetadata

__all__ = ["AskedOnce", "Many", "is_wanted", "of_one_or_many"]


def of_one_or_many(backward: Callable[..., Any], many: Many) -> Callable[..., Any]:
    """A backward, as a function that `many` answers for gradients which stand for many.

    Behind the gradients it may be given the call whose nodes ask for them (`nodes.py`).
    """
    places, source = many.places, many.source

    def run(context: Any, ends: int, gradients: Sequence[Any]) -> Any:
        if records_operators():
            raise UnsupportedTransform(
                f"the backward of {source} while make_fx records",
                "a compiled backward calls no operators: its results would be constants of the graph",
                "let make_fx contain the call too, where it runs uncompiled",
            )
        for place in places:
            gradient = gradients[place]
            if gradient is None:
                continue
            if is_functional(gradient) or (not has_memory(gradient) and _is_of_transform(gradient)):
                return many(context, ends, gradients)
            if is_dual(gradient):
                raise UnsupportedTransform(
                    f"the backward of {source} for a gradient that carries a derivative forward",
                    "a compiled backward would lose what a dual tensor carries",
                    "call the function inside of the dual level too, where it runs uncompiled",
                )
        return backward(context, ends, gradients)

    return run


class Many:
    """The backward of gradients which stand for many.

    Args:
        backward: (context, results at which it ends, gradients of the results) -> gradients of what the node was called
            with, and what arrives at these results.
        make_retaining: Makes the same backward that lets go of nothing.
        mapped: Computes the same of many in one pass, where it can.
        keeps: Tells whether what is saved stays for another backward.
        metadata: The contract.
    """

    __slots__ = (
        "_backward",
        "_keeps",
        "_make_retaining",
        "_mapped",
        "_metadata",
        "_retaining",
        "places",
        "source",
    )

    def __init__(
        self,
        backward: Callable[..., Any],
        make_retaining: Callable[[], Callable[..., Any]],
        mapped: Mapped,
        keeps: Callable[[], bool],
        metadata: FunctionMetadata,
    ) -> None:
        self._backward, self._make_retaining = backward, make_retaining
        self._retaining: Callable[..., Any] | None = None
        self._mapped, self._keeps, self._metadata = mapped, keeps, metadata
        self.places, self.source = tangent_outputs(metadata), metadata.source

    def __call__(self, context: Any, ends: int, gradients: Sequence[Any]) -> tuple[Any, ...]:
        """What `backward` gives, of which each stands for as many."""
        source = self._metadata.source
        values = len(self._metadata.value_requires_grad)
        call = gradients[values:]
        wanted = self._wanted(context, *call)
        if ends:
            wanted += [True] * len(self._metadata.interior)
        gradients = gradients[:values]
        apart = [None if one is None else _taken_apart(one, source) for one in gradients]
        lengths: dict[Dimension, int] = {}
        noting: set[int] = set()
        for one in apart:
            if one is not None:
                lengths.update(zip(one[1], one[0].shape, strict=False))
                noting.update(one[2])
        dimensions = sorted(lengths)
        shape = [lengths[dimension] for dimension in dimensions]
        count = math.prod(shape)
        many = [one is not None and bool(one[1]) for one in apart]
        with outside_of_transforms():
            flat = [None if one is None else _flat(*one[:2], dimensions, shape) for one in apart]
            del apart
            found = self._along_one(AskedOnce(context), ends, flat, many, count, wanted, call)
            if dimensions:
                found = [None if one is None else one.unflatten(0, shape) for one in found]
        layers: list[tuple[Dimension, Callable[[Any, Dimension], torch.Tensor]]]
        layers = [(dimension, add_dimension) for dimension in dimensions]
        layers += [((True, level), _noting) for level in noting]
        for layer, put_into in sorted(layers, key=itemgetter(0)):
            found = [None if one is None else put_into(one, layer) for one in found]
        return (None, None, *found)

    def _along_one(
        self,
        context: AskedOnce,
        ends: int,
        gradients: list[Any],
        many: list[bool],
        count: int,
        wanted: list[bool],
        call: Sequence[Any],
    ) -> Sequence[Any]:
        """The same along one dimension of `count` places, as the gradients of the results that are many."""
        if not any(many):
            return self._backward(context, ends, [*gradients, *call])[2:]
        if count >= _FEW:
            found = self._mapped(context, ends, gradients, many, wanted)
            if found is not None:
                if not self._keeps():
                    context.let_go()
                return found
        # Of none at all a gradient has a shape too, and perhaps a history: that of zeros, cut to nothing.
        rows = max(count, 1)
        columns = [
            [one] * rows if not is_many else _rows(one)
            for one, is_many in zip(gradients, many, strict=True)
        ]
        del gradients
        results = []
        if self._retaining is None:
            self._retaining = self._make_retaining()
        for number, row in enumerate(zip(*columns, strict=True)):
            run = self._backward if number == rows - 1 else self._retaining
            found = run(context, ends, [*row, *call])[2:]
            results.append([one if use else None for one, use in zip(found, wanted, strict=True)])
        return [_together(parts, count) for parts in zip(*results, strict=True)]

    def _wanted(self, context: Any, call: Any = None) -> list[bool]:
        """Which inputs' gradients the backward that runs asks for."""
        if call is not None:
            wanted: list[bool] = call.wanted()
            return wanted
        # Edges of what is no tensor come first, where torch counts them.
        edges = context.next_functions[-len(self._metadata.differentiable) :]
        return [is_wanted(node) for node, _ in edges]


_FEW = 4
"""Fewer than that are worth no other graph than the compiled one."""


_MOST_LEVELS = 64
"""The levels that torch has for transforms of the older kind."""


def is_wanted(node: Any) -> bool:
    """Whether the backward that runs in this thread goes on to a node."""
    if node is None:
        return False
    try:
        return bool(runs_in_this_backward(node))
    except RuntimeError:  # a leaf that the caller asks for
        return True


def _is_of_transform(tensor: torch.Tensor) -> bool:
    return belongs_to_transform(tensor) or stands_for_many_to_autograd(tensor)


def _taken_apart(
    gradient: torch.Tensor, source: str
) -> tuple[torch.Tensor, list[Dimension], list[int]]:
    """A gradient as a tensor of no transform, and the dimensions that it stands for: these come first in its shape.

    Behind these the levels of `functionalize` that note what is written into it.

    Raises:
        UnsupportedTransform: what differentiates it would not see what the compiled backward does.
    """
    found: list[Dimension] = []
    noting: list[int] = []
    while belongs_to_transform(gradient):
        level = level_of(gradient)
        if stands_for_many(gradient):
            gradient = dimension_in_front(gradient)
            found.append((True, level))
        elif is_functional(gradient):
            gradient = inside_of_functional(gradient)
            noting.append(level)
        elif not torch.is_grad_enabled() and level in levels_of_gradients():
            gradient = inside_of(gradient)  # nothing is recorded: to that transform it is constant
        else:
            raise UnsupportedTransform(
                f"the backward of {source} for a gradient that a transform of torch.func follows",
                "a compiled backward can be mapped (`is_grads_batched=True`, `torch.func.vmap`), but not be "
                "differentiated by a transform that encloses it alone, without the call",
                "put the compiled call inside of the transform too, or call the function uncompiled there",
            )
    found.reverse()
    older = 0
    # In an engine's own thread nothing tells how many transforms of the older kind there are.
    for level in range(1, _MOST_LEVELS + 1):
        if not stands_for_many_to_autograd(gradient):
            break
        inside = dimension_of_autograd(gradient, level, older)
        if inside is not None:
            gradient = inside
            found.insert(older, (False, level))
            older += 1
    return gradient, found, noting


def _noting(tensor: torch.Tensor, layer: Dimension) -> torch.Tensor:
    return functional_in(tensor, layer[1])


def _flat(
    tensor: torch.Tensor, own: list[Dimension], dimensions: list[Dimension], shape: list[int]
) -> torch.Tensor:
    """A gradient along one dimension in the place of `dimensions`; without any of them it is the same for all."""
    if not own:
        return tensor
    for place, dimension in enumerate(dimensions):
        if dimension not in own:
            tensor = tensor.unsqueeze(place)
    logical = tensor.shape[len(shape) :]
    return tensor.expand(*shape, *logical).flatten(0, len(shape) - 1)


def _rows(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    return tensor.unbind() if len(tensor) else [tensor.sum(0, dtype=tensor.dtype)]


def _together(parts: Sequence[Any], count: int) -> torch.Tensor | None:
    """What the backwards of the many gave for one input, along a dimension; None if it has no gradient."""
    return None if parts[0] is None else torch.stack(parts)[:count]


class AskedOnce:
    """A context whose saved tensors are asked for once, however often they are read: hooks see no more."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._saved: Any = None

    @property
    def saved_tensors(self) -> Any:
        """As autograd gives them."""
        if self._saved is None:
            self._saved = self._context.saved_tensors
        return self._saved

    @property
    def _raw_saved_tensors(self) -> Any:
        return self._context._raw_saved_tensors

    @property
    def node(self) -> Any:
        """The autograd node that the context is."""
        return self._context

    @property
    def kept(self) -> Any:
        """What the call kept beside them."""
        return self._context.kept

    @kept.setter
    def kept(self, value: Any) -> None:
        self._context.kept = value

    def let_go(self) -> None:
        """Let go of all that a second backward would need, as the compiled backward does."""
        self.maybe_clear_saved_tensors()
        if self.kept is not None:
            _, _, numbers, sizes, *_ = self.kept
            self.kept = (None, None, numbers, sizes, None) if numbers else None

    def maybe_clear_saved_tensors(self) -> None:
        """Let go of the saved tensors."""
        self._saved = None
        self._context.maybe_clear_saved_tensors()
