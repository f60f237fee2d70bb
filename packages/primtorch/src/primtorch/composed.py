"""Functions that C++ composes of others by sizes as numbers: the same composition in Python, where sizes vary.

`composed(function, args)` gives whoever runs a captured graph on fakes what to run in place of a function, or None
where nothing varies. C++ would ask a fake for all its sizes as numbers, which a symbolic one refuses. Invariant:
values, shapes, dtypes and kinds of exceptions are those of eager.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import torch

from primtorch.fake.context import FactoryMode
from primtorch.fake.tensor import FakeTensor
from primtorch.quantiles import nanquantile, quantile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from primtorch.fake.tensor import FakeContext

__all__ = [
    "affine_grid",
    "chain_matmul",
    "composed",
    "corrcoef",
    "cov",
    "ctc_loss",
    "gradient",
    "kron",
    "multi_dot",
    "one_hot",
    "stft",
    "take_along_dim",
    "unsafe_chunk",
    "vander",
]


def composed(function: Callable[..., Any], args: tuple[Any, ...]) -> Callable[..., Any] | None:
    """Our own composition of `function` if a size among the arguments varies or torch's own checks less; else None."""
    try:
        own = _COMPOSITIONS.get(function)
    except TypeError:  # it has no hash
        return None
    if own is None or not (own in _ALWAYS or any(map(_varies, args))):
        return None
    context = _context_of(args)
    return own if context is None else functools.partial(_run, FactoryMode(context), own)


