"""The registry, the named tables and the closed list of prims."""

import inspect

import pytest
import torch

import primtorch
from primtorch.errors import RegistrationError, UnknownTableError
from primtorch.prims import FAMILIES
from primtorch.registry import decomposes, overload, registered

aten = torch.ops.aten
NAMES = ("prims", "core_aten", "inductor")


def test_prims_are_closed_and_bounded():
    named = [name for family in FAMILIES for name in family.operators]
    assert len(named) == len(set(named))
    assert len(primtorch.PRIMS) <= 250
    assert not primtorch.PRIMS & set(registered())


def test_core_aten_is_bounded():
    assert primtorch.PRIMS <= primtorch.CORE_ATEN
    assert len(primtorch.CORE_ATEN) <= 750


@pytest.mark.parametrize("name", NAMES)
def test_a_table_holds_functions_of_overloads(name):
    table = primtorch.decomposition_table(name)
    assert len(table) > 150
    assert all(isinstance(op, torch._ops.OpOverload) and callable(fn) for op, fn in table.items())
    assert not set(table) & primtorch.PRIMS
    assert table.get(aten.relu.default) is None
    assert aten.silu.default in primtorch.decomposition_table("inductor")


def test_without_and_extended_leave_the_table_alone():
    table = primtorch.decomposition_table("inductor")
    size = len(table)
    smaller = table.without(aten.silu.default)
    larger = table.extended({aten.relu.default: lambda self: self.clamp(0)})
    assert aten.silu.default not in smaller
    assert aten.silu.default in table
    assert aten.relu.default in larger
    assert aten.relu.default not in table
    assert len(table) == size
    with pytest.raises(TypeError):
        table[aten.relu.default] = None


def test_an_unknown_table_is_named():
    with pytest.raises(UnknownTableError, match="'prims', 'core_aten', 'inductor'"):
        primtorch.decomposition_table("aten")


def test_a_second_decomposition_is_refused():
    with pytest.raises(
        RegistrationError, match=r"aten\.silu\.default is decomposed by primtorch\.decompositions"
    ):
        decomposes(aten.silu.default)(lambda self: self)


def test_what_is_no_overload_is_refused():
    with pytest.raises(RegistrationError, match=r"name one of its overloads"):
        primtorch.decomposition_table("prims").extended({aten.add: lambda *a: a})
    with pytest.raises(RegistrationError, match="must be callable"):
        primtorch.decomposition_table("prims").extended({aten.add.Tensor: 3})


@pytest.mark.parametrize("operator", sorted(registered(), key=str), ids=str)
def test_signatures_are_the_operators(operator):
    """Every way in which the schema lets the operator be called binds to its decomposition."""
    signature = inspect.signature(registered()[operator])
    arguments = operator._schema.arguments
    positional = [object() for a in arguments if not a.kwarg_only]
    keywords = {a.name: object() for a in arguments if a.kwarg_only}
    signature.bind(*positional, **keywords)
    needed = [object() for a in arguments if not a.kwarg_only and not a.has_default_value()]
    signature.bind(
        *needed, **{a.name: 0 for a in arguments if a.kwarg_only and not a.has_default_value()}
    )


def test_overloads_are_found_by_name():
    assert overload("aten.add.Tensor") is aten.add.Tensor
    assert overload("aten.silu") is aten.silu.default
    assert overload("aten.no_such_operator.default") is None
