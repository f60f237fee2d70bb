"""Shape rules of views: same storage, other geometry.

Offsets are computed as eager does. `view` fails where eager fails: when no strides exist for the
new shape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from primtorch.fake.geometry import wrap_dimension, wrap_dimensions
from primtorch.fake.meta import Shape, TensorMeta
from primtorch.fake.promotion import complex_of, real_of
from primtorch.fake.registry import register, shape_rule
from primtorch.symbolic import Expression, Sizes, contiguous_strides

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

_INFINITE = 2**63 - 1


@shape_rule("alias", "detach", "lift_fresh", "lift", "_conj", "_neg_view")
def alias(sizes: Sizes, x: TensorMeta) -> TensorMeta:
    """The tensor itself."""
    del sizes
    return x


def resolve_shape(
    sizes: Sizes, shape: Sequence[int | Expression], numel: int | Expression
) -> Shape:
    """The shape with -1 replaced; RuntimeError if the number of elements differs."""
    known: int | Expression = 1
    missing = -1
    for index, size in enumerate(shape):
        if isinstance(size, int) and size < 0:
            if size != -1:
                raise RuntimeError(f"invalid shape dimension {size}")
            if missing >= 0:
                raise RuntimeError("only one dimension can be inferred")
            missing = index
        else:
            known = known * size
    if missing < 0:
        if not (known is numel or sizes.same(known, numel)):
            raise RuntimeError(f"shape '{_show(shape)}' is invalid for input of size {numel}")
        return tuple(shape)
    if known == 0:
        raise RuntimeError(
            f"cannot reshape tensor of 0 elements into shape {_show(shape)} because the "
            f"unspecified dimension size -1 can be any value and is ambiguous"
        )
    rest = numel % known
    if rest != 0 and not sizes.same(rest, 0):
        raise RuntimeError(f"shape '{_show(shape)}' is invalid for input of size {numel}")
    result = list(shape)
    result[missing] = numel // known
    return tuple(result)


def _show(shape: Sequence[int | Expression]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def _fills(shape: Shape, count: int | Expression) -> bool:
    """Whether the last dimensions have just so many elements: then nothing is asked of those before."""
    filled: int | Expression = 1
    for size in reversed(shape):
        filled = filled * size
        if filled == count:
            return True
    return False


def view_strides(sizes: Sizes, old: Shape, strides: Shape, new: Shape) -> Shape | None:
    """Strides that show memory of `old` geometry as shape `new`; None if there are none."""
    if strides == contiguous_strides(old):
        return contiguous_strides(new)
    if old == new and 1 not in old:  # of size 1 the stride would be made anew
        return strides
    if 0 in old:
        return strides if old == new else contiguous_strides(new)
    result: list[int | Expression] = [0] * len(new)
    position = len(new) - 1
    chunk: int | Expression = 1  # elements of the block of old dimensions seen so far
    base: int | Expression = strides[-1] if strides else 1
    for dimension in range(len(old) - 1, -1, -1):
        chunk = chunk * old[dimension]
        if dimension > 0:
            before, step = old[dimension - 1], strides[dimension - 1]
            whole = chunk * base
            if step == whole or (sizes.alike(step, whole) and sizes.same(step, whole)):
                continue
            if before == 1:
                continue
            if not _fills(new[: position + 1], chunk) and (
                sizes.is_one(before) or sizes.same(step, whole)
            ):
                continue
        filled: int | Expression = 1
        while position >= 0 and (
            filled * new[position] == chunk
            or (filled != chunk and sizes.less(filled, chunk))
            or new[position] == 1
            or ((dimension == 0 or filled != chunk) and sizes.is_one(new[position]))
        ):
            result[position] = filled * base
            filled = filled * new[position]
            position -= 1
        if not (filled is chunk or sizes.same(filled, chunk)):
            return None
        if dimension > 0:
            chunk = 1
            base = strides[dimension - 1]
    return tuple(result) if position == -1 else None


@shape_rule("view")
def view(sizes: Sizes, x: TensorMeta, size: Sequence[int | Expression]) -> TensorMeta:
    """The same memory with another shape."""
    shape = resolve_shape(sizes, size, x.numel)
    stride = view_strides(sizes, x.shape, x.stride, shape)
    if stride is None:
        raise RuntimeError(
            "view size is not compatible with input tensor's size and stride (at least one "
            "dimension spans across two contiguous subspaces). Use .reshape(...) instead."
        )
    return x.strided(shape, stride)


@shape_rule("_unsafe_view")
def unsafe_view(sizes: Sizes, x: TensorMeta, size: Sequence[int | Expression]) -> TensorMeta:
    """`view` that autograd takes for a fresh tensor."""
    return view(sizes, x, size)


@shape_rule("_reshape_alias")
def reshape_alias(sizes: Sizes, x: TensorMeta, size: Any, stride: Any) -> TensorMeta:
    """A view with given geometry."""
    del sizes
    return x.strided(tuple(size), tuple(stride))


@shape_rule("reshape")
def reshape(sizes: Sizes, x: TensorMeta, shape: Sequence[int | Expression]) -> TensorMeta:
    """A view if there is one, else a contiguous copy."""
    new = resolve_shape(sizes, shape, x.numel)
    stride = view_strides(sizes, x.shape, x.stride, new)
    return x.contiguous(new) if stride is None else x.strided(new, stride)


@shape_rule("view.dtype")
def view_dtype(sizes: Sizes, x: TensorMeta, dtype: torch.dtype) -> TensorMeta:
    """The same bytes as another dtype; the last dimension follows the element size."""
    del sizes
    old, new = x.dtype.itemsize, dtype.itemsize
    if old == new:
        return TensorMeta(x.shape, x.stride, dtype, x.device, x.storage_offset)
    if not x.shape:
        raise RuntimeError(
            f"self.dim() cannot be 0 to view {x.dtype} as {dtype} (different element sizes)"
        )
    if x.stride[-1] != 1:
        raise RuntimeError(
            f"self.stride(-1) must be 1 to view {x.dtype} as {dtype} (different element sizes), "
            f"but got {x.stride[-1]}"
        )
    if new < old:
        ratio = old // new
        shape = (*x.shape[:-1], x.shape[-1] * ratio)
        stride = (*(step * ratio for step in x.stride[:-1]), 1)
        return TensorMeta(shape, stride, dtype, x.device, x.storage_offset * ratio)
    ratio = new // old
    if x.shape[-1] % ratio != 0:
        raise RuntimeError(
            f"self.size(-1) must be divisible by {ratio} to view {x.dtype} as {dtype} "
            f"(different element sizes), but got {x.shape[-1]}"
        )
    shape = (*x.shape[:-1], x.shape[-1] // ratio)
    stride = (*(step // ratio for step in x.stride[:-1]), 1)
    return TensorMeta(shape, stride, dtype, x.device, x.storage_offset // ratio)


@shape_rule("as_strided")
def as_strided(
    sizes: Sizes,
    x: TensorMeta,
    size: Sequence[int | Expression],
    stride: Sequence[int | Expression],
    storage_offset: int | Expression | None = None,
) -> TensorMeta:
    """Any geometry over the storage."""
    del sizes
    if len(size) != len(stride):
        raise RuntimeError("mismatch in length of strides and shape")
    return x.strided(tuple(size), tuple(stride), storage_offset)


@shape_rule("t")
def t(sizes: Sizes, x: TensorMeta) -> TensorMeta:
    """The transpose of at most two dimensions."""
    del sizes
    if len(x.shape) > 2:
        raise RuntimeError(
            f"t() expects a tensor with <= 2 dimensions, but self is {len(x.shape)}D"
        )
    return x.strided(x.shape[::-1], x.stride[::-1])


@shape_rule("transpose.int")
def transpose(sizes: Sizes, x: TensorMeta, dim0: int, dim1: int) -> TensorMeta:
    """Two dimensions exchanged."""
    del sizes
    first, second = wrap_dimension(dim0, x.ndim), wrap_dimension(dim1, x.ndim)
    if not x.shape:
        return x
    shape, stride = list(x.shape), list(x.stride)
    shape[first], shape[second] = shape[second], shape[first]
    stride[first], stride[second] = stride[second], stride[first]
    return x.strided(tuple(shape), tuple(stride))


@shape_rule("permute")
def permute(sizes: Sizes, x: TensorMeta, dims: Sequence[int]) -> TensorMeta:
    """Dimensions in another order."""
    del sizes
    if len(dims) != x.ndim:
        raise RuntimeError(
            "permute(sparse_coo): number of dimensions in the tensor input does not match the "
            f"length of the desired ordering of dimensions i.e. input.dim() = {x.ndim} is not equal to "
            f"len(dims) = {len(dims)}"
        )
    order = wrap_dimensions(dims, x.ndim) if dims else ()
    return x.strided(
        tuple([x.shape[dimension] for dimension in order]),
        tuple([x.stride[dimension] for dimension in order]),
    )


@shape_rule("expand")
def expand(
    sizes: Sizes, x: TensorMeta, size: Sequence[int | Expression], *, implicit: bool = False
) -> TensorMeta:
    """Dimensions of size one repeated without copying."""
    del implicit
    missing = len(size) - x.ndim
    if missing < 0:
        raise RuntimeError(
            f"expand(..., size={_show(size)}): the number of sizes provided ({len(size)}) must be "
            f"greater or equal to the number of dimensions in the tensor ({x.ndim})"
        )
    shape: list[int | Expression] = []
    stride: list[int | Expression] = []
    for index, target in enumerate(size):
        if index < missing:
            if isinstance(target, int) and target < 0:
                raise RuntimeError(
                    f"The expanded size of the tensor ({target}) isn't allowed in a leading, "
                    f"non-existing dimension {index}"
                )
            shape.append(target)
            stride.append(0)
            continue
        have, step = x.shape[index - missing], x.stride[index - missing]
        if target == -1 or target is have or target == have:
            shape.append(have)
            stride.append(step)
        elif not sizes.alike(have, target) and sizes.is_one(have):
            shape.append(target)
            stride.append(0)
        elif sizes.same(have, target):
            shape.append(target)
            stride.append(step)
        else:
            raise RuntimeError(
                f"The expanded size of the tensor ({target}) must match the existing size ({have}) "
                f"at non-singleton dimension {index}.  Target sizes: {_show(size)}.  "
                f"Tensor sizes: {_show(x.shape)}"
            )
    return x.strided(tuple(shape), tuple(stride))


@shape_rule("unsqueeze")
def unsqueeze(sizes: Sizes, x: TensorMeta, dim: int) -> TensorMeta:
    """A new dimension of size one."""
    del sizes
    position = wrap_dimension(dim, x.ndim + 1)
    step: int | Expression = 1
    if position < x.ndim:
        step = x.shape[position] * x.stride[position]
    return x.strided(
        (*x.shape[:position], 1, *x.shape[position:]),
        (*x.stride[:position], step, *x.stride[position:]),
    )


def _squeeze(sizes: Sizes, x: TensorMeta, dimensions: tuple[int, ...]) -> TensorMeta:
    kept = [
        index
        for index in range(x.ndim)
        if index not in dimensions or not sizes.is_one(x.shape[index])
    ]
    return x.strided(tuple(x.shape[i] for i in kept), tuple(x.stride[i] for i in kept))


@shape_rule("squeeze")
def squeeze(sizes: Sizes, x: TensorMeta) -> TensorMeta:
    """All dimensions of size one dropped."""
    return _squeeze(sizes, x, tuple(range(x.ndim)))


@shape_rule("squeeze.dim")
def squeeze_dim(sizes: Sizes, x: TensorMeta, dim: int) -> TensorMeta:
    """One dimension dropped if its size is one."""
    return _squeeze(sizes, x, (wrap_dimension(dim, x.ndim),))


@shape_rule("squeeze.dims")
def squeeze_dims(sizes: Sizes, x: TensorMeta, dim: Sequence[int]) -> TensorMeta:
    """The given dimensions dropped if their size is one."""
    return _squeeze(sizes, x, wrap_dimensions(dim, x.ndim) if dim else ())


def clamp_bounds(
    sizes: Sizes,
    start: int | Expression | None,
    end: int | Expression | None,
    size: int | Expression,
) -> tuple[int | Expression, int | Expression]:
    """Start and end of a slice within [0, size], as Python's slices are clamped."""

    def place(value: int | Expression) -> int | Expression:
        if isinstance(value, int) and isinstance(size, int):
            return min(max(value + size if value < 0 else value, 0), size)
        if isinstance(value, int) and value >= _INFINITE:
            return size
        if sizes.less(value, 0):
            return sizes.larger(
                0, value + size
            )  # a start of 0 belongs to both sides: to the shorter one
        return sizes.smaller(value, size)

    low = place(0 if start is None else start)
    high = place(_INFINITE if end is None else end)
    return low, high if low == 0 else sizes.larger(low, high)


