"""Memory-order questions about sizes and strides: contiguous, channels-last, dense.

The functions take whoever answers questions about sizes (`Sizes`): a `SizeEnvironment`, or
`STATIC` where all sizes are ints. They follow the rules of torch's tensors: a dimension of size
one has no order, an empty tensor is contiguous.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from primtorch.errors import PrimtorchError

if TYPE_CHECKING:
    from collections.abc import Callable

    from primtorch.symbolic.expression import Expression


class Sizes(Protocol):
    """Answers questions about sizes; shape rules take one as their first argument."""

    def same(self, left: int | Expression, right: int | Expression) -> bool:
        """Whether left == right."""

    def must_be_same(self, left: int | Expression, right: int | Expression) -> bool:
        """As `same`, for what is an error otherwise: sizes of run time are taken to be."""

    def alike(self, left: int | Expression, right: int | Expression) -> bool:
        """Whether left == right in the call that is traced; a hint at what to ask first."""

    def less(self, left: int | Expression, right: int | Expression) -> bool:
        """Whether left < right."""

    def is_one(self, value: int | Expression) -> bool:
        """Whether a size is 1."""

    def smaller(self, left: int | Expression, right: int | Expression) -> int | Expression:
        """The smaller of two sizes: one of them where that can be decided."""

    def larger(self, left: int | Expression, right: int | Expression) -> int | Expression:
        """The larger of two sizes: one of them where that can be decided."""

    def constant(self, value: int | Expression) -> int:
        """The value as a number."""

    def line(self) -> tuple[str, int, str, str] | None:
        """The user's line that is being captured, for errors."""

    def unbacked(self, *, size: bool = True) -> Expression | None:
        """A new symbol for a value known only at run time; None if such values are refused."""


class StaticSizes:
    """Answers for ints; an Expression here is a fault of the caller, who has its environment."""

    __slots__ = ()

    def same(self, left: int | Expression, right: int | Expression) -> bool:
        """Whether left == right."""
        return left == right

    def must_be_same(self, left: int | Expression, right: int | Expression) -> bool:
        """Whether left == right."""
        return self.same(left, right)

    def alike(self, left: int | Expression, right: int | Expression) -> bool:
        """Whether left == right."""
        return left == right

    def less(self, left: int | Expression, right: int | Expression) -> bool:
        """Whether left < right."""
        if isinstance(left, int) and isinstance(right, int):
            return left < right
        raise PrimtorchError(
            f"comparing {left} with {right} needs the environment of their symbols; pass it"
        )

    def is_one(self, value: int | Expression) -> bool:
        """Whether value == 1."""
        return value == 1

    def smaller(self, left: int | Expression, right: int | Expression) -> int | Expression:
        """The smaller int."""
        return left if self.less(left, right) else right

    def larger(self, left: int | Expression, right: int | Expression) -> int | Expression:
        """The larger int."""
        return right if self.less(left, right) else left

    def constant(self, value: int | Expression) -> int:
        """The int itself."""
        if isinstance(value, int):
            return value
        raise PrimtorchError(f"the value of {value} needs the environment of its symbols; pass it")

    def line(self) -> tuple[str, int, str, str] | None:
        """Nobody keeps track of lines here."""
        return None

    def unbacked(self, *, size: bool = True) -> Expression | None:
        """Refuse: static sizes have no symbols."""
        del size
        return None


STATIC = StaticSizes()


def contiguous_strides(shape: tuple[int | Expression, ...]) -> tuple[int | Expression, ...]:
    """Row-major strides; an empty dimension counts as one, as in torch."""
    strides: list[int | Expression] = []
    step: int | Expression = 1
    for size in reversed(shape):
        strides.append(step)
        if size != 0:
            step = step * size
    strides.reverse()
    return tuple(strides)


def channels_last_strides(shape: tuple[int | Expression, ...]) -> tuple[int | Expression, ...]:
    """Strides of NHWC (4 dimensions) or NDHWC (5) memory for a shape in NCHW order."""
    order = (1, 3, 2, 0) if len(shape) == 4 else (1, 4, 3, 2, 0)
    strides: list[int | Expression] = [0] * len(shape)
    step: int | Expression = 1
    for dimension in order:
        strides[dimension] = step
        size = shape[dimension]
        if size != 0:
            step = step * size
    return tuple(strides)


