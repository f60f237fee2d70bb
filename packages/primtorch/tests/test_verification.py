"""A decomposition that returns the wrong metadata is caught, with the operator's name, expected and found."""

import pytest
import torch

from primtorch import decomposition_table
from primtorch.errors import DecompositionError, PrimtorchError
from primtorch.fake import ShapeContext, fakeify
from primtorch.symbolic import SizeEnvironment

aten = torch.ops.aten
X = torch.linspace(-3, 3, 12).view(3, 4)


def right(self, *, approximate="none"):
    return self * (aten.erf.default(self * 0.5**0.5) + 1) * 0.5


WRONG = {
    "expected torch.float32 of shape (3, 4) with strides (4, 1) on cpu, found torch.float64": (
        lambda self, *, approximate="none": right(self).double()
    ),
    "found torch.float32 of shape (4,)": lambda self, *, approximate="none": right(self)[0],
    "with strides (1, 3)": lambda self, *, approximate="none": right(self).t().contiguous().t(),
    "found NoneType": lambda self, *, approximate="none": None,
    "found 2": lambda self, *, approximate="none": (right(self), right(self)),
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_metadata_is_told(text):
    table = decomposition_table("inductor").extended({aten.gelu.default: WRONG[text]}).verified()
    for operand in (X, fakeify(X, ShapeContext())):
        with pytest.raises(DecompositionError) as caught:
            table[aten.gelu.default](operand)
        assert text in str(caught.value)
        assert "aten.gelu.default" in str(caught.value)
        assert isinstance(caught.value, (PrimtorchError, RuntimeError))
        assert caught.value.operator is aten.gelu.default


def test_symbolic_sizes_are_compared_too():
    environment = SizeEnvironment()
    rows = environment.create_size("rows", 3)
    fake = fakeify(X, ShapeContext(environment), shape=[rows, 4])
    plain = decomposition_table("inductor")
    good = plain.extended({aten.gelu.default: right}).verified()
    assert good[aten.gelu.default](fake).shape[0] is not None
    bad = plain.extended({aten.gelu.default: lambda self, **_: right(self)[:2]}).verified()
    with pytest.raises(DecompositionError, match=r"found torch.float32 of shape \(2, 4\)"):
        bad[aten.gelu.default](fake)


def test_right_ones_pass_and_a_declined_call_stays_declined():
    table = decomposition_table("prims").verified()
    torch.testing.assert_close(table[aten.gelu.default](X), torch.nn.functional.gelu(X))
    generator = torch.Generator()
    assert table[aten.bernoulli.p](X, 0.5, generator=generator) is NotImplemented
    assert table.name == "prims, verified"
    assert len(table) == len(decomposition_table("prims"))


def test_tables_are_values():
    table = decomposition_table("prims")
    assert table == table.extended({})
    assert hash(table) == hash(table.extended({}))
    assert table != table.without(aten.gelu.default)
    assert {table: 1}[table.extended({})] == 1
