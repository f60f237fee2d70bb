"""Images of half types are laid out channels last on a GPU; what the caller sees keeps eager's strides."""

import operator

import pytest
import torch
from torch.fx import Graph, GraphModule

from inductor import InductorOptions
from inductor.ir import Kernel, OperatorCall
from inductor.ir.execute import run_program
from inductor.ir.machine import H200
from inductor.pipeline import plan
from inductor.schedule.blocks import choose_blocks
from primtorch.fake import ShapeContext, fakeify

aten = torch.ops.aten
AS_ON_A_GPU = InductorOptions(strict=True, verify=True, executor="triton_interpreter")
WHOLE = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)


def planned(function, *inputs, visible=None, options=AS_ON_A_GPU):
    """The program of `function(call, *nodes)`, by default as a GPU gets it."""
    context = ShapeContext()
    graph = Graph()
    nodes = []
    for number, tensor in enumerate(inputs):
        node = graph.placeholder(f"x{number}")
        node.meta["val"] = fakeify(tensor, context)
        node.meta["input"] = {"kind": "argument", "name": node.name, "static": False}
        nodes.append(node)

    def call(target, *args, **kwargs):
        node = graph.call_function(target, args, kwargs)
        values = torch.fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
        node.meta["val"] = target(*values[0], **values[1])
        return node

    graph.output(tuple(function(call, *nodes)))
    module = GraphModule(torch.nn.Module(), graph)
    module.meta["wire"] = 1
    if visible is not None:
        module.meta |= {"role": "forward", "visible_outputs": visible}
    return plan(module, options)


def image(*shape):
    return torch.randn(shape).bfloat16()


def two_convolutions(call, x, first, second):
    hidden = call(aten.relu.default, call(aten.convolution.default, x, first, None, *WHOLE))
    return [hidden, call(aten.convolution.default, hidden, second, None, *WHOLE)]


def is_channels_last(view):
    return torch.empty_strided(view.shape, view.stride, device="meta").is_contiguous(
        memory_format=torch.channels_last
    )


def test_convolutions_take_and_give_channels_last_and_the_caller_gets_eagers_strides():
    inputs = image(2, 4, 8, 8), image(8, 4, 3, 3), image(8, 8, 3, 3)
    program = planned(two_convolutions, *inputs)
    calls = [step for step in program.schedule.steps if isinstance(step, OperatorCall)]
    assert len(calls) == 2
    for step in calls:
        assert all(is_channels_last(view) for view in step.views())
        assert is_channels_last(program.graph.buffers[step.outputs[0]].view)
    hidden, result = run_program(program, inputs)
    expected = torch.relu(torch.conv2d(inputs[0], inputs[1], padding=1))
    torch.testing.assert_close(hidden, expected, rtol=2e-2, atol=2e-2)
    wanted = torch.conv2d(expected, inputs[2], padding=1)
    torch.testing.assert_close(result, wanted, rtol=5e-2, atol=2e-1)
    assert hidden.stride() == expected.stride()
    assert result.stride() == expected.stride()


def test_between_two_convolutions_no_image_changes_its_layout():
    def function(call, x, first, second):
        return two_convolutions(call, x, first, second)[1:]

    program = planned(function, image(2, 4, 8, 8), image(8, 4, 3, 3), image(8, 8, 3, 3))
    kernels = [step for step in program.schedule.steps if isinstance(step, Kernel)]
    # the image and two weights on the way in, relu, the result on the way out
    assert len(kernels) == 5


def test_saved_tensors_stay_channels_last():
    inputs = image(2, 4, 8, 8), image(8, 4, 3, 3), image(8, 8, 3, 3)
    program = planned(two_convolutions, *inputs, visible=1)
    seen, saved = program.graph.outputs
    assert seen.stride == (512, 64, 8, 1)
    assert is_channels_last(saved)


def test_single_precision_keeps_its_layout():
    inputs = torch.randn(2, 4, 8, 8), torch.randn(8, 4, 3, 3), torch.randn(8, 8, 3, 3)
    program = planned(two_convolutions, *inputs)
    calls = [step for step in program.schedule.steps if isinstance(step, OperatorCall)]
    assert not any(is_channels_last(view) for step in calls for view in step.views())


def test_gradients_of_a_convolution():
    inputs = image(2, 8, 8, 8), image(2, 4, 8, 8), image(8, 4, 3, 3)
    arguments = ([8], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False])

    def function(call, grad, x, weight):
        made = call(aten.convolution_backward.default, grad, x, weight, *arguments)
        return [call(operator.getitem, made, number) for number in range(2)]

    results = run_program(planned(function, *inputs), inputs)
    expected = aten.convolution_backward(*inputs, *arguments)[:2]
    for ours, theirs in zip(results, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=5e-2, atol=2e-1)
        assert ours.stride() == theirs.stride()


