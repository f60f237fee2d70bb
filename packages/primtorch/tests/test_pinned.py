"""Functions whose C++ pins sizes: what runs on fakes in their place is what eager does."""

import itertools

import pytest
import torch

from primtorch.pinned import get_item, linspace, max_pool1d, set_item

INDICES = (
    (1,), (1, 2), (..., 1), (slice(None), 1), (None, 1), (1, ..., 0), (slice(1, None), None, 0, ...),
    (..., None, 1), (0, slice(0, 2), 1), (..., 1, slice(None, None, 2)), (-1, ..., -2), (None, ..., None, 0),
)  # fmt: skip


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_items(index):
    x = torch.arange(24.0).reshape(3, 4, 2)
    expected, found = x[index], get_item(x, index)
    assert found.shape == expected.shape
    assert found.stride() == expected.stride()
    assert torch.equal(found, expected)
    for value in (7, torch.tensor(8), torch.ones(1, 1, 1, *expected.shape, dtype=torch.int64)):
        ours, theirs = x.clone(), x.clone()
        set_item(ours, index, value)
        theirs[index] = value
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("dtype", [None, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("steps", [0, 1, 2, 7, 10])
def test_linspace(dtype, steps):
    expected = torch.linspace(-1, 2.5, steps, dtype=dtype)
    torch.testing.assert_close(linspace(-1, 2.5, steps, dtype=dtype), expected)


@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "ceil"),
    list(itertools.product((None, 2, (3,)), (0, 1), (1, 2), (False, True))),
)
def test_max_pool1d(stride, padding, dilation, ceil):
    x = torch.randn(2, 3, 11)
    options = {"stride": stride, "padding": padding, "dilation": dilation, "ceil_mode": ceil}
    expected = torch.nn.functional.max_pool1d(x, 3, **options)
    assert torch.equal(max_pool1d(x, 3, **options), expected)
    assert torch.equal(max_pool1d(x[0], 3, **options), expected[0])