def _run(mode: FactoryMode, own: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    with mode:
        return own(*args, **kwargs)


def _context_of(value: object) -> FakeContext | None:
    """The context of the first fake."""
    if isinstance(value, FakeTensor):
        return value.context
    if isinstance(value, list | tuple):
        return next(filter(None, map(_context_of, value)), None)
    return None


def _varies(value: object) -> bool:
    if isinstance(value, FakeTensor):
        return not value.meta.is_static
    if isinstance(value, list | tuple):
        return any(map(_varies, value))
    return isinstance(value, torch.SymInt)


def kron(input: Tensor, other: Tensor) -> Tensor:
    """`torch.kron`: each element of `input` times all of `other`, block by block."""
    dimensions = max(input.dim(), other.dim())
    first = [1] * (dimensions - input.dim()) + list(input.shape)
    second = [1] * (dimensions - other.dim()) + list(other.shape)
    outer = input.reshape([size for one in first for size in (one, 1)])
    inner = other.reshape([size for one in second for size in (1, one)])
    return (outer * inner).reshape([a * b for a, b in zip(first, second, strict=True)])


def multi_dot(tensors: Sequence[Tensor], *, out: Tensor | None = None) -> Tensor:
    """`torch.linalg.multi_dot`: a product of matrices, the first and last of which may be vectors.

    The order of the products is the one that multiplies least, judged by the sizes that were traced.
    """
    count = len(tensors)
    if count < 2:
        raise RuntimeError("multi_dot(): expected at least 2 tensors but got " + str(count))
    matrices = list(tensors)
    for position, tensor in enumerate(matrices):
        ends = position in (0, count - 1)
        if tensor.dim() != 2 and not (ends and tensor.dim() == 1):
            wanted = "1D or 2D" if ends else "2D"
            raise RuntimeError(
                f"multi_dot(): tensor {position} must be {wanted} but got {tensor.dim()}D"
            )
    row, column = matrices[0].dim() == 1, matrices[-1].dim() == 1
    if row:
        matrices[0] = matrices[0].unsqueeze(0)
    if column:
        matrices[-1] = matrices[-1].unsqueeze(-1)
    result = _cheapest(matrices)
    if row:
        result = result.squeeze(0)
    if column:
        result = result.squeeze(-1)
    return result if out is None else out.copy_(result)


def _cheapest(matrices: list[Tensor]) -> Tensor:
    """The product in the order that multiplies least."""
    from primtorch.symbolic import hint_of

    sizes = [hint_of(matrices[0].shape[0]), *[hint_of(matrix.shape[1]) for matrix in matrices]]
    count = len(matrices)
    costs = {(i, i): 0 for i in range(count)}
    cuts: dict[tuple[int, int], int] = {}
    for length in range(1, count):
        for start in range(count - length):
            end = start + length
            choices = {
                cut: costs[start, cut]
                + costs[cut + 1, end]
                + sizes[start] * sizes[cut + 1] * sizes[end + 1]
                for cut in range(start, end)
            }
            cuts[start, end] = min(choices, key=choices.__getitem__)
            costs[start, end] = choices[cuts[start, end]]

    def product(start: int, end: int) -> Tensor:
        if start == end:
            return matrices[start]
        cut = cuts[start, end]
        return torch.mm(product(start, cut), product(cut + 1, end))

    return product(0, count - 1)


def chain_matmul(*matrices: Tensor, out: Tensor | None = None) -> Tensor:
    """`torch.chain_matmul`."""
    if len(matrices) == 1:
        return matrices[0] if out is None else out.copy_(matrices[0])
    return multi_dot(matrices, out=out)


def cov(
    input: Tensor,
    *,
    correction: int = 1,
    fweights: Tensor | None = None,
    aweights: Tensor | None = None,
) -> Tensor:
    """`torch.cov`: rows are variables, columns observations."""
    if input.dim() > 2:
        raise RuntimeError(
            f"cov(): expected input to have two or fewer dimensions but got an input with {input.dim()} dimensions"
        )
    if input.dtype == torch.bool:
        raise RuntimeError("cov(): bool dtype is not supported for input")
    rows = input.reshape(1, -1) if input.dim() < 2 else input
    weights = fweights
    if aweights is not None:
        weights = aweights if fweights is None else fweights * aweights
    if weights is None:
        total: Any = rows.shape[1]
        means = rows.sum(1) / total
        divisor: Any = total - correction
        shifted = rows - means.unsqueeze(1)
        scaled = shifted
    else:
        sum_of_weights = weights.sum()
        means = (rows * weights).sum(1) / sum_of_weights
        shifted = rows - means.unsqueeze(1)
        scaled = shifted * weights
        if correction == 0 or aweights is None:
            divisor = sum_of_weights - correction
        else:
            divisor = sum_of_weights - correction * (weights * aweights).sum() / sum_of_weights
    if isinstance(divisor, torch.Tensor):
        divisor = divisor.clamp(min=0)
    found = torch.mm(shifted, scaled.t().conj())
    result: Tensor = found / divisor
    return result.squeeze() if rows.shape[0] == 1 else result


def corrcoef(input: Tensor) -> Tensor:
    """`torch.corrcoef`: the covariance divided by both standard deviations."""
    if input.dim() > 2:
        raise RuntimeError(
            f"corrcoef(): expected input to have two or fewer dimensions but got an input with {input.dim()} dimensions"
        )
    found = cov(input)
    if found.dim() == 0:
        return found / found
    deviations = torch.sqrt(found.diag())
    if torch.is_complex(deviations):
        deviations = torch.real(deviations)
    found = found / deviations.view(-1, 1) / deviations.view(1, -1)
    if torch.is_complex(found):
        return torch.complex(torch.real(found).clip(-1, 1), torch.imag(found).clip(-1, 1))
    return found.clip(-1, 1)


def vander(x: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:
    """`torch.vander`: the powers of a vector's elements, highest first."""
    if x.dim() != 1:
        raise RuntimeError("x must be a one-dimensional tensor.")
    columns: Any = x.shape[0] if N is None else N
    if columns < 0:
        raise RuntimeError("N must be non-negative.")
    powers = torch.arange(columns, device=x.device)
    if not increasing:
        powers = columns - 1 - powers
    # Products of the same number one after another, as eager's: 0 to the power of 0 is 1.
    return torch.pow(x.unsqueeze(1), powers)


def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """`torch.take_along_dim`: gather, where all dimensions but one broadcast."""
    if indices.dtype != torch.int64:
        raise RuntimeError(
            f"torch.take_along_dim(): dtype of indices should be Long but got {indices.dtype}"
        )
    if dim is None:
        return input.reshape(-1).gather(0, indices.reshape(-1))
    if input.dim() != indices.dim():
        raise RuntimeError(
            "torch.take_along_dim(): input and indices should have the same number of dimensions, "
            f"but got {input.dim()} dimensions for input, and {indices.dim()} dimensions for indices"
        )
    place = dim % input.dim()

    def around(tensor: Tensor) -> list[Any]:
        return [1 if one == place else size for one, size in enumerate(tensor.shape)]

    common = list(torch.broadcast_shapes(around(input), around(indices)))
    own, theirs = list(common), list(common)
    own[place], theirs[place] = input.shape[place], indices.shape[place]
    return input.expand(own).gather(place, indices.expand(theirs))


def gradient(
    input: Tensor, *, spacing: Any = 1, dim: Any = None, edge_order: int = 1
) -> tuple[Tensor, ...]:
    """`torch.gradient` with numbers as spacing: central differences inside, one-sided ones at both ends."""
    dimensions = range(input.dim()) if dim is None else [dim] if isinstance(dim, int) else dim
    steps = spacing if isinstance(spacing, list | tuple) else [spacing] * len(dimensions)
    if any(isinstance(step, torch.Tensor) for step in steps):
        raise NotImplementedError("torch.gradient with coordinates, of a tensor whose sizes vary")
    if edge_order not in (1, 2):
        raise RuntimeError("torch.gradient only supports edge_order=1 and edge_order=2.")
    found = []
    for place, step in zip(dimensions, steps, strict=True):
        size = input.shape[place]
        if size < edge_order + 1:
            raise RuntimeError(
                "torch.gradient expected each dimension size to be at least edge_order+1"
            )

        def at(index: int, place: int = place, size: Any = size) -> Tensor:
            return input.narrow(place, index if index >= 0 else size + index, 1)

        inner = (input.narrow(place, 2, size - 2) - input.narrow(place, 0, size - 2)) / (2 * step)
        if edge_order == 1:
            first, last = (at(1) - at(0)) / step, (at(-1) - at(-2)) / step
        else:
            first = (-1.5 * at(0) + 2 * at(1) - 0.5 * at(2)) / step
            last = (1.5 * at(-1) - 2 * at(-2) + 0.5 * at(-3)) / step
        found.append(torch.cat([first, inner, last], place))
    return tuple(found)


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """`torch.nn.functional.one_hot` of a given number of classes; a class out of range raises when it runs."""
    if tensor.dtype != torch.int64:
        raise RuntimeError("one_hot is only applicable to index tensor of type LongTensor.")
    if isinstance(num_classes, int) and num_classes == -1:
        result: Tensor = torch.nn.functional.one_hot(tensor)
        return result
    if num_classes < 1:
        raise RuntimeError("num_classes should be positive")
    classes = torch.arange(num_classes, device=tensor.device)
    checked = classes.gather(0, tensor.reshape(-1)).reshape(tensor.shape)
    result = (checked.unsqueeze(-1) == classes).to(torch.int64)
    if not result.is_inference():
        for _ in range(2):  # ATen fills it with zeros, then writes the ones
            torch.autograd.graph.increment_version(result)
    return result


def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """`torch.nn.functional.affine_grid`: where each output pixel lies in the input, in [-1, 1]."""
    if not theta.is_floating_point():
        raise ValueError(f"Expected theta to have floating point type, but got {theta.dtype}")
    spatial = list(size)[2:]
    dimensions = len(spatial)
    if dimensions not in (2, 3):
        raise NotImplementedError(
            "affine_grid only supports 4D and 5D sizes, for 2D and 3D affine transforms, respectively."
        )
    if theta.dim() != 3 or tuple(theta.shape[1:]) != (dimensions, dimensions + 1):
        raise ValueError(
            f"Expected a batch of {dimensions}D affine matrices of shape Nx{dimensions}x{dimensions + 1}"
            f" for size {size}. Got {theta.shape}."
        )
    options = {"dtype": theta.dtype, "device": theta.device}
    parts = []
    for place, count in enumerate(reversed(spatial)):  # x, y(, z)
        # The same as linspace(-1, 1, count), for each count.
        line = (
            torch.linspace(-1, 1, count, **options) if align_corners else _centres(count, options)
        )
        shape = [1] * dimensions
        shape[dimensions - 1 - place] = -1
        parts.append(line.reshape(shape).expand(spatial))
    parts.append(torch.ones(spatial, **options))
    base = torch.stack(parts, -1).reshape(1, math.prod(spatial), dimensions + 1)
    grid = torch.bmm(base.expand(size[0], -1, -1), theta.transpose(1, 2))
    return grid.reshape(size[0], *spatial, dimensions)


def _centres(count: Any, options: dict[str, Any]) -> Tensor:
    """The middles of `count` pixels in [-1, 1]."""
    return (torch.arange(count, **options) * 2 + 1) / count - 1


def stft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Tensor:
    """`torch.stft`: spectra of overlapping windows; what it refuses of the input's length is told in other words."""
    dims = input.dim()
    complex_input = input.is_complex() or (window is not None and window.is_complex())
    hop = n_fft // 4 if hop_length is None else hop_length
    width = n_fft if win_length is None else win_length
    onesided = not complex_input if onesided is None else onesided
    if return_complex is None and complex_input:
        return_complex = True
    if (
        align_to_window is not None
        or dims not in (1, 2)
        or hop <= 0
        or not 0 < width <= n_fft
        or (window is not None and (window.dim() != 1 or window.shape[0] != width))
        or (complex_input and onesided)
        or return_complex is None
    ):
        raise RuntimeError("stft of arguments that eager refuses, or that are rare")
    signal = input
    if center:
        extended = input.view([1] * (3 - dims) + list(input.shape))
        padded = torch.nn.functional.pad(extended, [n_fft // 2, n_fft // 2], pad_mode)
        signal = padded.view(padded.shape[-dims:])
    if not 0 < n_fft <= signal.shape[-1]:
        raise RuntimeError(f"stft expected 0 < n_fft <= {signal.shape[-1]}, but got n_fft={n_fft}")
    if width < n_fft:
        left = (n_fft - width) // 2
        if window is None:
            window = torch.ones(width, dtype=input.dtype, device=input.device)
        window = torch.nn.functional.pad(window, [left, n_fft - width - left])
    frames = (signal.unsqueeze(0) if dims == 1 else signal).unfold(-1, n_fft, hop)
    if window is not None:
        frames = frames * window
    transform = torch.fft.rfft if onesided else torch.fft.fft
    spectra = transform(frames, norm="ortho" if normalized else "backward").transpose(1, 2)
    spectra = spectra.squeeze(0) if dims == 1 else spectra
    return spectra if return_complex else torch.view_as_real(spectra)


def unsafe_chunk(input: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """`torch.unsafe_chunk`: at most `chunks` equal parts, the last maybe shorter."""
    if chunks <= 0:
        raise RuntimeError(f"chunk expects `chunks` to be greater than 0, got: {chunks}")
    size = input.shape[dim]
    if size == 0:
        return tuple(torch.unsafe_split_with_sizes(input, [0] * chunks, dim))
    return tuple(torch.unsafe_split(input, (size + chunks - 1) // chunks, dim))


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str | int = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """`torch.nn.functional.ctc_loss`; eager's mean of lengths that are numbers writes them into a tensor's memory."""
    names = {"none": 0, "mean": 1, "sum": 2}
    number = names.get(reduction, -1) if isinstance(reduction, str) else reduction
    if number not in (0, 1, 2):
        raise ValueError(f"{reduction} is not a valid value for reduction")
    lengths = input_lengths, target_lengths
    if number != 1 or isinstance(target_lengths, torch.Tensor):
        return torch.ctc_loss(log_probs, targets, *lengths, blank, number, zero_infinity)
    losses = torch.ctc_loss(log_probs, targets, *lengths, blank, 0, zero_infinity)
    parts = [
        torch.full((), max(length, 1), dtype=losses.dtype, device=losses.device)
        for length in target_lengths
    ]
    return (losses / torch.stack(parts)).mean()


_eager: Any = torch
_COMPOSITIONS: dict[Any, Callable[..., Any]] = {
    _eager.kron: kron,
    _eager.Tensor.kron: kron,
    _eager.linalg.multi_dot: multi_dot,
    _eager.chain_matmul: chain_matmul,
    _eager.cov: cov,
    _eager.Tensor.cov: cov,
    _eager.corrcoef: corrcoef,
    _eager.Tensor.corrcoef: corrcoef,
    _eager.vander: vander,
    _eager.linalg.vander: lambda x, *, N=None: vander(x, N, increasing=True),
    _eager.take_along_dim: take_along_dim,
    _eager.Tensor.take_along_dim: take_along_dim,
    _eager.gradient: gradient,
    _eager.nn.functional.one_hot: one_hot,
    _eager.nn.functional.ctc_loss: ctc_loss,
    _eager.ctc_loss: ctc_loss,
    _eager.stft: stft,
    _eager.Tensor.stft: stft,
    _eager.unsafe_chunk: unsafe_chunk,
    _eager.Tensor.unsafe_chunk: unsafe_chunk,
    _eager.nn.functional.affine_grid: affine_grid,
    _eager.quantile: quantile,
    _eager.Tensor.quantile: quantile,
    _eager.nanquantile: nanquantile,
    _eager.Tensor.nanquantile: nanquantile,
}
# Eager looks at the data and raises, or writes data: what C++ composes for tensors without data doesn't.
_ALWAYS = frozenset({one_hot, ctc_loss})
