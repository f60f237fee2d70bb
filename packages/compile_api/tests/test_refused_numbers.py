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


def told(x):
    try:
        return torch.full_like(x, 300, dtype=torch.uint8)
    except RuntimeError as error:
        return x + len(str(error))


REFUSED_WHATEVER_THE_ELEMENTS = {
    "in place, another kind": (lambda x: x.clone().add_(1.5), torch.arange(3)),
    "too large to fill": (lambda x: torch.full_like(x, 70000), torch.ones(3, dtype=torch.float16)),
    "too large to assign": (lambda x: x.masked_fill(x > 1, 300), torch.ones(3, dtype=torch.uint8)),
    "too large to pad": (lambda x: torch.nn.functional.pad(x, (1, 1), value=1e39), torch.ones(3)),
    "no such kernel": (lambda x: torch.lerp(x, x, 1), torch.arange(3)),
    "complex": (lambda x: x.clamp(min=0), torch.ones(3, dtype=torch.complex64)),
}


@pytest.mark.parametrize("name", REFUSED_WHATEVER_THE_ELEMENTS)
def test_what_eager_refuses_for_its_dtypes_and_numbers_is_refused(name):
    function, value = REFUSED_WHATEVER_THE_ELEMENTS[name]
    with pytest.raises(RuntimeError) as expected:
        function(value)
    with pytest.raises(type(expected.value)) as found:
        compile_api.compile(function, options={"strict": True})(value)
    assert str(found.value) == str(expected.value)


def test_what_eager_refuses_is_caught_by_the_program():
    x = torch.arange(3)
    assert torch.equal(compile_api.compile(told, options={"strict": True})(x), told(x))


def test_a_number_that_varies_and_leaves_the_dtype_is_refused():
    def fill(x, number):
        return torch.full_like(x, number)

    compiled = compile_api.compile(fill, options={"strict": True})
    x = torch.ones(3, dtype=torch.float16)
    for number in (1.5, 2.5, 3.5, float("inf"), -float("inf")):
        assert torch.equal(compiled(x, number), fill(x, number))
    with pytest.raises(RuntimeError, match="without overflow"):
        compiled(x, 1e30)
    assert torch.equal(compiled(x, 4.5), fill(x, 4.5))
