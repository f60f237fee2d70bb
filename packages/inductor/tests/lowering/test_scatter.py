"""Gathers and scatters of tensors without dimensions, of narrow dtypes, and with a factor: kernels of our own."""

import pytest
import torch

from inductor.ir.nodes import OperatorCall

S, I0, I1 = torch.tensor(3.0), torch.tensor(0), torch.tensor([0, 0])

SCALARS = {
    "index_select": (lambda x, i: torch.index_select(x, 0, i), S, I0),
    "index_select, a vector": (lambda x, i: torch.index_select(x + 1, 0, i), S, I0.reshape(1)),
    "gather": (lambda x, i: torch.gather(x, 0, i) * 2, S, I1),
    "gather of a vector": (lambda x, i: torch.gather(x, 0, i), torch.arange(4.0), I0 + 2),
    "scatter": (lambda x, i, y: torch.scatter(x, 0, i, y) * 2, S, I0, S * 2),
    "scatter of a number": (lambda x, i: torch.scatter(x, 0, i, 7.0), S, I0),
    "scatter_add": (lambda x, i, y: torch.scatter_add(x, 0, i, y), S, I0, S * 2),
    "index_add": (lambda x, i, y: torch.index_add(x, 0, i, y, alpha=2), S, I0, S * 2),
    "index_copy": (lambda x, i, y: torch.index_copy(x, 0, i, y), S, I0, S * 2),
    "transpose_copy": (lambda x: torch.transpose_copy(x, 0, 0) + 1, S),
}


def assert_no_call(program):
    assert not [step for step in program.schedule.steps if isinstance(step, OperatorCall)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", SCALARS)
def test_tensors_without_dimensions_are_indexed_as_vectors_of_one(compare, name, dtype):
    function, *inputs = SCALARS[name]
    inputs = [x.to(dtype) if x.is_floating_point() else x for x in inputs]
    program = compare(function, *inputs)
    assert_no_call(program)
    shape = function(*inputs).shape
    assert [len(view.shape) for view in program.graph.outputs] == [len(shape)]


ADDITIONS = {
    "scatter_add": lambda x, i, y: torch.scatter_add(x, 0, i[:, None].expand(7, 4), y),
    "index_put": lambda x, i, y: torch.index_put(x, (i,), y, accumulate=True),
    "index_add": lambda x, i, y: torch.index_add(x, 0, i, y),
}


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.int8, torch.int16, torch.uint8], ids=str
)
@pytest.mark.parametrize("name", ADDITIONS)
def test_narrow_numbers_are_added_wide(compare, name, dtype):
    values = (
        torch.arange(28).reshape(7, 4) * 9 % 60
    )  # sums of eager's and of ours are exact, or wrap
    index = torch.tensor([1, 1, 3, 0, 1, 4, 3])
    assert_no_call(compare(ADDITIONS[name], values[:5].to(dtype), index, values.to(dtype)))


def test_a_factor_of_what_is_added(compare):
    x, y, i = torch.arange(20.0).reshape(5, 4), torch.ones(3, 4), torch.tensor([1, 1, 3])
    assert_no_call(compare(lambda x, i, y: torch.index_add(x, 0, i, y, alpha=-0.5), x, i, y))


WINDOWS = {
    "of rows": ((4, 5), (2, 5), (5, 1), 5),
    "across rows": ((20,), (3, 4), (4, 1), 8),
    "with gaps, transposed": ((30,), (2, 3), (3, 9), 1),
    "of one element": ((6,), (1, 1), (4, 2), 3),
    "of none": ((6,), (0, 2), (2, 1), 0),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_are_written_by_kernels(compare, name):
    shape, *window = WINDOWS[name]
    x, y = torch.randn(shape), torch.randn(window[0])
    assert_no_call(compare(lambda x, y: torch.as_strided_scatter(x + 1, y * 2, *window), x, y))


def test_what_looks_at_storage_has_one_of_its_own(compare):
    """Where only run time knows the window, the library's operator counts from the beginning of the storage."""

    def function(x, y):
        size = y.shape[0]
        made = [torch.as_strided_scatter(x * n, y, (size, 2), (2, 1), size) for n in (2, 3)]
        return made[0] + made[1]

    def inputs(n):
        return torch.randn(4 * n), torch.randn(n, 2)

    symbolic = ((0, 0, "s"), (1, 0, "t"))
    program = compare(function, *inputs(5), symbolic=symbolic, again=(inputs(9),))
    read = {
        name
        for step in program.schedule.steps
        if isinstance(step, OperatorCall)
        for name in step.reads
    }
    assert read
    assert "arena" not in {program.memory.places[name].kind for name in read}


def test_ldexp_is_eagers(compare):
    x, n = torch.tensor([1.5, -3.0, 0.0, float("inf")]), torch.tensor([-3, 4, 7, 1])
    assert_no_call(compare(torch.ldexp, x, n))


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "mean", "prod", "amax", "amin"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.uint8], ids=str)
def test_reductions_at_indices(compare, dtype, reduce, include_self):
    x, y = torch.arange(20).reshape(5, 4).to(dtype), torch.arange(12).reshape(3, 4).to(dtype)
    i = torch.tensor([[1, 1, 3, 0], [1, 4, 3, 0], [0, 1, 3, 0]])
    assert_no_call(
        compare(
            lambda x, i, y: torch.scatter_reduce(x, 0, i, y, reduce, include_self=include_self),
            x, i, y,
        )
    )  # fmt: skip


def test_a_number_is_reduced_as_a_vector_of_one(compare):
    assert_no_call(compare(lambda x, i, y: torch.scatter_reduce(x, 0, i, y, "amax"), S, I0, S * 2))
