"""Single operators through the whole stack, where what they give is more than values: layout, memory, refusals."""

import pytest
import torch

import compile_api

STRICT = {"strict": True}


def test_pieces_of_an_unsafe_split_have_the_strides_of_views():
    x = torch.arange(24.0).reshape(2, 3, 4).requires_grad_()
    expected = torch.unsafe_split(x, 2, 1)
    found = compile_api.compile(lambda x: torch.unsafe_split(x, 2, 1), options=STRICT)(x)
    assert [piece.stride() for piece in found] == [piece.stride() for piece in expected]
    for ours, eagers in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, eagers)
    (gradient,) = torch.autograd.grad(found[1].sum(), x)
    assert gradient.sum() == 8


@pytest.mark.parametrize(
    "draw", [lambda x: x.normal_(0, -1), lambda x: x.uniform_(3, -1), lambda x: x.exponential_(-1)]
)
@pytest.mark.filterwarnings("ignore::compile_api.errors.CompileWarning")
def test_refused_parameters_of_random_operators_raise_eagers_error(draw):
    with pytest.raises(RuntimeError) as expected:
        draw(torch.zeros(3))
    with pytest.raises(RuntimeError) as found:
        compile_api.compile(draw, options={"strict": False})(torch.zeros(3))
    assert str(found.value) == str(expected.value)
