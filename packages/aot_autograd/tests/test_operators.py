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


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * 2j).abs(),
        lambda x: (x / (1 + 2j)).abs(),
        lambda x: ((1 - 1j) / (x + 2)).abs(),
        lambda x: (x + 0j).mul_(1j).abs(),
        lambda x: (1j * x - x).exp().real,
    ],
)
def test_a_complex_number_is_conjugated_in_the_gradient(agree, function, dtype):
    agree(function, lambda: [torch.linspace(0.1, 1, 5).to(dtype).requires_grad_()])


def test_composite_code_may_ask_for_numbers_that_only_constants_are_behind(agree):
    agree(
        lambda x: (torch.cov(x), torch.corrcoef(x)), lambda: [torch.arange(12.0).view(3, 4) ** 1.5]
    )
    with pytest.raises(RuntimeError, match="known only at run time"):
        traced(lambda x, weights: torch.cov(x, aweights=weights), torch.eye(3), torch.ones(3))


@pytest.mark.parametrize(
    ("write", "make"),
    [
        (lambda x, o: torch.take(x, x.long(), out=o), lambda: torch.zeros(1).expand(3)),
        (lambda x, o: torch.gather(x, 0, x.long(), out=o), lambda: torch.zeros(3).double()),
        (lambda x, o: torch.cat([x, o], out=o), lambda: torch.zeros(3)),
        (lambda x, o: torch.add(x, 1, out=o), lambda: torch.zeros(3, dtype=torch.int64)),
    ],
)
def test_an_out_tensor_that_eager_refuses_is_refused_while_tracing(write, make):
    with pytest.raises(RuntimeError):
        traced(write, torch.arange(3.0), make())


def test_a_product_may_be_added_to_its_out_tensor(agree):
    agree(
        lambda x, o: torch.addmm(o, x, x, out=o),
        lambda: [torch.arange(9.0).view(3, 3), torch.ones(3, 3)],
    )


def test_an_out_tensor_of_a_wider_dtype_is_cast_to(agree):
    agree(
        lambda x, o: torch.add(x, 1, out=o),
        lambda: [torch.arange(3.0), torch.zeros(3, dtype=torch.float64)],
    )


def test_factories_fill_an_out_tensor_in_its_dtype(agree):
    def function(matrix, row):
        column = matrix[:, 1]
        return (
            torch.eye(3, out=matrix),
            torch.full((3,), 2.5, out=column),
            torch.arange(3, out=row[:3]),
            torch.linspace(0, 1, 4, out=row[3:]),
            torch.ones(7, out=row),
        )

    agree(function, lambda: [torch.zeros(3, 3, dtype=torch.float64), torch.zeros(7)])


def test_gradients_that_aten_counts_by_data_are_traced(agree):
    from primtorch import decomposition_table

    def make():
        x = torch.arange(12.0).view(3, 4).requires_grad_()
        value = torch.tensor(2.0, requires_grad=True)
        source = torch.arange(20.0).requires_grad_()
        return [x, value, source]

    def function(x, value, source):
        filled = torch.index_fill(x, 1, torch.tensor([1, 1, 3]), value)
        return filled, torch.masked_scatter(x, x > 5, source)

    agree(function, make, decompositions=decomposition_table("inductor"))


@pytest.mark.parametrize("learned", [False, True])
def test_batch_norm_without_statistics_mutates_nothing_and_is_taken_apart(agree, learned):
    from primtorch import decomposition_table

    compared = agree(
        lambda weight, gain: torch.nn.functional.batch_norm(
            weight.reshape(1, 4, -1), None, None, weight=gain, training=True, momentum=0.0
        ),
        lambda: [
            torch.arange(24.0).view(4, 6).sin().requires_grad_(learned),
            torch.ones(4).requires_grad_(learned),
        ],
        decompositions=decomposition_table("inductor"),
        exact=False,
    )
    graph = (compared.forwards or compared.inferences)[0].graph
    assert not [node for node in graph.nodes if "batch_norm" in str(node.target)]
