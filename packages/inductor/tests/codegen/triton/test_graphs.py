"""Whole graphs through the Triton code generator, run in Triton's interpreter and compared with eager."""

import operator

import pytest
import torch
from torch.fx import Graph, GraphModule

from inductor import compile_fx
from inductor.devices.gpu import triton_source
from inductor.ir.machine import H200
from inductor.options import InductorOptions
from inductor.pipeline import plan
from inductor.schedule.blocks import choose_blocks

aten = torch.ops.aten
OPTIONS = InductorOptions(executor="triton_interpreter", strict=True, verify=True)


def trace(function, *inputs):
    """A wire-3 graph of aten calls, its `val`s taken from a real run."""
    from primtorch.fake import ShapeContext, fakeify

    context = ShapeContext()
    graph = Graph()
    nodes = []
    for number, tensor in enumerate(inputs):
        node = graph.placeholder(f"x{number}")
        node.meta["val"] = fakeify(tensor, context)
        node.meta["input"] = {"kind": "argument", "name": f"x{number}", "static": False}
        nodes.append(node)

    def call(operator, *args, **kwargs):
        values = torch.fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
        node = graph.call_function(operator, args, kwargs)
        node.meta["val"] = operator(*values[0], **values[1])
        return node

    results = function(call, *nodes)
    graph.output(tuple(results))
    gm = GraphModule(torch.nn.Module(), graph)
    gm.meta["wire"] = 1
    gm.meta["role"] = "inference"
    return gm


def softmax(call, x):
    high = call(aten.amax.default, x, [-1], True)
    shifted = call(aten.exp.default, call(aten.sub.Tensor, x, high))
    return [call(aten.div.Tensor, shifted, call(aten.sum.dim_IntList, shifted, [-1], True))]


def norm_and_columns(call, x, weight, grad):
    mean = call(aten.mean.dim, x, [-1], True)
    centred = call(aten.sub.Tensor, x, mean)
    variance = call(aten.mean.dim, call(aten.mul.Tensor, centred, centred), [-1], True)
    scale = call(aten.rsqrt.default, call(aten.add.Tensor, variance, 1e-5))
    normal = call(aten.mul.Tensor, centred, scale)
    weight_grad = call(aten.sum.dim_IntList, call(aten.mul.Tensor, grad, normal), [0])
    return [
        call(aten.mul.Tensor, normal, weight),
        weight_grad,
        call(aten.sum.dim_IntList, grad, [0]),
    ]


def product_and_activation(call, x, weight, bias):
    product = call(aten.addmm.default, bias, x, weight)
    return [
        call(aten.mul.Tensor, product, call(aten.sigmoid.default, product)),
        call(aten.t.default, product),
    ]


def long_sum(call, x):
    return [call(aten.sum.default, x), call(aten.amax.default, x, [0], False)]


def gelu_backward_and_bias(call, x, grad):
    """A pointwise kernel over three dimensions whose result is also summed over the first two, in a half type."""
    slope = call(aten.mul.Tensor, grad, call(aten.sigmoid.default, x))
    flat = call(
        aten.view.default, slope, [-1, x.shape[-1]] if isinstance(x, torch.Tensor) else [-1, 48]
    )
    return [slope, call(aten.sum.dim_IntList, flat, [0])]


CASES = {
    "softmax": (softmax, [(5, 37)]),
    "norm": (norm_and_columns, [(70, 40), (40,), (70, 40)]),
    "product": (product_and_activation, [(9, 16), (16, 8), (8,)]),
    "long_sum": (long_sum, [(3000, 3)]),
    "bias": (gelu_backward_and_bias, [(4, 6, 48), (4, 6, 48)]),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", CASES)
def test_graph(name):
    function, shapes = CASES[name]
    inputs = [torch.randn(shape) for shape in shapes]
    expected = function(lambda operator, *args, **kwargs: operator(*args, **kwargs), *inputs)
    compiled = compile_fx(trace(function, *inputs), options=OPTIONS)
    actual = compiled(list(inputs))
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
        assert ours.stride() == theirs.stride()


STRANGE = {
    "erfinv outside its domain": (aten.erfinv.default, torch.tensor([-2.0, -1.0, 0.3, 1.0, 1.5, torch.nan])),
    "powers of unsigned integers": (aten.pow.Tensor_Tensor, torch.tensor([0, 1, 2, 3, 7], dtype=torch.uint8)),
    "nothing to compute": (aten.fmod.Tensor, torch.zeros(0, 3, dtype=torch.int64)),
    "complex numbers": (aten.mul.Tensor, torch.tensor([1 + 2j, 3 - 1j])),
}  # fmt: skip


@pytest.mark.parametrize("name", STRANGE)
def test_operands_at_the_edges(name):
    """A complex operator is left to the library, the others in the same graph are not."""
    operator, x = STRANGE[name]
    operands = [x] if operator is aten.erfinv.default else [x, x]
    gm = trace(lambda call, *nodes: [call(operator, *nodes)], *operands)
    compiled = compile_fx(gm, options=OPTIONS)
    (found,) = compiled(list(operands))
    torch.testing.assert_close(found, operator(*operands), equal_nan=True)


def test_the_gradient_of_a_convolutions_bias_is_summed_by_our_own_kernel():
    grad, x = torch.randn(2, 8, 8, 8).bfloat16(), torch.randn(2, 4, 8, 8).bfloat16()
    weight = torch.randn(8, 4, 3, 3).bfloat16()
    arguments = ([8], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, True])

    def backward(call, grad, x, weight):
        made = call(aten.convolution_backward.default, grad, x, weight, *arguments)
        return [call(operator.getitem, made, number) for number in range(3)]

    gm = trace(backward, grad, x, weight)
    compiled = compile_fx(gm, [], options=OPTIONS)
    results = compiled([grad, x, weight])
    (call,) = compiled.program.library_calls
    assert call.args[-1] == (True, True, False)
    expected = aten.convolution_backward(grad, x, weight, *arguments)
    for ours, theirs in zip(results, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-1)
        assert ours.stride() == theirs.stride()


