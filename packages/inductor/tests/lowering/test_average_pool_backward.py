"""The gradient of average pooling as a GPU gathers it, against the library's."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inductor.ir import OperatorCall
from inductor.ir.execute import run_program
from inductor.lowering import lower
from inductor.schedule import build

aten = torch.ops.aten


def check(trace, shape, arguments, *, dtype=torch.float32, last=False, own=True):
    """`arguments`: window, step, padding, ceil_mode, count_include_pad, divisor_override."""
    x = torch.randn(shape, dtype=dtype)
    if last:
        x = x.contiguous(memory_format=torch.channels_last)
    grad = torch.randn_like(aten.avg_pool2d(x, *arguments))

    def function(grad, x):
        return aten.avg_pool2d_backward(grad, x, *arguments) * 1

    program = build(lower(trace(function, grad, x), for_gpu=True), for_gpu=True)
    calls = [step for step in program.schedule.steps if isinstance(step, OperatorCall)]
    assert bool(calls) != own
    (ours,) = run_program(program, [grad, x])
    eager = function(grad, x)
    torch.testing.assert_close(ours, eager, rtol=2e-2 if dtype.itemsize == 2 else 1e-5, atol=1e-2)
    assert ours.stride() == eager.stride()


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    "arguments",
    [
        ([2, 2], [], [0, 0], False, True, None),
        ([3, 3], [2, 2], [1, 1], True, False, None),
        ([3], [1], [1], False, True, None),
        ([2, 4], [3, 3], [1, 2], True, True, 5),
    ],
)
def test_windows(traced, arguments, last):
    check(traced, (2, 3, 9, 10), arguments, last=last)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes_and_images_without_a_batch(traced, dtype):
    check(traced, (4, 7, 7), ([3, 3], [2, 2], [1, 1], False, True, None), dtype=dtype)


def test_windows_that_reach_far_are_the_librarys(traced):
    check(traced, (1, 2, 12, 12), ([9, 9], [1, 1], [0, 0], False, True, None), own=False)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_window(traced, data):
    size = st.integers(1, 4)
    window, step = data.draw(st.tuples(size, size)), data.draw(st.tuples(size, size))
    pad = [data.draw(st.integers(0, extent // 2)) for extent in window]
    image = [data.draw(st.integers(extent, 9)) for extent in window]
    rest = data.draw(st.tuples(st.booleans(), st.booleans(), st.sampled_from([None, 3])))
    check(traced, (2, 2, *image), (list(window), list(step), pad, *rest))
