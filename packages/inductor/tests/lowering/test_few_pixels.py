"""Convolutions with a window of one pixel over small images: one product for all images, forwards and backwards."""

import pytest
import torch

from inductor import InductorOptions, compile_fx
from inductor.ir import OperatorCall
from inductor.ir.machine import PROCESSOR
from inductor.lowering import lower

aten = torch.ops.aten
PLAIN = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
STRICT = InductorOptions(strict=True)
CHANNELS, FILTERS = 24, 40


def tensor(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def convolved(x, w, b):
    return aten.convolution(x, w, b, *PLAIN)


def gradients(x, w, grad):
    rest = [FILTERS], *PLAIN, [True, True, True]
    return aten.convolution_backward(grad, x, w, *rest)


def before_a_wider_window(x, w, wide):
    hidden = aten.convolution(torch.relu(x), w, None, *PLAIN)
    return aten.convolution(hidden, wide, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)


def after_depthwise(x, w, deep):
    hidden = aten.convolution(x, deep, None, [1, 1], [1, 1], [1, 1], False, [0, 0], CHANNELS)
    return torch.relu(aten.convolution(hidden, w, None, *PLAIN))


CASES = {
    "forwards": (convolved, lambda batch, height, width: [tensor(FILTERS, seed=2)]),
    "backwards": (gradients, lambda *sizes: [tensor(sizes[0], FILTERS, *sizes[1:], seed=3)]),
    "before a wider window": (before_a_wider_window, lambda *_: [tensor(8, FILTERS, 3, 3, seed=4)]),
    "after depthwise filters": (after_depthwise, lambda *_: [tensor(CHANNELS, 1, 3, 3, seed=5)]),
}


def inputs_of(more, sizes):
    batch, *space = sizes
    return [tensor(batch, CHANNELS, *space), tensor(FILTERS, CHANNELS, 1, 1, seed=1), *more(*sizes)]


def vendor_calls(gm):
    graph = lower(gm, processor=PROCESSOR)
    return [node.operator for node in graph.nodes if isinstance(node, OperatorCall)]


@pytest.mark.cxx
@pytest.mark.parametrize("sizes", [(2, 2, 2), (1, 1, 1), (3, 1, 5)], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_small_images_are_right_and_lie_as_eagers(traced, case, sizes):
    function, more = CASES[case]
    inputs = inputs_of(more, sizes)
    gm = traced(function, *inputs)
    found = compile_fx(gm, options=STRICT)(list(inputs))
    eager = function(*inputs)
    eager = eager if isinstance(eager, tuple) else (eager,)
    exact = function(*(x.double() for x in inputs))
    exact = exact if isinstance(exact, tuple) else (exact,)
    for mine, theirs, wanted in zip(found, eager, exact, strict=True):
        assert mine.stride() == theirs.stride()
        torch.testing.assert_close(mine.double(), wanted, rtol=1e-5, atol=1e-4)


def test_a_product_for_all_images_takes_the_place_of_the_convolution(traced):
    inputs = inputs_of(CASES["forwards"][1], (2, 4, 4))
    assert vendor_calls(traced(convolved, *inputs)) == [aten.addmm.default]
    inputs = inputs_of(CASES["backwards"][1], (2, 4, 4))
    assert vendor_calls(traced(gradients, *inputs)) == [aten.mm.default] * 2


@pytest.mark.parametrize(
    "settings",
    [
        ([2, 2], [0, 0], [1, 1], False, [0, 0], 1),
        ([1, 1], [1, 1], [1, 1], False, [0, 0], 1),
        ([1, 1], [0, 0], [1, 1], False, [0, 0], 2),
    ],
    ids=["steps", "padding", "groups"],
)
def test_other_convolutions_stay_the_librarys(traced, settings):
    weight = tensor(FILTERS, CHANNELS // settings[-1], 1, 1)

    def function(x, w):
        return aten.convolution(x, w, None, *settings)

    gm = traced(function, tensor(2, CHANNELS, 4, 4), weight)
    assert vendor_calls(gm) == [aten.convolution.default]


def test_images_of_many_pixels_stay_the_librarys(traced):
    inputs = inputs_of(CASES["forwards"][1], (2, 8, 8))
    assert vendor_calls(traced(convolved, *inputs)) == [aten.convolution.default]


@pytest.mark.cxx
def test_the_gradient_of_depthwise_filters_over_one_pixel(traced):
    """Nothing is added up there; a reduction over no extent was an internal error."""

    def function(grad, x, w):
        rest = [CHANNELS], [1, 1], [1, 1], [1, 1], False, [0, 0], CHANNELS, [True, True, True]
        return aten.convolution_backward(grad, x, w, *rest)

    inputs = [
        tensor(1, CHANNELS, 1, 1),
        tensor(1, CHANNELS, 1, 1, seed=1),
        tensor(CHANNELS, 1, 3, 3, seed=2),
    ]
    found = compile_fx(traced(function, *inputs), options=STRICT)(list(inputs))
    for mine, wanted in zip(found, function(*inputs), strict=True):
        torch.testing.assert_close(mine, wanted)