@pytest.mark.parametrize("executor", ["triton_interpreter", "native"])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int32, torch.int8], ids=str
)
@pytest.mark.parametrize("reduce", ["sum", "mean", "prod", "amax", "amin"])
def test_reductions_at_computed_places(reduce, dtype, executor):
    """Several values meet in one place, others are reached by none; NaN wins; -0 and infinities are numbers."""
    generator = torch.Generator().manual_seed(0)
    x, source = (
        (torch.randn(shape, generator=generator) * 4).to(dtype) for shape in ((5, 4), (9, 3))
    )
    index = torch.randint(0, 4, (9, 3), generator=generator)
    if dtype.is_floating_point:
        source[0, 0], source[1, 1], source[2, 2], x[3, 3] = torch.nan, torch.inf, -torch.inf, -0.0
    inputs = [x, index, source]

    def function(call, x, index, source):
        return [
            call(aten.scatter_reduce.two, x, 0, index, source, reduce, include_self=own)
            for own in (True, False)
        ]

    options = InductorOptions(executor=executor, strict=True, verify=True)
    compiled = compile_fx(trace(function, *inputs), options=options)
    expected = function(lambda operator, *args, **kwargs: operator(*args, **kwargs), *inputs)
    calls = compiled.program.library_calls
    assert bool(calls) == (executor == "triton_interpreter" and reduce == "prod")
    near = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {}
    for ours, theirs in zip(compiled(list(inputs)), expected, strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True, **near)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_a_concatenation_of_cheap_pieces_is_never_written(dtype):
    x = torch.randn(6, 10).to(dtype)

    def turned(call, x):
        left = call(aten.slice.Tensor, x, 1, 0, 4)
        right = call(aten.slice.Tensor, x, 1, 4, 10)
        both = call(aten.cat.default, [call(aten.neg.default, right), left], 1)
        return [call(aten.mul.Tensor, both, x)]

    program = plan(trace(turned, x), OPTIONS)
    assert len(program.schedule.steps) == 1
    (made,) = compile_fx(trace(turned, x), options=OPTIONS)([x])
    assert torch.equal(made, torch.cat([-x[:, 4:], x[:, :4]], 1) * x)


def test_a_long_sum_of_looked_up_values_is_divided_among_programs():
    table = torch.randn(700, 3)
    index = torch.randint(-3, 3, (700,))

    def looked_up(call, table, index):
        found = call(aten.gather.default, table, 1, call(aten.unsqueeze.default, index, 1))
        return [call(aten.sum.default, found)]

    index = index.abs().clamp(max=2).repeat(20)
    table = table.repeat(20, 1)
    program = plan(trace(looked_up, table, index), OPTIONS)
    assert len(program.schedule.steps) == 2
    (made,) = compile_fx(trace(looked_up, table, index), options=OPTIONS)([table, index])
    torch.testing.assert_close(made, table.gather(1, index[:, None]).sum())


def test_the_target_of_each_row_is_picked_where_the_row_is_reduced():
    width = 100

    def loss(call, x, target):
        high = call(aten.amax.default, x, [1], True)
        shifted = call(aten.sub.Tensor, x, high)
        total = call(aten.sum.dim_IntList, call(aten.exp.default, shifted), [1], True)
        logarithm = call(aten.sub.Tensor, shifted, call(aten.log.default, total))
        picked = call(aten.gather.default, logarithm, 1, call(aten.unsqueeze.default, target, 1))
        return [call(aten.neg.default, call(aten.sum.default, picked))]

    x, target = torch.randn(6, width), torch.randint(0, width, (6,))
    program = plan(trace(loss, x, target), OPTIONS)
    assert len(program.schedule.steps) == 2
    (made,) = compile_fx(trace(loss, x, target), options=OPTIONS)([x, target])
    expected = torch.nn.functional.cross_entropy(x, target, reduction="sum")
    torch.testing.assert_close(made, expected)


