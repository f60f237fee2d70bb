"""Operators whose composite code, parameters or layout the recording has to look at."""

import pytest
import torch

import aot_autograd


def traced(function, *inputs):
    def run(gm, example_inputs):
        del example_inputs
        return aot_autograd.make_boxed_func(gm.forward)

    return aot_autograd.aot_function(function, run)(*inputs)


@pytest.mark.parametrize("table", ["inductor", "prims", "core_aten"])
def test_a_conjugate_that_is_computed_ends_at_the_prim(agree, table):
    from primtorch import decomposition_table

    x = torch.tensor([1 + 2j, -3j])
    agree(
        lambda x: (torch.conj_physical(x), torch.vdot(x, x)),
        lambda: [x.clone()],
        decompositions=decomposition_table(table),
    )


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: x.normal_(0, -1),
        lambda x: x.uniform_(3, -1),
        lambda x: x.exponential_(-0.5),
        lambda x: x.bernoulli_(2.0),
    ],
)
def test_parameters_that_a_random_operator_refuses_are_refused_while_tracing(draw):
    with pytest.raises(RuntimeError):
        traced(draw, torch.zeros(3))


def test_complex_random_numbers_are_drawn_by_aten(agree):
    agree(lambda x: (torch.randn_like(x), x.clone().uniform_()), lambda: [torch.zeros(3) + 0j])
