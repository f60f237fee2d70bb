"""Decompositions whose arguments the operator database draws too narrowly, against eager."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from primtorch import decomposition_table

aten = torch.ops.aten
TABLE = decomposition_table("prims")


def same(operator, *args, **kwargs):
    """The decomposition and eager agree: values, dtypes, shapes, strides, or the type of what they raise."""
    try:
        expected = operator(*args, **kwargs)
    except Exception as error:  # noqa: BLE001  whatever eager raises
        with pytest.raises(type(error)):
            TABLE[operator](*args, **kwargs)
        return
    found = TABLE[operator](*args, **kwargs)
    if found is NotImplemented:
        return
    torch.testing.assert_close(found, expected, equal_nan=True)
    left, right = (x if isinstance(x, (tuple, list)) else [x] for x in (expected, found))
    assert [t.stride() for t in left] == [t.stride() for t in right]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_bags_and_what_is_kept_for_their_backward(dtype, mode):
    torch.manual_seed(0)
    weight = torch.randn(7, 3).to(dtype)
    indices = torch.tensor([1, 2, 2, 5, 0, 3])
    operator = aten._embedding_bag.default
    for offsets, last in (
        ([0, 2, 2], False),
        ([0, 2, 2, 6], True),
        ([0], False),
    ):
        for padding, weighted, kind in itertools.product(
            (-1, 2), (False, True), (torch.int32, torch.int64)
        ):
            samples = torch.rand(6).to(dtype) if weighted else None
            starts = torch.tensor(offsets, dtype=kind)
            same(operator, weight, indices, starts, False, mode, False, samples, last, padding)
            if weighted and mode:
                continue
            out, bag, size, largest = operator(
                weight, indices, starts, False, mode, False, samples, last, padding
            )
            grad = torch.randn_like(out)
            for by_frequency in (False, True) if mode != 2 else (False,):
                same(
                    aten._embedding_bag_backward.default, grad, indices.to(bag.dtype), starts, bag, size,
                    largest, 7, by_frequency, mode, False, samples, padding,
                )  # fmt: skip


@pytest.mark.parametrize("offsets", [[1, 2], [0, 9], [], [[0]], [0.0]])
def test_bags_refused_as_eager_refuses_them(offsets):
    weight, indices = torch.randn(7, 3), torch.tensor([1, 2, 2])
    starts = torch.tensor(offsets) if offsets else torch.zeros(0, dtype=torch.int64)
    same(aten._embedding_bag.default, weight, indices, starts)


values = st.lists(st.floats(-4, 4, width=32), min_size=0, max_size=30)


@settings(max_examples=60, deadline=None)
@given(values, st.integers(1, 7), st.floats(-3, 3, width=32), st.floats(-3, 3, width=32))
def test_histograms(elements, bins, low, high):
    x = torch.tensor(elements, dtype=torch.float32)
    same(aten.histc.default, x, bins, low, high)
    same(aten.histogram.bin_ct, x, bins)
    same(aten.histogram.bin_ct, x, bins, range=[low, high], weight=x.abs())
    if len(elements):
        edges = torch.linspace(min(low, high), max(low, high), bins + 1)
        same(aten.histogram.bins_tensor, x, edges)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_range_that_is_not_finite_is_refused(bad):
    x = torch.tensor([0.0, 1.0, bad])
    same(aten.histc.default, x, 4)
    same(aten.histogram.bin_ct, x, 4)
    same(aten.histc.default, x, 4, 0, 2)
    same(aten.histc.default, x, 4, 0, bad)


@pytest.mark.parametrize("zero_infinity", [False, True])
@pytest.mark.parametrize("flat", [False, True])
def test_the_loss_of_sequences(flat, zero_infinity):
    torch.manual_seed(0)
    time, batch, classes = 9, 5, 4
    probs = torch.randn(time, batch, classes, dtype=torch.float64).log_softmax(2)
    inputs, lengths = [9, 7, 2, 0, 5], [3, 0, 4, 0, 2]  # the third target is too long for its input
    targets = torch.randint(1, classes, (batch, 6))
    if flat:
        targets = torch.cat([row[:n] for row, n in zip(targets, lengths, strict=True)])
    operator = aten._ctc_loss.default
    loss, alpha = operator(probs, targets, inputs, lengths, 0, zero_infinity)
    found, ours = TABLE[operator](probs, targets, inputs, lengths, 0, zero_infinity)
    torch.testing.assert_close(found, loss)
    assert ours.shape == alpha.shape
    grad = torch.randn(batch, dtype=torch.float64)
    rest = (grad, probs, targets, inputs, lengths, loss)
    backward = aten._ctc_loss_backward.default
    expected = backward(*rest, alpha, 0, zero_infinity)
    torch.testing.assert_close(
        TABLE[backward](*rest, ours, 0, zero_infinity), expected, equal_nan=True
    )


def test_positions_are_drawn_by_their_weights():
    weights = torch.tensor([[0.0, 1.0, 3.0], [2.0, 2.0, 0.0]])
    torch.manual_seed(0)
    drawn = TABLE[aten.multinomial.default](weights, 4000, True)
    for row, expected in zip(drawn, weights / weights.sum(1, keepdim=True), strict=True):
        share = torch.bincount(row, minlength=3) / 4000
        assert float((share - expected).abs().max()) < 0.04
    once = TABLE[aten.multinomial.default](weights.expand(2, 3), 2, False)
    assert sorted(once[0].tolist()) == [1, 2]
    assert sorted(once[1].tolist()) == [0, 1]
    for bad in ([1.0, -1.0], [math.nan, 1.0], [math.inf, 1.0], [0.0, 0.0]):
        same(aten.multinomial.default, torch.tensor(bad), 1)


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(*[st.integers(1, 9)] * 2),
    st.tuples(*[st.integers(1, 9)] * 2),
    st.booleans(),
    st.sampled_from(["bilinear", "bicubic"]),
)
def test_antialiased_resizing(size, out_size, align_corners, kind):
    torch.manual_seed(0)
    x = torch.randn(2, 3, *size, dtype=torch.float64)
    forward = getattr(aten, f"_upsample_{kind}2d_aa").default
    backward = getattr(aten, f"_upsample_{kind}2d_aa_backward").default
    same(forward, x, list(out_size), align_corners)
    same(
        backward,
        torch.randn(2, 3, *out_size, dtype=torch.float64),
        list(out_size),
        list(x.shape),
        align_corners,
    )
    last = x.to(memory_format=torch.channels_last)
    scales = [
        1.1 * b / a for a, b in zip(size, out_size, strict=True)
    ]  # no window leaves the image
    same(forward, last, list(out_size), align_corners, *scales)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=24), st.integers(0, 9), st.integers(-2, 3))
def test_a_fixed_number_of_nonzero_positions(flags, size, fill):
    x = torch.tensor(flags)
    same(aten.nonzero_static.default, x, size=size, fill_value=fill)
    if len(flags) % 2 == 0:
        same(aten.nonzero_static.default, x.view(2, -1).t(), size=size, fill_value=fill)


@pytest.mark.parametrize("scale", [0.45, 1.9])
def test_a_scale_that_is_not_the_quotient_of_the_sizes(scale):
    """Eager's kernels look at the sizes first, each in its own way."""
    torch.manual_seed(0)
    kinds = {1: ("linear",), 2: ("bilinear", "bicubic"), 3: ("trilinear",)}
    for rank, smooth in kinds.items():
        for out_size in itertools.product((3, 4, 6), repeat=rank):
            for kind in (*smooth, "nearest", "nearest_exact"):
                name = f"{'_' if kind == 'nearest_exact' else ''}upsample_{kind}{rank}d"
                align = [] if "nearest" in kind else [False]
                x, grad = torch.randn(1, 4, *[3] * rank), torch.randn(1, 4, *out_size)
                rest = [*align, *[scale] * rank]
                same(getattr(aten, name).default, x, list(out_size), *rest)
                backward = getattr(aten, f"{name}_backward").default
                same(backward, grad, list(out_size), list(x.shape), *rest)
                if rank == 3:
                    last = x.to(memory_format=torch.channels_last_3d)
                    same(getattr(aten, name).default, last, list(out_size), *rest)