def is_contiguous(
    sizes: Sizes, shape: tuple[int | Expression, ...], strides: tuple[int | Expression, ...]
) -> bool:
    """Whether the strides are row-major."""
    if 0 in shape:
        return True
    expected: int | Expression = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size == 1:
            continue
        if stride != expected and not _either(sizes, stride, expected, size):
            return False
        expected = expected * size
    return True


def _is_ordered(
    sizes: Sizes,
    shape: tuple[int | Expression, ...],
    strides: tuple[int | Expression, ...],
    order: tuple[int, ...],
) -> bool:
    expected: int | Expression = 1
    for dimension in order:
        size = shape[dimension]
        if size == 1:
            continue
        if strides[dimension] != expected and not _either(
            sizes, strides[dimension], expected, size
        ):
            return False
        expected = expected * size
    return True


def _either(
    sizes: Sizes, stride: int | Expression, expected: int | Expression, size: int | Expression
) -> bool:
    """Whether a stride is as expected, or its dimension has size 1: what the traced call shows is asked first."""
    if sizes.alike(stride, expected):
        return sizes.same(stride, expected)
    return sizes.is_one(size) or sizes.same(stride, expected)


def is_channels_last_contiguous(
    sizes: Sizes, shape: tuple[int | Expression, ...], strides: tuple[int | Expression, ...]
) -> bool:
    """Whether the tensor is dense in NHWC or NDHWC order."""
    if len(shape) == 4:
        return _is_ordered(sizes, shape, strides, (1, 3, 2, 0))
    if len(shape) == 5:
        return _is_ordered(sizes, shape, strides, (1, 4, 3, 2, 0))
    return False


def is_channels_last_strides(
    sizes: Sizes, shape: tuple[int | Expression, ...], strides: tuple[int | Expression, ...]
) -> bool:
    """Whether the strides are ordered as channels-last, dense or not; ambiguous ones are not."""
    order: tuple[int, ...]
    if len(shape) == 4:
        order = (1, 3, 2, 0)
    elif len(shape) == 5:
        order = (1, 4, 3, 2, 0)
    else:
        return False
    if strides[1] == 0:
        return False
    least: int | Expression = 0
    for dimension in order:
        size, stride = shape[dimension], strides[dimension]
        if size == 0 or sizes.less(stride, least):
            return False
        # N111 and NC11 tensors with contiguous strides stay row-major.
        if dimension == 0 and sizes.same(least, strides[1]):
            return False
        least = stride
        if not sizes.less(size, 2):
            least = least * size
    return True


def is_non_overlapping_and_dense(
    sizes: Sizes, shape: tuple[int | Expression, ...], strides: tuple[int | Expression, ...]
) -> bool:
    """Whether the elements fill a block of memory, each once, in some order of the dimensions."""
    pending = [(size, stride) for size, stride in zip(shape, strides, strict=True) if size != 1]
    if any(size == 0 for size, _ in pending):
        return True
    expected: int | Expression = 1
    while pending:
        for index, (size, stride) in enumerate(pending):
            if stride == expected or sizes.same(stride, expected):
                expected = expected * size
                del pending[index]
                break
        else:
            if any(isinstance(size, int) for size, _ in pending):
                return False
            return all(sizes.is_one(size) for size, _ in reversed(pending))
    return True


LAYOUT_QUESTIONS: dict[
    str,
    Callable[
        [Sizes, tuple[int | Expression, ...], tuple[int | Expression, ...]],
        bool,
    ],
] = {
    "contiguous": is_contiguous,
    "channels_last_contiguous_2d": lambda sizes, shape, strides: (
        len(shape) == 4 and is_channels_last_contiguous(sizes, shape, strides)
    ),
    "channels_last_contiguous_3d": lambda sizes, shape, strides: (
        len(shape) == 5 and is_channels_last_contiguous(sizes, shape, strides)
    ),
    "channels_last_strides_2d": lambda sizes, shape, strides: (
        len(shape) == 4 and is_channels_last_strides(sizes, shape, strides)
    ),
    "channels_last_strides_3d": lambda sizes, shape, strides: (
        len(shape) == 5 and is_channels_last_strides(sizes, shape, strides)
    ),
    "non_overlapping_and_dense": is_non_overlapping_and_dense,
}
