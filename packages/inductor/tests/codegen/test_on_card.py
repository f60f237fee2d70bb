"""Kernels on a real card against eager on the same card: what Triton's interpreter can't vouch for.

The interpreter computes with NumPy; the compiled code has its own signed zeros, roundings and reductions.
"""

import operator

import pytest
import torch
from torch.fx import Graph, GraphModule

from inductor import compile_fx
from inductor.ir import Kernel
from inductor.options import InductorOptions
from primtorch.fake import ShapeContext, fakeify

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
aten = torch.ops.aten
OPTIONS = InductorOptions(strict=True, verify=True)
NAN, INF = float("nan"), float("inf")
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -3.5, 1e-8, -1e-8, 30.0, -30.0, INF, -INF, NAN]
UNARY = [
    "neg", "abs", "sin", "cos", "tan", "tanh", "asin", "atan", "sinh", "cosh", "asinh", "exp", "exp2", "expm1", "log",
    "log1p", "log2", "sqrt", "rsqrt", "floor", "ceil", "round", "trunc", "sigmoid", "erf", "reciprocal", "sign", "relu",
]  # fmt: skip
BINARY = [
    "add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "fmod.Tensor", "remainder.Tensor", "pow.Tensor_Tensor",
    "atan2.default", "copysign.Tensor", "maximum.default", "minimum.default", "floor_divide.default",
]  # fmt: skip


def compiled(function, *inputs, options=OPTIONS, static=()):
    """`function(call, *nodes)` compiled for the card, and what eager makes of the same calls."""
    context = ShapeContext()
    graph = Graph()
    nodes, real = [], {}
    for number, tensor in enumerate(inputs):
        node = graph.placeholder(f"x{number}")
        node.meta["val"] = fakeify(tensor, context)
        node.meta["input"] = {"kind": "argument", "name": node.name, "static": number in static}
        nodes.append(node)
        real[node] = tensor

    def call(target, *args, **kwargs):
        node = graph.call_function(target, args, kwargs)
        values = torch.fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
        node.meta["val"] = target(*values[0], **values[1])
        eager = torch.fx.node.map_arg((args, kwargs), real.__getitem__)
        real[node] = target(*eager[0], **eager[1])
        return node

    results = tuple(function(call, *nodes))
    graph.output(results)
    module = GraphModule(torch.nn.Module(), graph)
    module.meta |= {"wire": 1, "role": "inference"}
    run = compile_fx(module, [node.meta["val"] for node in nodes], options=options)
    return run, [real[node] for node in results]


def check(function, *inputs, rtol, atol, own=True):
    run, expected = compiled(function, *inputs)
    if own:
        assert not run.program.library_calls
    for ours, theirs in zip(run(list(inputs)), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol, equal_nan=True)
        assert ours.stride() == theirs.stride()
        if own and theirs.is_floating_point():
            zero = theirs == 0
            assert torch.equal(torch.signbit(ours)[zero], torch.signbit(theirs)[zero])