def _cell(kind, biased):
    """A cell of torch.nn in float64 with its inputs, and the products that a fused kernel gets."""
    torch.manual_seed(0)
    cell = getattr(torch.nn, f"{kind}Cell")(5, 4, bias=biased).double()
    x, state = (torch.randn(3, n, dtype=torch.float64) for n in (5, 4))
    gates = (x @ cell.weight_ih.T).detach().requires_grad_()
    hidden = (state @ cell.weight_hh.T).detach().requires_grad_()
    biases = [cell.bias_ih, cell.bias_hh] if biased else [None, None]
    return cell, x, state, gates, hidden, biases


@pytest.mark.parametrize("biased", [False, True])
def test_a_long_short_term_memory_cell(biased):
    """The fused kernel's decomposition, against the cell as the CPU computes it, and its backward against autograd."""
    cell, x, state, gates, hidden, biases = _cell("LSTM", biased)
    old = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    expected = cell(x, (state, old))
    out, new, workspace = TABLE[aten._thnn_fused_lstm_cell.default](gates, hidden, old, *biases)
    torch.testing.assert_close((out, new), expected)
    grads = torch.randn_like(out), torch.randn_like(new)
    leaves = [gates, old, *([biases[0]] if biased else [])]
    backward = TABLE[aten._thnn_fused_lstm_cell_backward_impl.default]
    for tangents in ((grads[0], grads[1]), (grads[0], None), (None, grads[1])):
        pairs = [(o, g) for o, g in zip((out, new), tangents, strict=True) if g is not None]
        outputs, given = zip(*pairs, strict=True)
        wanted = torch.autograd.grad(outputs, leaves, given, retain_graph=True)
        found = backward(*tangents, old, new, workspace, biased)
        torch.testing.assert_close(found[: len(leaves)], wanted)
        assert (found[2] is not None) == biased


