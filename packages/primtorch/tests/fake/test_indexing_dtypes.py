"""Writes at indices whose values are of another dtype than what they are written into."""

import pytest
import torch

from primtorch.fake import infer

aten = torch.ops.aten
X, MASK = torch.zeros(3, 2, dtype=torch.float64), torch.tensor([True, False, True])
PLACES = torch.tensor([0, 2])

# indices, values, accumulate
CALLS = {
    "a number": ([MASK], torch.tensor(2.0), False),
    "one element": ([MASK], torch.ones(1, 1), False),
    "integers": ([MASK], torch.tensor(2), False),
    "second dimension": ([None, MASK[:2]], torch.tensor(2.0), False),
    "added": ([MASK], torch.tensor(2.0), True),
    "several": ([MASK], torch.ones(2), False),
    "positions": ([PLACES], torch.tensor(2.0), False),
    "two masks": ([MASK, MASK[:2]], torch.tensor(2.0), False),
    "bytes": ([MASK.to(torch.uint8)], torch.tensor(2.0), False),
    "bytes, same dtype": ([MASK.to(torch.uint8)], torch.tensor(2.0, dtype=torch.float64), False),
}


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize("name", CALLS)
def test_as_eager(name):
    indices, values, accumulate = CALLS[name]
    operator = aten.index_put.default
    try:
        expected = operator(X, indices, values, accumulate)
    except RuntimeError as error:
        with pytest.raises(RuntimeError, match=str(error)[:30]):
            infer(operator, (X, indices, values, accumulate), {})
        return
    found = infer(operator, (X, indices, values, accumulate), {})
    assert (found.shape, found.dtype) == (tuple(expected.shape), expected.dtype)
