"""Numbers that eager refuses when it meets them are refused compiled too, whatever operators are made of."""

import pytest
import torch

import compile_api
from primtorch import decomposition_table


def bag(indices):
    weight = torch.arange(15.0).view(5, 3)
    return torch.nn.functional.embedding_bag(indices, weight, torch.tensor([0, 2]))


def drawn(probabilities):
    return torch.multinomial(probabilities, 2)


BAD_NUMBERS = {
    "bag, too large": (bag, torch.tensor([0, 1, 7, 2])),
    "bag, negative": (bag, torch.tensor([0, -1, 2, 2])),
    "multinomial, negative": (drawn, torch.tensor([0.5, -0.5, 1])),
    "multinomial, infinite": (drawn, torch.tensor([0.5, float("inf"), 1])),
    "multinomial, nan": (drawn, torch.tensor([float("nan"), 1, 1])),
    "multinomial, nothing": (drawn, torch.zeros(2, 3)),
}


@pytest.mark.parametrize("name", BAD_NUMBERS)
@pytest.mark.parametrize("table", ["inductor", "prims"])
def test_what_eager_refuses_is_refused(name, table):
    function, value = BAD_NUMBERS[name]
    options = {"decompositions": decomposition_table(table), "strict": True}
    compiled = compile_api.compile(function, options=options)
    good = torch.ones_like(value)
    assert compiled(good).shape == function(good).shape
    with pytest.raises(RuntimeError):
        function(value)
    with pytest.raises(RuntimeError, match="probab|valid range"):
        compiled(value)
