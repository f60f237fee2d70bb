"""`primtorch::drawn_in_place`: what eager's in-place operators draw, in tensors of any layout; random shape rules."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from primtorch import DRAWN_IN_PLACE, draws_in_place
from primtorch.fake import infer, meta_of

aten = torch.ops.aten
CPU = torch.device("cpu")
CALLS = [
    (aten.bernoulli_.float, (0.3,)),
    (aten.normal_.default, (1.0, 2.0)),
    (aten.uniform_.default, ()),
    (aten.exponential_.default, (2.0,)),
    (aten.cauchy_.default, ()),
    (aten.geometric_.default, (0.3,)),
    (aten.log_normal_.default, (0.5,)),
    (getattr(aten.random_, "from"), (3, 9)),
    (getattr(aten.random_, "from"), (3,)),
    (aten.random_.to, (9,)),
    (aten.random_.default, ()),
]


def eager(operator, made, numbers):
    missing = operator._schema.name == "aten::random_" and operator._overloadname == "from"
    return operator(made, *numbers, *([None] if missing and len(numbers) == 1 else []))


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(CALLS), st.permutations(range(3)), st.sampled_from([(1, 1, 1), (1, 2, 1)]))
def test_draws_what_the_operator_draws(call, order, steps):
    operator, numbers = call
    x = torch.empty(4, 6, 5)[tuple(slice(None, None, step) for step in steps)].permute(order)
    gaps = steps != (1, 1, 1)
    torch.manual_seed(1)
    want, after = eager(operator, x, numbers), torch.rand(2)
    torch.manual_seed(1)
    arguments = (str(operator), list(x.shape), list(x.stride()), gaps, list(numbers))
    got = DRAWN_IN_PLACE(*arguments, dtype=x.dtype, device=CPU)
    assert torch.equal(got, want)
    assert got._version == 0
    assert torch.equal(torch.rand(2), after)
    assert got.is_contiguous() if gaps else got.stride() == want.stride()
    assert infer(DRAWN_IN_PLACE, arguments, {"dtype": x.dtype, "device": CPU}) == meta_of(got)


def test_what_draws_in_place():
    assert all(draws_in_place(operator) for operator, _ in CALLS)
    assert not draws_in_place(aten.bernoulli_.Tensor)
    assert not draws_in_place(aten.add_.Tensor)


@pytest.mark.parametrize("layout", [lambda x: x, lambda x: x.t(), lambda x: x[:, ::2]])
def test_random_operators_of_a_tensor_give_rows(layout):
    x = layout(torch.rand(6, 4))
    for operator, args in (
        (aten.bernoulli.default, (x,)),
        (aten.bernoulli.p, (x, 0.3)),
        (aten.poisson.default, (x,)),
        (aten.binomial.default, (x.round() + 1, x)),
        (aten._standard_gamma.default, (x,)),
    ):
        assert infer(operator, tuple(args), {}) == meta_of(operator(*args))