@shape_rule("slice.Tensor")
def slice_(
    sizes: Sizes,
    x: TensorMeta,
    dim: int = 0,
    start: int | Expression | None = None,
    end: int | Expression | None = None,
    step: int | Expression = 1,
) -> TensorMeta:
    """x[start:end:step] along one dimension."""
    if not x.shape:
        raise RuntimeError("slice() cannot be applied to a 0-dim tensor.")
    position = wrap_dimension(dim, x.ndim)
    if isinstance(step, int) and step <= 0:
        raise RuntimeError("slice step must be positive")
    low, high = clamp_bounds(sizes, start, end, x.shape[position])
    length = high - low if step == 1 else (high - low + step - 1) // step
    shape, stride = list(x.shape), list(x.stride)
    offset = x.storage_offset + low * stride[position]
    shape[position] = length
    stride[position] = stride[position] * step
    return x.strided(tuple(shape), tuple(stride), offset)


@shape_rule("select.int")
def select(sizes: Sizes, x: TensorMeta, dim: int, index: int | Expression) -> TensorMeta:
    """x[index] along one dimension, which is dropped."""
    if not x.shape:
        raise IndexError("select() cannot be applied to a 0-dim tensor.")
    position = wrap_dimension(dim, x.ndim)
    size = x.shape[position]
    if isinstance(index, int) and isinstance(size, int):
        if not -size <= index < size:
            raise IndexError(
                f"select(): index {index} out of range for tensor of size {_show(x.shape)} at "
                f"dimension {dim}"
            )
        index = index + size if index < 0 else index
    elif sizes.less(index, 0):
        index = index + size
    elif not sizes.less(index, size):
        raise IndexError(f"select(): index {index} out of range at dimension {dim}")
    return x.strided(
        x.shape[:position] + x.shape[position + 1 :],
        x.stride[:position] + x.stride[position + 1 :],
        x.storage_offset + index * x.stride[position],
    )