def test_a_reinterpretation_by_strides_reads_eagers_layout():
    """Its strides are meant for the memory that eager's tensor has."""
    inputs = image(2, 4, 6, 6), image(4, 4, 3, 3)

    def function(call, x, weight):
        made = call(aten.convolution.default, x, weight, None, *WHOLE)
        return [call(aten.neg.default, call(aten.as_strided.default, made, (5, 7), (7, 2), 3))]

    (result,) = run_program(planned(function, *inputs), inputs)
    expected = -torch.conv2d(*inputs, padding=1).contiguous().as_strided((5, 7), (7, 2), 3)
    torch.testing.assert_close(result, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    "arguments",
    [([3, 3], [2, 2], [1, 1]), ([2, 2],), ([3, 2], [1, 2], [1, 0], [2, 1]), ([3, 3], [2, 2], [0, 0], [1, 1], True)],
)  # fmt: skip
@pytest.mark.parametrize("special", [None, float("nan"), float("-inf")])
def test_maxima_of_windows_and_their_places(arguments, special):
    x = torch.randn(2, 3, 9, 8).round().bfloat16()  # with equal elements
    if special is not None:
        x.view(-1)[:: 3 if special != special else 1] = special

    def function(call, x):
        made = call(aten.max_pool2d_with_indices.default, x, *arguments)
        return [call(operator.getitem, made, number) for number in range(2)]

    program = planned(function, x)
    assert all(isinstance(step, Kernel) for step in program.schedule.steps)
    values, places = run_program(program, (x,))
    expected = aten.max_pool2d_with_indices(x, *arguments)
    torch.testing.assert_close(values, expected[0], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(places, expected[1])


def planned_for_the_cpu(function, *inputs):
    """As `planned`, for the CPU itself."""
    return planned(function, *inputs, options=InductorOptions(strict=True, verify=True))


def test_a_graph_with_depthwise_convolutions_is_laid_out_channels_last_on_a_cpu():
    x, depthwise, dense = (
        torch.randn(2, 16, 8, 8),
        torch.randn(16, 1, 3, 3),
        torch.randn(8, 16, 3, 3),
    )

    def function(call, x, first, second):
        each = ([1, 1], [1, 1], [1, 1], False, [0, 0], 16)
        hidden = call(aten.relu.default, call(aten.convolution.default, x, first, None, *each))
        return [call(aten.convolution.default, hidden, second, None, *WHOLE)]

    program = planned_for_the_cpu(function, x, depthwise, dense)
    calls = [step for step in program.schedule.steps if isinstance(step, OperatorCall)]
    assert [is_channels_last(call.args[0]) for call in calls] == [True, True]
    assert not is_channels_last(calls[1].args[1])  # filters as they come
    assert not is_channels_last(program.graph.outputs[0])
    (result,) = run_program(program, [x, depthwise, dense])
    hidden = torch.relu(
        aten.convolution(x, depthwise, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 16)
    )
    torch.testing.assert_close(
        result, aten.convolution(hidden, dense, None, *WHOLE), atol=1e-4, rtol=1e-4
    )


def test_filters_larger_than_their_images_are_not_turned_at_every_call():
    x, depthwise, dense, pointwise = (
        torch.randn(1, 16, 5, 5),
        torch.randn(16, 1, 3, 3),
        torch.randn(32, 16, 3, 3),
        torch.randn(64, 32, 1, 1),
    )

    def function(call, x, first, second, third):
        each = ([1, 1], [1, 1], [1, 1], False, [0, 0], 16)
        hidden = call(aten.relu.default, call(aten.convolution.default, x, first, None, *each))
        hidden = call(aten.convolution.default, hidden, second, None, *WHOLE)
        point = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
        return [call(aten.convolution.default, hidden, third, None, *point)]

    program = planned_for_the_cpu(function, x, depthwise, dense, pointwise)
    calls = [step for step in program.schedule.steps if isinstance(step, OperatorCall)]
    # windows of 3 x 3 over 5 x 5 images: the images are copied, not the filters; of 1 x 1: there is nothing to turn
    assert [is_channels_last(call.args[0]) for call in calls] == [True, False, True]
    (result,) = run_program(program, [x, depthwise, dense, pointwise])
    hidden = torch.relu(torch.conv2d(x, depthwise, padding=1, groups=16))
    expected = torch.conv2d(torch.conv2d(hidden, dense, padding=1), pointwise)
    torch.testing.assert_close(result, expected, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("window", [3, 7, 9])
def test_depthwise_filters_that_are_more_than_the_image_are_laid_out_channels_last_too(window):
    x, weight = torch.randn(2, 16, 2, 2), torch.randn(16, 1, window, window)
    pad = [window // 2] * 2

    settings = [1, 1], pad, [1, 1], False, [0, 0], 16

    def function(call, x, weight):
        return [call(aten.convolution.default, x, weight, None, *settings)]

    program = planned_for_the_cpu(function, x, weight)
    (call,) = (step for step in program.schedule.steps if isinstance(step, OperatorCall))
    assert is_channels_last(call.args[0])
    (result,) = run_program(program, [x, weight])
    torch.testing.assert_close(result, aten.convolution(x, weight, None, *settings))


def depthwise_backward(x, weight, settings, mask):
    """The program of a depthwise convolution's gradients on a CPU, its results and eager's."""
    biases = [len(weight)]
    result = aten.convolution(x, weight, None, *settings)
    grad = torch.randn_like(result)
    wanted = [number for number in range(3) if mask[number]]

    def function(call, grad, x, weight):
        made = call(aten.convolution_backward.default, grad, x, weight, biases, *settings, mask)
        return [call(operator.getitem, made, number) for number in wanted]

    inputs = grad, x, weight
    program = planned_for_the_cpu(function, *inputs)
    expected = aten.convolution_backward(*inputs, biases, *settings, mask)
    return program, run_program(program, inputs), [expected[number] for number in wanted]


@pytest.mark.parametrize(
    ("window", "step", "pad", "dilation"),
    [
        ((5, 5), 1, (2, 2), 1),
        ((7, 5), 2, (3, 1), 1),
        ((1, 5), 1, (0, 2), 1),
        ((3, 3), 1, (2, 2), 2),
        ((4, 4), 4, (0, 0), 1),
        ((3, 3), 1, (2, 2), 1),
        ((9, 9), 1, (4, 4), 1),  # larger than the images
        ((3, 3), 2, (1, 1), 1),  # images of few pixels
    ],
)
@pytest.mark.parametrize("mask", [[True, True, True], [False, True, False]])
def test_gradients_of_large_depthwise_filters_are_sums_of_our_own(
    window, step, pad, dilation, mask
):
    """The library's scratch memory would be 256 times the filters."""
    x, weight = torch.randn(2, 24, 8, 9), torch.randn(24, 1, *window)
    settings = ([step, step], list(pad), [dilation, dilation], False, [0, 0], 24)
    program, results, expected = depthwise_backward(x, weight, settings, mask)
    calls = [step for step in program.schedule.steps if isinstance(step, OperatorCall)]
    assert [call.args[-1] for call in calls] == ([(True, False, False)] if mask[0] else [])
    for ours, theirs in zip(results, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
        assert ours.stride() == theirs.stride()


@pytest.mark.parametrize(
    ("window", "extent", "transposed"),
    [((3, 3), 24, False), ((5, 5), 8, True), ((5, 5), 96, False)],
)
def test_other_depthwise_filters_gradients_are_the_librarys(window, extent, transposed):
    """It has kernels for three columns; past the second cache one walk for each place of the window is too many."""
    x, weight = torch.randn(1, 4, extent, extent), torch.randn(4, 1, *window)
    settings = ([1, 1], [1, 1], [1, 1], transposed, [0, 0], 4)
    program, results, expected = depthwise_backward(x, weight, settings, [False, True, False])
    assert any(isinstance(step, OperatorCall) for step in program.schedule.steps)
    torch.testing.assert_close(results[0], expected[0], atol=1e-3, rtol=1e-4)


def test_other_convolutions_on_a_cpu_keep_the_callers_layout():
    x, weight = torch.randn(2, 4, 8, 8), torch.randn(4, 4, 3, 3)
    program = planned_for_the_cpu(two_convolutions, x, weight, weight)
    calls = [step for step in program.schedule.steps if isinstance(step, OperatorCall)]
    assert not any(is_channels_last(call.args[0]) for call in calls)


@pytest.mark.parametrize(("channels", "square"), [(3, False), (64, True)])
def test_few_channels_are_turned_without_tiles(channels, square):
    def function(call, x):
        return [call(aten.clone.default, x, memory_format=torch.channels_last)]

    x = torch.randn(2, channels, 40, 40)
    program = planned(function, x)
    (kernel,) = program.schedule.steps
    assert (choose_blocks(kernel, H200).columns > 1) == square
    (result,) = run_program(program, (x,))
    assert torch.equal(result, x)
    assert result.is_contiguous(memory_format=torch.channels_last)