@pytest.mark.parametrize("biased", [False, True])
def test_a_gated_recurrent_cell(biased):
    cell, x, state, gates, hidden, biases = _cell("GRU", biased)
    state.requires_grad_()
    out, workspace = TABLE[aten._thnn_fused_gru_cell.default](gates, hidden, state, *biases)
    torch.testing.assert_close(out, cell(x, state))
    grad = torch.randn_like(out)
    leaves = [gates, hidden, state, *(biases if biased else [])]
    wanted = torch.autograd.grad(out, leaves, grad)
    found = TABLE[aten._thnn_fused_gru_cell_backward.default](grad, workspace, biased)
    torch.testing.assert_close(found[: len(leaves)], wanted)
    assert (found[3] is not None) == biased


def test_the_angle_of_complex_numbers_is_row_major():
    numbers = torch.randn(2, 3, 4, 5, dtype=torch.complex64)
    for given_numbers in (
        numbers.mT,
        numbers[..., 1:3],
        numbers[:, :1].expand(2, 3, 4, 5),
        numbers.to(memory_format=torch.channels_last),
    ):
        same(aten.angle.default, given_numbers)


@pytest.mark.parametrize("weight", [0.95, 0.05, 0.7, 1.3])
def test_a_weight_is_subtracted_in_the_precision_of_its_tensor(weight):
    for dtype in (torch.float32, torch.float64):
        start, end = torch.tensor(-1023.0, dtype=dtype), torch.tensor(1.0, dtype=dtype)
        found = TABLE[aten.lerp.Scalar](start, end, weight)
        assert torch.equal(found, torch.lerp(start, end, weight))
