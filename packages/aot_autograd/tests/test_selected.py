"""Values written through a mask: their gradient has as many elements as they have."""

import pytest
import torch
from torch import randn

ROWS = torch.tensor([True, False, True, True, False, False])
ONE_ROW = torch.tensor([False, False, False, True, False, False])
PLACES = torch.arange(24).reshape(6, 4) % 3 == 0


def leaf(*shape):
    return randn(shape).requires_grad_()


# where it is written, and the shapes that values may have there
WRITES = {
    "elements": ((PLACES,), [(8,), (1,), ()]),
    "rows": ((ROWS,), [(3, 4), (1, 4), (3, 1), (4,), ()]),
    "columns": ((slice(None), ROWS[:4]), [(6, 3), (3,), (6, 1), (1, 1, 3)]),
    "part of rows": ((ROWS, slice(1, 3)), [(3, 2), (2,), (1, 1)]),
    "bytes": ((ROWS.to(torch.uint8),), [(3, 4), (4,)]),
    "beside positions": ((ROWS, torch.tensor([0, 2, 1])), [(3,), (1,), ()]),
    "one beside positions": ((ONE_ROW, torch.tensor([0, 2, 1])), [(3,), ()]),
    "two masks": ((ROWS, ROWS[:4]), [(3,)]),
    "nothing": ((ROWS & False,), [(0, 4), (1, 4), (4,)]),
}


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize("accumulate", [False, True], ids=["set", "added"])
@pytest.mark.parametrize("name", WRITES)
def test_written(agree, name, accumulate):
    places, shapes = WRITES[name]

    def function(x, values):
        y = x * 1
        if accumulate and all(type(place) is not slice for place in places):
            y.index_put_(places, values.sin(), accumulate=True)
        else:
            y[places] = values.sin()
        return y * y

    for shape in shapes:
        agree(function, lambda shape=shape: (leaf(6, 4), leaf(*shape)))


def test_written_again_elsewhere(agree):
    def function(x, one, other):
        y = x.sin()
        y[ROWS] = one
        y[~ROWS] = other * 2
        return y.exp()

    agree(function, lambda: (leaf(6, 4), leaf(3, 4), leaf(4)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
@pytest.mark.parametrize("name", ["elements", "rows", "columns"])
def test_one_number_of_another_dtype(agree, name, dtype):
    """Eager takes it for a fill, which converts."""
    places, _ = WRITES[name]

    def function(x, values):
        y = x * 1
        y[places] = values.mean()
        return y * y

    agree(function, lambda: (randn(6, 4, dtype=dtype).requires_grad_(), leaf(3)))