def test_erf_of_half_types_is_as_near_as_their_rounding():
    x = torch.cat([torch.linspace(-7, 7, 4001), torch.tensor([0.0, -0.0, 1e-7, float("inf")])])
    x = torch.cat([x, -x[-1:], torch.tensor([float("nan")])]).half()
    (made,) = compile_fx(trace(lambda call, x: [call(aten.erf.default, x)], x), options=OPTIONS)(
        [x]
    )
    torch.testing.assert_close(
        made, torch.erf(x.double()).half(), rtol=1e-3, atol=0, equal_nan=True
    )
    assert torch.equal(made.signbit()[:-1], x.signbit()[:-1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_gelu_of_half_types_keeps_its_negative_side(dtype):
    x = torch.cat([torch.linspace(-9, 9, 4001), torch.tensor([0.0, -0.0, 1e-7, -1e-7])])
    x = torch.cat([x, torch.tensor([float("inf"), float("nan")])]).to(dtype)

    def gelu(call, x):
        wide = call(aten._to_copy.default, x, dtype=torch.float32)
        erf = call(aten.erf.default, call(aten.mul.Tensor, wide, 0.5**0.5))
        sum_ = call(aten.add.Tensor, erf, 1)
        half = call(aten.mul.Tensor, wide, 0.5)
        made = call(aten.mul.Tensor, half, sum_)
        return [call(aten._to_copy.default, made, dtype=dtype)]

    (kernel,) = plan(trace(gelu, x), OPTIONS).schedule.steps
    assert "prelude.narrow_erf_plus_one(" in triton_source(kernel, H200).text
    (made,) = compile_fx(trace(gelu, x), options=OPTIONS)([x])
    exact = x.double() * 0.5 * torch.special.erfc(-x.double() * 0.5**0.5)
    step = torch.finfo(dtype).eps  # the interpreter cuts bfloat16 off
    torch.testing.assert_close(
        made[:-1].double(), exact[:-1], rtol=step + 1e-4, atol=1e-6, equal_nan=True
    )
    assert made[-1].isnan()


def test_rows_that_lie_across_memory_are_taken_several_at_once():
    grad = torch.randn(4, 40, 600)
    x = torch.randn(4, 600, 40)

    def backward(call, grad, x):
        turned = call(aten.permute.default, x, [0, 2, 1])
        product = call(aten.mul.Tensor, grad, turned)
        row = call(aten.sum.dim_IntList, product, [2], True)
        result = call(aten.mul.Tensor, turned, row)
        return [
            call(aten.add.Tensor, result, grad),
            call(aten.sum.dim_IntList, product, [0, 1]),
        ]

    program = plan(trace(backward, grad, x), OPTIONS)
    (first, *_) = program.schedule.steps
    blocks = choose_blocks(first, H200)
    assert (blocks.outer, blocks.adds_rows) == (16, True)
    ours = compile_fx(trace(backward, grad, x), options=OPTIONS)([grad, x])
    turned = x.transpose(1, 2)
    product = grad * turned
    expected = [turned * product.sum(2, keepdim=True) + grad, product.sum((0, 1))]
    for mine, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("rows", "row"), [(6, 300), (900, 30000)])
def test_what_does_not_wait_for_a_row_is_asked_for_before_it_is_reduced(rows, row):
    x, target = torch.randn(rows, row), torch.randint(row, (rows,))

    def loss(call, x, target):
        high = call(aten.amax.default, x, [1], True)
        power = call(aten.exp.default, call(aten.sub.Tensor, x, high))
        total = call(aten.log.default, call(aten.sum.dim_IntList, power, [1], True))
        picked = call(aten.gather.default, x, 1, call(aten.unsqueeze.default, target, 1))
        return [call(aten.sub.Tensor, call(aten.sub.Tensor, picked, high), total)]

    program = plan(trace(loss, x, target), OPTIONS)
    (kernel,) = program.schedule.steps
    text = triton_source(kernel, H200).text
    loads = [text.index(f"tl.load({parameter}") for parameter in ("p1", "p0")]
    picked = text.index("+ at") if "+ at" in text else text.rindex("tl.load(p0")
    ends = text.index("tl.reduce(", picked)
    assert loads[0] < loads[1] < picked < ends
    assert ends < text.index("tl.log(")
    if rows > 6:  # minutes in the interpreter
        return
    (made,) = compile_fx(trace(loss, x, target), options=OPTIONS)([x, target])
    expected = torch.log_softmax(x, 1).gather(1, target[:, None])
    torch.testing.assert_close(made, expected)
