"""Every prim has a meaning, and the formulas of derivatives are autograd's."""

import pytest
import torch

from primtorch.meanings import DERIVATIVES, MEANINGS
from primtorch.prims import FAMILIES
from primtorch.registry import overload

NAMES = [name for family in FAMILIES for name in family.operators]
STEPPED = ("none", "zero where the function is a step")


def test_every_prim_has_one_meaning():
    assert sorted(MEANINGS) == sorted(NAMES)
    assert len(set(NAMES)) == len(NAMES) <= 250
    assert all(text and "|" not in text for text in MEANINGS.values())


def test_elementwise_prims_that_autograd_differentiates_have_a_formula():
    for family in FAMILIES:
        if family.name in ("unary, to floating", "binary arithmetic"):
            without = {name for name in family.operators if name not in DERIVATIVES}
            assert all(_is_not_differentiated_in_closed_form(name) for name in without), without


def _is_not_differentiated_in_closed_form(name):
    """Bessel functions, what has parameters, and what autograd itself doesn't differentiate."""
    return name.startswith("special_bessel") or name in (
        *("div.Tensor_mode", "pow.Tensor_Scalar", "pow.Scalar", "nextafter", "gcd", "igamma"),
        *("igammac", "special_zeta", "polygamma", "ldexp.Tensor"),
    )


@pytest.mark.parametrize("name", DERIVATIVES)
def test_a_formula_is_autograds(name):
    formulas = DERIVATIVES[name]
    operator = overload(f"aten.{name}")
    low, high = {"acosh": (1.1, 3), "special_i1": (0.2, 2)}.get(name, (0.1, 0.9))
    operands = [
        torch.linspace(low, high, 7, dtype=torch.float64).requires_grad_(),
        torch.linspace(0.85, 0.15, 7, dtype=torch.float64).requires_grad_(),
    ][: len(formulas)]
    result = operator(*operands)
    scope = {**vars(torch), "x": operands[0], "y": operands[-1], "f": result, "alpha": 1}
    gradients = torch.autograd.grad(result.sum(), operands, retain_graph=True, allow_unused=True)
    for formula, gradient, operand in zip(formulas, gradients, operands, strict=True):
        expected = torch.zeros_like(operand) if gradient is None else gradient
        torch.testing.assert_close(eval(formula, scope).detach(), expected)