@shape_rule("unfold")
def unfold(sizes: Sizes, x: TensorMeta, dimension: int, size: int, step: int) -> TensorMeta:
    """Overlapping windows of one dimension as a new last dimension."""
    position = wrap_dimension(dimension, x.ndim)
    have: int | Expression = x.shape[position] if x.shape else 1
    if sizes.less(have, size):
        raise RuntimeError(
            f"maximum size for tensor at dimension {position} is {have} but size is {size}"
        )
    if not x.shape:
        return x.strided((size,), (1,))
    shape, stride = list(x.shape), list(x.stride)
    shape[position] = (have - size) // step + 1
    last = stride[position]
    stride[position] = last * step
    return x.strided((*shape, size), (*stride, last))


@shape_rule("diagonal")
def diagonal(
    sizes: Sizes, x: TensorMeta, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> TensorMeta:
    """A diagonal of two dimensions as a new last dimension."""
    first, second = wrap_dimension(dim1, x.ndim), wrap_dimension(dim2, x.ndim)
    if first == second:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    if offset >= 0:
        length = sizes.larger(sizes.smaller(x.shape[first], x.shape[second] - offset), 0)
        start = x.stride[second] * offset
    else:
        length = sizes.larger(sizes.smaller(x.shape[first] + offset, x.shape[second]), 0)
        start = x.stride[first] * -offset
    rest = [i for i in range(x.ndim) if i not in (first, second)]
    moved = x.storage_offset if length == 0 else x.storage_offset + start
    return x.strided(
        (*(x.shape[i] for i in rest), length),
        (*(x.stride[i] for i in rest), x.stride[first] + x.stride[second]),
        moved,
    )


@shape_rule("split.Tensor")
def split(
    sizes: Sizes, x: TensorMeta, split_size: int | Expression, dim: int = 0
) -> tuple[TensorMeta, ...]:
    """Pieces of equal size, the last one perhaps shorter."""
    position = wrap_dimension(dim, x.ndim)
    size = x.shape[position]
    if split_size == 0:
        if size != 0:
            raise RuntimeError(
                f"split_size can only be 0 if dimension size is 0, but got dimension size of {size}"
            )
        return (x,)
    count = sizes.constant((size + split_size - 1) // split_size)
    count = max(count, 1)
    return tuple(
        slice_(sizes, x, position, split_size * i, split_size * (i + 1) if i + 1 < count else size)
        for i in range(count)
    )


@shape_rule("split_with_sizes")
def split_with_sizes(
    sizes: Sizes, x: TensorMeta, split_sizes: Sequence[int | Expression], dim: int = 0
) -> tuple[TensorMeta, ...]:
    """Pieces of the given sizes."""
    position = wrap_dimension(dim, x.ndim)
    total: int | Expression = 0
    pieces = []
    for length in split_sizes:
        shape = list(x.shape)
        shape[position] = length
        pieces.append(
            x.strided(tuple(shape), x.stride, x.storage_offset + total * x.stride[position])
        )
        total = total + length
    if not sizes.must_be_same(total, x.shape[position]):
        raise RuntimeError(
            f"split_with_sizes expects split_sizes to sum exactly to {x.shape[position]} (input "
            f"tensor's size at dimension {dim}), but got split_sizes={_show(split_sizes)}"
        )
    return tuple(pieces)


@shape_rule("unbind.int")
def unbind(sizes: Sizes, x: TensorMeta, dim: int = 0) -> tuple[TensorMeta, ...]:
    """One tensor per index of a dimension."""
    if not x.shape:
        raise RuntimeError("Dimension specified as 0 but tensor has no dimensions")
    position = wrap_dimension(dim, x.ndim)
    count = sizes.constant(x.shape[position])
    return tuple(select(sizes, x, position, index) for index in range(count))


@shape_rule("view_as_real")
def view_as_real(sizes: Sizes, x: TensorMeta) -> TensorMeta:
    """Complex numbers as pairs."""
    del sizes
    if not x.dtype.is_complex:
        raise RuntimeError("view_as_real is only supported for complex tensors")
    return TensorMeta(
        (*x.shape, 2),
        (*(step * 2 for step in x.stride), 1),
        real_of(x.dtype),
        x.device,
        x.storage_offset * 2,
    )


@shape_rule("view_as_complex")
def view_as_complex(sizes: Sizes, x: TensorMeta) -> TensorMeta:
    """Pairs as complex numbers."""
    if not x.shape or not sizes.same(x.shape[-1], 2):
        raise RuntimeError("Tensor must have a last dimension of size 2")
    if x.stride[-1] != 1:
        raise RuntimeError("Tensor must have a last dimension with stride 1")
    return TensorMeta(
        x.shape[:-1],
        tuple(step // 2 for step in x.stride[:-1]),
        complex_of(x.dtype),
        x.device,
        x.storage_offset // 2,
    )


def _copies(name: str, rule: Any) -> None:
    """`name_copy`: the same result in fresh, contiguous memory."""

    def copied(sizes: Sizes, *args: Any, **kwargs: Any) -> Any:
        result = rule(sizes, *args, **kwargs)
        if isinstance(result, tuple):
            return tuple(piece.contiguous() for piece in result)
        return result.contiguous()

    register(copied, name)


for _name, _rule in {
    "t_copy": t,
    "transpose_copy.int": transpose,
    "permute_copy": permute,
    "expand_copy": expand,
    "unsqueeze_copy": unsqueeze,
    "squeeze_copy": squeeze,
    "squeeze_copy.dim": squeeze_dim,
    "squeeze_copy.dims": squeeze_dims,
    "slice_copy.Tensor": slice_,
    "select_copy.int": select,
    "unfold_copy": unfold,
    "diagonal_copy": diagonal,
    "split_copy.Tensor": split,
    "split_with_sizes_copy": split_with_sizes,
    "unbind_copy.int": unbind,
    "view_copy": reshape,
    "alias_copy": alias,
    "detach_copy": alias,
}.items():
    _copies(_name, _rule)