def tolerances(dtype):
    return {
        torch.float32: (2e-5, 1e-6),
        torch.float64: (1e-9, 1e-12),
        torch.bfloat16: (1e-2, 1e-3),
    }[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", UNARY)
def test_unary(name, dtype):
    x = torch.cat([torch.tensor(SPECIAL), torch.randn(500) * 2]).to("cuda", dtype)
    rtol, atol = tolerances(dtype)
    check(lambda call, x: [call(getattr(aten, name).default, x)], x, rtol=rtol, atol=atol)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", BINARY)
def test_binary(name, dtype):
    grid = torch.tensor(SPECIAL)
    x = torch.cat([grid.repeat_interleave(len(grid)), torch.randn(400) * 3]).to("cuda", dtype)
    y = torch.cat([grid.repeat(len(grid)), torch.randn(400)]).to("cuda", dtype)
    packet, overload = name.split(".")
    target = getattr(getattr(aten, packet), overload)
    rtol, atol = tolerances(dtype)
    check(lambda call, x, y: [call(target, x, y)], x, y, rtol=rtol, atol=atol)


@pytest.mark.parametrize("shape", [(7, 300), (600, 4096), (3, 50257), (2, 200000)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_softmax_of_rows(shape, dtype):
    x = torch.randn(shape, device="cuda", dtype=dtype)

    def softmax(call, x):
        high = call(aten.amax.default, x, [-1], True)
        shifted = call(aten.exp.default, call(aten.sub.Tensor, x, high))
        return [call(aten.div.Tensor, shifted, call(aten.sum.dim_IntList, shifted, [-1], True))]

    rtol, atol = (1e-5, 1e-7) if dtype is torch.float32 else (2e-2, 1e-5)
    check(softmax, x, rtol=rtol, atol=atol)


@pytest.mark.parametrize("shape", [(5000, 64), (40000, 24), (129, 2048), (70001, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_statistics_of_columns(shape, dtype):
    x = (torch.randn(shape, device="cuda") * 2 + 3).to(dtype)

    def normal(call, x):
        wide = x if dtype is torch.float64 else call(aten._to_copy.default, x, dtype=torch.float32)
        both = call(aten.var_mean.correction, wide, [0], correction=0, keepdim=True)
        variance, mean = (call(operator.getitem, both, number) for number in range(2))
        scale = call(aten.rsqrt.default, call(aten.add.Tensor, variance, 1e-5))
        return [call(aten.mul.Tensor, call(aten.sub.Tensor, wide, mean), scale), variance, mean]

    rtol, atol = (1e-9, 1e-9) if dtype is torch.float64 else (1e-4, 1e-4)
    check(normal, x, rtol=rtol, atol=atol)


def test_images_go_through_convolutions_channels_last_and_come_out_as_they_went_in():
    x = torch.randn(4, 3, 32, 32, device="cuda").bfloat16()
    first = (torch.randn(16, 3, 3, 3, device="cuda") / 5).bfloat16()
    second = (torch.randn(16, 1, 5, 5, device="cuda") / 5).bfloat16()
    rest = ([1, 1], [1, 1], [1, 1], False, [0, 0])

    def network(call, x, first, second):
        hidden = call(aten.relu.default, call(aten.convolution.default, x, first, None, *rest, 1))
        pooled = call(aten.max_pool2d_with_indices.default, hidden, [3, 3], [2, 2], [1, 1])
        values, places = (call(operator.getitem, pooled, number) for number in range(2))
        return [call(aten.convolution.default, values, second, None, *rest, 16), values, places]

    run, expected = compiled(network, x, first, second)
    for ours, theirs in zip(run([x, first, second])[:2], expected[:2], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=3e-2, atol=3e-2)
        assert ours.stride() == theirs.stride()


def test_products_whose_sizes_fill_no_sixteen_bytes():
    torch.full((1 << 26,), NAN, device="cuda")  # memory that is used again: padding must not count
    x = (torch.randn(96, 1001, device="cuda") / 30).bfloat16()
    weight, bias = (
        torch.randn(1001, 517, device="cuda").bfloat16(),
        torch.randn(517, device="cuda").bfloat16(),
    )

    def products(call, x, weight, bias):
        hidden = call(aten.addmm.default, bias, x, weight)
        back = call(aten.mm.default, call(aten.relu.default, hidden), call(aten.t.default, weight))
        return [hidden, back]

    check(
        products, x, weight, bias, rtol=5e-2, atol=5e-1, own=False
    )  # sums of 517 rounded products


REPLAYING = InductorOptions(strict=True, verify=True, cuda_graphs=True)


def linear(call, x, weight):
    return [call(aten.relu.default, call(aten.mm.default, x, weight))]


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize(
    ("rows", "columns", "bias"),
    [
        (4, 50257, False),
        (512, 30522, True),
        (4096, 50257, False),
        (4096, 30522, True),
        (1000, 5003, True),
    ],
)
def test_logits_take_no_memory_beside_themselves(rows, columns, bias, graphs):
    """Their parts lie inside them, where nothing is written yet, and in spent rows of the operand."""
    half = {"dtype": torch.bfloat16, "device": "cuda"}
    tokens, weight = torch.randn(rows, 768, **half), torch.randn(columns, 768, **half) / 28
    added = torch.randn(columns, **half)

    def logits(call, x, w, b):
        x, w = call(aten.neg.default, x), call(aten.t.default, w)
        made = call(aten.addmm.default, b, x, w) if bias else call(aten.mm.default, x, w)
        return (made,)

    options = InductorOptions(strict=True, verify=True, cuda_graphs=graphs)
    run, (expected,) = compiled(logits, tokens, weight, added, options=options)
    for _ in range(3):
        (made,) = run([tokens, weight, added])
        torch.testing.assert_close(made, expected, rtol=2e-2, atol=2e-2)
        assert made.stride() == expected.stride()
        torch.full((1 << 28,), float("nan"), device="cuda")  # what comes next from the allocator
    if graphs:
        return
    del made
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    made = run([tokens, weight, added])
    torch.cuda.synchronize()
    assert len(made) == 1
    own = (rows * columns + rows * 768) * 2
    assert torch.cuda.max_memory_allocated() - before <= 1.02 * own + (2 << 20)


def test_a_replay_reads_new_inputs_and_leaves_earlier_results_alone():
    weight = torch.randn(64, 32, device="cuda")
    first = torch.randn(16, 64, device="cuda")
    run, _ = compiled(linear, first, weight, options=REPLAYING, static=(1,))
    results, inputs = [], [torch.randn(16, 64, device="cuda") for _ in range(6)]
    for x in inputs:
        results += run([x, weight])
    for x, result in zip(inputs, results, strict=True):
        torch.testing.assert_close(result, (x @ weight).relu(), rtol=1e-4, atol=1e-4)
    other = torch.randn_like(weight)
    for _ in range(3):  # another parameter is another recording
        (result,) = run([first, other])
        torch.testing.assert_close(result, (first @ other).relu(), rtol=1e-4, atol=1e-4)
    weight.mul_(2)  # the same parameter with other values is not
    (result,) = run([first, weight])
    torch.testing.assert_close(result, (first @ weight).relu(), rtol=1e-4, atol=1e-4)


def test_inside_somebody_elses_recording_the_program_is_launched():
    weight, x = torch.randn(64, 32, device="cuda"), torch.randn(16, 64, device="cuda")
    run, _ = compiled(linear, x, weight, options=REPLAYING, static=(1,))
    for _ in range(3):
        run([x, weight])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (result,) = run([x, weight])
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.testing.assert_close(result, (x @ weight).relu(), rtol=1e-4, atol=1e-4)


def test_a_program_compiled_inside_somebody_elses_recording_is_recorded():
    x = torch.randn(1000, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run, _ = compiled(lambda call, x: [call(aten.mul.Tensor, call(aten.sin.default, x), 3)], x)
        (result,) = run([x])
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.testing.assert_close(result, x.sin() * 3)


@pytest.mark.parametrize("length", [2**31 - 3, 2**31 + 9])
def test_more_elements_than_32_bits_count(length):
    if torch.cuda.mem_get_info()[1] < 40 << 30:
        pytest.skip("needs a card of 40 GiB")
    x = torch.zeros(length, dtype=torch.int8, device="cuda")
    x[-1], x[length // 2] = 3, 5
    run, (expected,) = compiled(lambda call, x: [call(aten.add.Tensor, x, 1)], x)
    (ours,) = run([x])
    assert torch.equal(ours, expected)


def test_the_gradient_of_max_pooling_is_gathered():
    x = torch.randn(4, 16, 31, 33, device="cuda").to(memory_format=torch.channels_last)
    arguments = ([3, 3], [2, 2], [1, 1], [1, 1])
    out, places = aten.max_pool2d_with_indices(x, *arguments)
    check(
        lambda call, grad, x, places: [
            call(aten.max_pool2d_with_indices_backward.default, grad, x, *arguments, False, places)
        ],
        torch.randn_like(out),
        x,
        places,
        rtol=1e-5,
        atol=1e-5,
    )


def _total_and_columns(call, x):
    return [
        call(aten.sum.default, x),
        call(aten.var.correction, x, [0], correction=0),
        call(aten.amax.default, call(aten.sum.dim_IntList, x, [1]), [0]),
    ]


@pytest.mark.parametrize("shape", [(5000, 48), (300, 7000), (20000, 16)])
def test_the_last_program_finishes_a_reduction_the_same_way_each_time(shape):
    """Three calls, two streams at once, a recorded graph that is replayed: counters are found as they were left."""
    torch.manual_seed(0)
    x = torch.randn(shape, device="cuda")
    run, expected = compiled(_total_and_columns, x)
    steps = run.program.schedule.steps
    assert any(isinstance(step, Kernel) and step.ending is not None for step in steps)
    first = run([x])
    for ours, theirs in zip(first, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-2)
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    found = [run([x]) for _ in range(3)]
    for _ in range(20):
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append(run([x]))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = run([x])
    for _ in range(3):
        graph.replay()
        found.append([result.clone() for result in recorded])
    torch.cuda.synchronize()
    for results in found:
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(results, first, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(9, 256, 56, 56), (10, 1024, 28, 28), (10, 128, 83, 84)])
def test_a_group_norm_is_one_kernel(shape, dtype):
    """Rows of channels: by large pieces, by small ones, by blocks that channels don't fill."""
    torch.manual_seed(0)
    batch, channels, height, width = shape
    x = torch.randn(shape, device="cuda", dtype=dtype)
    weight = torch.randn(channels, device="cuda", dtype=dtype)

    def norm(call, x, weight):
        wide = call(aten._to_copy.default, x, dtype=torch.float32)
        rows = call(aten.view.default, wide, [batch, 32, channels // 32 * height * width])
        mean = call(aten.mean.dim, rows, [2], True)
        left = call(aten.sub.Tensor, rows, mean)
        square = call(aten.mean.dim, call(aten.mul.Tensor, left, left), [2], True)
        scaled = call(aten.mul.Tensor, left, call(aten.rsqrt.default, square))
        back = call(aten.view.default, scaled, list(shape))
        own = call(aten.view.default, weight, [1, channels, 1, 1])
        made = call(aten.mul.Tensor, back, own)
        return [call(aten._to_copy.default, made, dtype=dtype)]

    run, (expected,) = compiled(norm, x, weight)
    assert len([s for s in run.program.schedule.steps if isinstance(s, Kernel)]) == 1
    (found,) = run([x, weight])
    rtol, atol = (1e-4, 1e-4) if dtype is torch.float32 else (2e-2, 2e-2)
    torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)
