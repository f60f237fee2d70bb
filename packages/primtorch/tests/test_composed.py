"""Compositions for sizes that vary: equal to torch's own, on real tensors, in value, shape, dtype and refusals."""

import pytest
import torch

from primtorch import composed
from primtorch.attention import substitute
from primtorch.fake import ShapeContext, fakeify
from primtorch.symbolic import SizeEnvironment


def randn(*shape, dtype=torch.float32):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(len(shape)))


CASES = [
    (torch.kron, composed.kron, (randn(3, 4), randn(2, 5)), {}),
    (torch.kron, composed.kron, (randn(3), randn(2, 5)), {}),
    (torch.kron, composed.kron, (randn(2, 3, 4), randn(5)), {}),
    (torch.linalg.multi_dot, composed.multi_dot, ([randn(3, 40), randn(40, 2), randn(2, 9)],), {}),
    (torch.linalg.multi_dot, composed.multi_dot, ([randn(4), randn(4, 5), randn(5)],), {}),
    (torch.linalg.multi_dot, composed.multi_dot, ([randn(3, 4), randn(4)],), {}),
    (torch.linalg.multi_dot, composed.multi_dot, ([randn(3, 4)],), {}),
    (torch.linalg.multi_dot, composed.multi_dot, ([randn(3, 4), randn(4, 1, 1)],), {}),
    (torch.cov, composed.cov, (randn(3, 7),), {}),
    (torch.cov, composed.cov, (randn(7),), {"correction": 0}),
    (torch.cov, composed.cov, (randn(3, 7, dtype=torch.complex64),), {}),
    (torch.cov, composed.cov, (randn(3, 4),), {"fweights": torch.tensor([1, 2, 1, 3])}),
    (torch.cov, composed.cov, (randn(3, 4),), {"aweights": randn(4).abs()}),
    (torch.cov, composed.cov, (randn(3, 4, 2),), {}),
    (torch.corrcoef, composed.corrcoef, (randn(3, 7),), {}),
    (torch.corrcoef, composed.corrcoef, (randn(7),), {}),
    (torch.corrcoef, composed.corrcoef, (randn(3, 7, dtype=torch.complex64),), {}),
    (torch.vander, composed.vander, (randn(4),), {}),
    (torch.vander, composed.vander, (randn(4), 6, True), {}),
    (torch.vander, composed.vander, (torch.tensor([0, 2, 3]), 3), {}),
    (torch.vander, composed.vander, (randn(4, 2),), {}),
    (torch.take_along_dim, composed.take_along_dim, (randn(3, 4), torch.tensor([[1, 0]])), {}),
    (torch.take_along_dim, composed.take_along_dim, (randn(3, 4), torch.tensor([[1, 0]]), 1), {}),
    (torch.take_along_dim, composed.take_along_dim, (randn(3, 4), torch.tensor([[1.0]]), 1), {}),
    (torch.gradient, composed.gradient, (randn(5, 4),), {}),
    (torch.gradient, composed.gradient, (randn(5, 4),), {"spacing": 2.0, "dim": 1}),
    (torch.gradient, composed.gradient, (randn(5, 4),), {"edge_order": 2}),
    (torch.gradient, composed.gradient, (randn(1, 4),), {}),
    (torch.nn.functional.one_hot, composed.one_hot, (torch.tensor([[0, 2], [1, 1]]), 3), {}),
    (torch.nn.functional.one_hot, composed.one_hot, (torch.tensor([0, 3]), 3), {}),
    (torch.nn.functional.affine_grid, composed.affine_grid, (randn(2, 2, 3), (2, 1, 4, 5)),
     {"align_corners": False}),
    (torch.nn.functional.affine_grid, composed.affine_grid, (randn(2, 3, 4), (2, 1, 4, 5, 3)),
     {"align_corners": True}),
    (torch.stft, composed.stft, (randn(2, 40), 16, 4), {"window": torch.hann_window(16), "return_complex": True}),
    (torch.stft, composed.stft, (randn(40), 16), {"return_complex": True, "center": False, "normalized": True}),
    (torch.stft, composed.stft, (randn(2, 40), 16, 5, 9, torch.hann_window(9)),
     {"onesided": False, "return_complex": True}),
    (torch.stft, composed.stft, (randn(2, 40), 16, 5, 9), {"return_complex": True, "pad_mode": "constant"}),
    (torch.stft, composed.stft, (randn(40, dtype=torch.complex64), 8), {}),
    (torch.stft, composed.stft, (randn(40), 8), {}),
    (torch.stft, composed.stft, (randn(40), 8, 0), {"return_complex": True}),
    (torch.stft, composed.stft, (randn(2, 40), 8, 4, 9), {"return_complex": True}),
    (torch.stft, composed.stft, (randn(2, 4), 8), {"return_complex": True, "center": False}),
    (torch.unsafe_chunk, composed.unsafe_chunk, (randn(5, 4), 3), {}),
    (torch.unsafe_chunk, composed.unsafe_chunk, (randn(5, 4), 2, -1), {}),
    (torch.unsafe_chunk, composed.unsafe_chunk, (randn(5, 4), 0), {}),
    (torch.unsafe_chunk, composed.unsafe_chunk, (randn(0, 4), 2), {}),
]  # fmt: skip


@pytest.mark.parametrize(
    "case", CASES, ids=[f"{case[1].__name__}-{n}" for n, case in enumerate(CASES)]
)
def test_equal_to_torch(case):
    theirs, ours, args, kwargs = case
    try:
        wanted = theirs(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - ours must raise as well
        with pytest.raises(type(error)):
            ours(*args, **kwargs)
        return
    found = ours(*args, **kwargs)
    if isinstance(wanted, torch.Tensor):
        wanted, found = [wanted], [found]
    for one, other in zip(wanted, found, strict=True):
        torch.testing.assert_close(other, one)


def test_chosen_only_where_a_size_varies():
    environment = SizeEnvironment()
    context = ShapeContext(environment)
    size = environment.create_size("n", 4)
    fixed, varying = fakeify(randn(4, 3), context), fakeify(randn(4, 3), context, shape=(size, 3))
    assert substitute(torch.kron, (fixed, fixed)) is torch.kron
    found = substitute(torch.kron, (fixed, varying))(fixed, varying)
    assert found.shape == (4 * size, 9)
    assert not environment.guards


def test_a_decomposition_tells_what_a_symbolic_shape_becomes():
    environment = SizeEnvironment()
    size = environment.create_size("n", 4)
    varying = fakeify(randn(4, 4), ShapeContext(environment), shape=(size, size))
    assert torch.linalg.slogdet(varying)[0].shape == ()
    assert torch.diag_embed(varying).shape == (size, size, size)
    assert torch.block_diag(varying, varying).shape == (2 * size, 2 * size)


def test_a_size_in_a_narrowed_range_can_become_a_number():
    environment = SizeEnvironment()
    size = environment.create_size("n", 4)
    assert size > 2
    assert int(size) == 4


LOSSES = randn(6, 2, 5).log_softmax(-1), torch.tensor([[1, 2, 4], [3, 1, 0]])


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("lengths", [((6, 5), (3, 2)), ([6, 5], [3, 0]), (torch.tensor([6, 5]), torch.tensor([3, 2]))],
                         ids=["tuples", "lists", "tensors"])  # fmt: skip
def test_ctc_loss_with_lengths_of_any_kind(lengths, reduction):
    arguments = (*LOSSES, *lengths, 0, reduction, True)
    found = substitute(torch.nn.functional.ctc_loss, arguments, {})(*arguments)
    torch.testing.assert_close(found, torch.nn.functional.ctc_loss(*arguments))
