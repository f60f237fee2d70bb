"""What need not be computed: whole tensors of which few elements are picked, sums of rows with one term."""

import math

import pytest
import torch
import torch.nn.functional as F

from inductor.ir import Kernel

torch.manual_seed(0)
X = torch.randn(16, 200)
TARGET = torch.randint(0, 200, (16,))


def kernels(program):
    return [step for step in program.schedule.steps if isinstance(step, Kernel)]


def operations(program, name):
    return [
        operation
        for kernel in kernels(program)
        for _, operation, _ in kernel.body.operations()
        if operation.name == name
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_loss_over_classes_writes_no_probabilities(compare, dtype):
    x = X.to(dtype)
    program = compare(lambda x, t: F.cross_entropy(x, t, ignore_index=3), x, TARGET)
    stored = {operation.buffer for operation in operations(program, "store")}
    assert all(math.prod(program.graph.buffers[name].shape) <= 16 for name in stored)


def test_picked_elements_are_computed_where_they_are_read(compare):
    index = torch.tensor([3, 0, 3, 15])
    program = compare(lambda x, i: (x.exp() * 2)[i, i], X, index)
    stored = [operation.buffer for operation in operations(program, "store")]
    assert [program.graph.buffers[name].shape for name in stored] == [(4,)]
    compare(lambda x, i: (x[None].exp() * 2)[0, i, 5], X, index)
    compare(lambda x, i: (x.t().exp() + x.t())[5, i], X, index)
    compare(lambda x, i: (x.exp()[2:, 10:])[i.clamp(max=3), i], X, index)


def test_a_tensor_that_is_written_again_is_read_as_it_then_is(compare):
    index = torch.tensor([3, 0])

    def function(x, i):
        return torch.index_put(x.exp(), (i,), x[i])[i, 5]

    compare(function, X, index)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("flip", [False, True])
def test_the_sum_of_a_row_with_one_term_is_the_term(compare, dtype, flip):
    place = torch.randint(-3, 205, (16, 1))  # some lie outside
    value = torch.randn(16, 1).to(dtype)
    row = torch.arange(200)

    def function(x, place, value, row):
        hit = place == row if flip else row == place
        one_hot = torch.where(hit, value, torch.zeros_like(value))
        return x - x.exp() * one_hot.sum(1, keepdim=True)

    program = compare(function, X.to(dtype), place, value, row)
    assert len(operations(program, "reduce")) in {0, 1}


def test_the_gradient_of_a_loss_sweeps_each_row_once(compare):
    def gradient(x, t, g):
        lost = torch.log_softmax(x, -1)
        one_hot = torch.zeros_like(x).scatter(1, t[:, None], -1.0) * g
        return one_hot - lost.exp() * one_hot.sum(-1, keepdim=True)

    compare(gradient, X, TARGET, torch.tensor(0.25))


def rows_into(table, index, rows):
    gradient = torch.ops.aten.embedding_dense_backward(rows, index, table.shape[0], -1, False)
    return table + gradient


WEIGHT = torch.randn(50, 8)
ROWS = torch.randn(6, 8)
PLACES = torch.tensor([3, 3, 49, 0, 7, 3])


def stores_of_tables(program):
    return [op for op in operations(program, "store") if op.buffer and op.attribute == "set"]


def test_rows_are_scattered_into_the_product_that_they_are_added_to(compare):
    def tied(x, y, index, rows):
        return rows_into(x.t() @ y, index, rows)

    x, y = torch.randn(4, 50), torch.randn(4, 8)
    program = compare(tied, x, y, PLACES, ROWS, tolerance=1e-5)
    assert not stores_of_tables(program)  # neither zeros nor a sum
    assert [op.attribute for op in operations(program, "store")] == ["add"]


def test_rows_of_two_tables_are_scattered_into_one(compare):
    def tied(x, y, index, rows, more):
        return rows_into(rows_into(x.t() @ y, index, rows), index.flip(0), more)

    x, y = torch.randn(4, 50), torch.randn(4, 8)
    program = compare(tied, x, y, PLACES, ROWS, ROWS * 2, tolerance=1e-5)
    assert not stores_of_tables(program)


def test_what_others_read_is_not_scattered_into(compare):
    program = compare(rows_into, WEIGHT, PLACES, ROWS, tolerance=1e-5)
    assert len(stores_of_tables(program)) == 1  # an input: copied, not summed

    def twice(x, y, index, rows):
        product = x.t() @ y
        return rows_into(product, index, rows), product.exp()

    x, y = torch.randn(4, 50), torch.randn(4, 8)
    compare(twice, x, y, PLACES, ROWS, tolerance=1e-5)
    compare(lambda w, i, r: rows_into(w.exp(), i, r) + rows_into(w, i, r), WEIGHT, PLACES, ROWS)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_scattered_sums_of_other_types(compare, dtype):
    tolerance = 1e-2 if dtype is torch.bfloat16 else None
    compare(rows_into, WEIGHT.to(dtype), PLACES, ROWS.to(dtype), tolerance=tolerance)
