"""The gradient of max pooling as a GPU gathers it, against the library's."""

import itertools

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inductor.ir import OperatorCall
from inductor.ir.execute import run_program
from inductor.lowering import lower
from inductor.schedule import build

aten = torch.ops.aten


def pooled(x, *arguments):
    return aten.max_pool2d_with_indices(x, *arguments)


def backward(grad, x, indices, arguments, ceil):
    return aten.max_pool2d_with_indices_backward(grad, x, *arguments, ceil, indices)


def check(trace, shape, arguments, *, ceil=False, dtype=torch.float32, last=False, own=True):
    x = torch.randint(-4, 5, shape).to(dtype)  # equal elements: the first of them is the largest
    if last:
        x = x.contiguous(memory_format=torch.channels_last)
    out, indices = pooled(x, *arguments, ceil)
    grad = torch.randn_like(out)

    def function(grad, x, indices):
        return backward(grad, x, indices, arguments, ceil) * 1

    program = build(lower(trace(function, grad, x, indices), for_gpu=True), for_gpu=True)
    calls = [step for step in program.schedule.steps if isinstance(step, OperatorCall)]
    assert bool(calls) != own
    (ours,) = run_program(program, [grad, x, indices])
    eager = function(grad, x, indices)
    torch.testing.assert_close(ours, eager, rtol=2e-2 if dtype.itemsize == 2 else 1e-5, atol=1e-2)
    assert ours.stride() == eager.stride()


PLAIN = [
    ([3, 3], [2, 2], [1, 1], [1, 1]),
    ([2, 2], [], [0, 0], [1, 1]),
    ([3], [1], [1], [1]),
    ([2, 3], [3, 2], [1, 0], [1, 1]),
    ([5, 1], [1, 3], [2, 0], [1, 1]),
]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("arguments", PLAIN)
def test_windows(traced, arguments, last):
    check(traced, (2, 3, 9, 10), arguments, last=last)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes(traced, dtype):
    check(traced, (1, 4, 7, 7), PLAIN[0], dtype=dtype, last=True)


def test_an_image_without_a_batch_and_windows_over_the_edge(traced):
    check(traced, (3, 8, 9), PLAIN[1], ceil=True)


@pytest.mark.parametrize(
    "arguments", [([3, 3], [1, 1], [1, 1], [2, 2]), ([9, 9], [1, 1], [0, 0], [1, 1])]
)
def test_what_reaches_too_far_is_the_librarys(traced, arguments):
    check(traced, (1, 2, 12, 12), arguments, own=False)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_window(traced, data):
    size = st.integers(1, 4)
    window = data.draw(st.tuples(size, size))
    step = data.draw(st.tuples(size, size))
    pad = tuple(data.draw(st.integers(0, extent // 2)) for extent in window)
    image = [data.draw(st.integers(extent, 9)) for extent in window]
    arguments = (list(window), list(step), list(pad), [1, 1])
    check(traced, (2, 2, *image), arguments)


def test_every_element_is_reached_by_all_its_windows():
    """The windows that an element looks into are all that contain it."""
    for window, step, pad in itertools.product(range(1, 5), range(1, 5), range(3)):
        reach = -(-window // step)
        for spot in range(12):
            looked = {(spot + pad) // step - back for back in range(reach)}
            containing = {w for w in range(20) if w * step - pad <= spot < w * step - pad + window}
            assert containing <= looked
