"""Rows scattered into zeros: one sum for each row, walked by lists; the same numbers, and the same refusals."""

import pytest
import torch

from inductor import InductorOptions, compile_fx
from inductor.analysis.lists import listed
from inductor.ir import Kernel

STRICT = InductorOptions(strict=True)


def gradient(rows, dtype, *, wide=1):
    def function(index, values):
        table = torch.zeros(rows, values.shape[-1], dtype=dtype)
        return torch.ops.aten.index_put(table, [index], values * wide, True)

    return function


def sums(program):
    steps = program.schedule.steps
    return [step for step in steps if isinstance(step, Kernel) and listed(step.body) is not None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_each_row_is_a_sum(compare, dtype):
    index = torch.tensor([3, 0, -1, 3, 3, 5, 0, 2])
    tolerance = 1e-5 if dtype is torch.float32 else 3e-2  # eager rounds each sum
    values = torch.randn(8, 72).to(dtype)
    program = compare(gradient(9, dtype), index, values, tolerance=tolerance)
    assert len(sums(program)) == 1
    assert len(program.schedule.steps) == 1  # no zeros before, no narrowing after


@pytest.mark.parametrize(("rows", "count", "columns"), [(400, 8, 72), (9, 8, 20)])
def test_few_or_short_rows_are_scattered(compare, rows, count, columns):
    index = torch.randint(0, 9, (count,))
    program = compare(gradient(rows, torch.float32), index, torch.randn(count, columns))
    assert not sums(program)


def test_what_is_not_zero_is_added_to(compare):
    def function(table, index, values):
        return torch.ops.aten.index_put(table, [index], values, True)

    index = torch.tensor([3, 0, -1, 3])
    assert not sums(compare(function, torch.randn(9, 72), index, torch.randn(4, 72)))


@pytest.mark.cxx
@pytest.mark.parametrize("columns", [64, 72, 200, 384])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("threads", [1, 2])
def test_native_sums(traced, dtype, columns, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        rows, count = 300, 1500
        index = torch.randint(-rows, rows // 2, (count,))
        values = torch.randn(count, columns).to(dtype)
        function = gradient(rows, dtype, wide=2)
        compiled = compile_fx(traced(function, index, values), options=STRICT)
        exact = torch.zeros(rows, columns, dtype=torch.float64)
        exact.index_add_(0, index % rows, values.double() * 2)
        (ours,) = compiled([index, values])
        assert ours.dtype == dtype
        tolerance = 1e-4 if dtype is torch.float32 else 2e-2
        torch.testing.assert_close(ours.double(), exact, rtol=tolerance, atol=tolerance)
    finally:
        torch.set_num_threads(before)


@pytest.mark.cxx
@pytest.mark.parametrize("wrong", [50, -51, 1 << 40])
def test_rows_that_do_not_exist_are_refused(traced, wrong):
    index, values = torch.randint(0, 50, (40,)), torch.randn(40, 96)
    function = gradient(50, torch.float32)
    compiled = compile_fx(traced(function, index, values), options=STRICT)
    index[17] = wrong
    with pytest.raises(IndexError):
        function(index, values)
    with pytest.raises(IndexError):
        compiled([index, values])
    index[17] = 49
    torch.testing.assert_close(compiled([index, values])[0], function(index, values))


@pytest.mark.cxx
def test_no_rows_give_zeros(traced):
    index, values = torch.randint(0, 9, (8,)), torch.full((8, 64), torch.nan)
    values[0] = 1.0
    function = gradient(9, torch.float32)
    compiled = compile_fx(traced(function, index, values), options=STRICT)
    torch.testing.assert_close(
        compiled([index, values])[0], function(index, values), equal_nan=True
    )


def test_sums_of_two_tables_keep_their_own_sweeps(compare):
    """Two places of the same rows: one sweep for both would walk all rows for each."""

    def function(one, two, values):
        tables = torch.zeros(9, 72), torch.zeros(9, 72)
        first = torch.ops.aten.index_put(tables[0], [one], values, True)
        second = torch.ops.aten.index_put(tables[1], [two], values, True)
        return first * 2, second + 1, first.sum(1), values.sum(0), first + second

    index = torch.tensor([3, 0, -1, 3, 3, 5, 0, 2])
    program = compare(function, index, index.flip(0), torch.randn(8, 72))
    assert len(sums(program)) == 2
