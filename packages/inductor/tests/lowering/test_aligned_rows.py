"""Rows of half types on a GPU begin at 16 bytes: the library's products are three times faster there."""

import pytest
import torch
from torch.fx import Graph, GraphModule

from inductor import InductorOptions
from inductor.codegen.program import compile_program
from inductor.ir import Kernel, OperatorCall
from inductor.ir.execute import run_program
from inductor.lowering import product as products
from inductor.lowering.builder import Builder, aligned_rows
from inductor.pipeline import plan
from inductor.runtime.launch import native_launcher
from inductor.runtime.settings import BuildSettings
from inductor.schedule import inside
from primtorch.fake import FakeTensor, ShapeContext, TensorMeta

aten = torch.ops.aten
CUDA, CPU, BF16 = torch.device("cuda", 0), torch.device("cpu"), torch.bfloat16


@pytest.fixture(autouse=True)
def _many_rows(monkeypatch):
    """The 64 rows here stand for thousands."""
    for name in ("STRAIGHT_ROWS", "STRAIGHT_LEAVING", "STRAIGHT_TAIL"):
        monkeypatch.setattr(products, name, 16)


@pytest.mark.parametrize(
    ("columns", "dtype", "device", "expected"),
    [
        (30522, BF16, CUDA, 30528),
        (30528, BF16, CUDA, 30528),
        (30522, torch.float32, CUDA, 30522),
        (30522, BF16, CPU, 30522),
        (7, BF16, CUDA, 7),
    ],
)
def test_columns(columns, dtype, device, expected):
    assert Builder().padded(columns, dtype, device) == expected


def test_rows():
    assert aligned_rows((2, 64, 30522), (64 * 30522, 30522, 1), 30528) == (64 * 30528, 30528, 1)
    assert aligned_rows((64, 30522), (1, 64), 30528) == (1, 64), "other layouts stay"


def logits_graph(device=CUDA, *, consumed=True, tied=False, columns=1001, depth=32, made=False):
    """Logits with a bias, returned, and their exponentials consumed by another product.

    `tied`: the weight is a transposed embedding, whose columns lie one after another; `made`: the tokens are computed.
    """
    context = ShapeContext()
    graph = Graph()

    def value(shape):
        meta = TensorMeta(shape, torch.empty(shape, device="meta").stride(), BF16, device)
        node = graph.placeholder(f"x{len(graph.nodes)}")
        node.meta["val"] = FakeTensor.create(meta, context)
        node.meta["input"] = {"kind": "argument", "name": node.name, "static": False}
        return node

    def call(operator, *args):
        node = graph.call_function(operator, args)
        values = torch.fx.node.map_arg(args, lambda n: n.meta["val"])
        node.meta["val"] = operator(*values)
        return node

    tokens, bias = value((64, depth)), value((columns,))
    weight = call(aten.t.default, value((columns, depth))) if tied else value((depth, columns))
    tokens = call(aten.neg.default, tokens) if made else tokens
    logits = call(aten.addmm.default, bias, tokens, weight)
    if not consumed:
        graph.output((call(aten.view.default, logits, [8, 8, columns]),))
        module = GraphModule(torch.nn.Module(), graph)
        module.meta["wire"] = 1
        return module
    scaled = call(aten.exp.default, logits)
    back = call(aten.mm.default, scaled, call(aten.t.default, weight))
    graph.output((logits, back))
    module = GraphModule(torch.nn.Module(), graph)
    module.meta["wire"] = 1
    return module


def test_products_write_and_read_padded_rows_and_outputs_keep_eagers_layout():
    program = plan(logits_graph(), InductorOptions(strict=True, verify=True))
    calls = [step for step in program.schedule.steps if isinstance(step, OperatorCall)]
    assert [call.operator for call in calls] == [aten.mm.default, aten.mm.default]
    product, back = calls
    assert program.graph.buffers[product.outputs[0]].shape == (64, 1008)
    assert [view.shape for view in back.views()] == [(64, 1008), (1008, 32)]
    assert program.graph.outputs[0].stride == (1001, 1)
    assert any(isinstance(step, Kernel) for step in program.schedule.steps)


def _fill_memory_with_nan():
    for rows in (64, 1008, 40, 608):
        torch.full((rows, 1008), float("nan"), dtype=BF16)


def test_values_are_those_of_the_unpadded_products():
    module = logits_graph(CPU)
    program = plan(module, InductorOptions(strict=True, verify=True, executor="triton_interpreter"))
    _fill_memory_with_nan()  # what lies behind the rows must not count
    tokens, weight = torch.randn(64, 32).to(BF16), (torch.randn(32, 1001) / 32).to(BF16)
    bias = torch.randn(1001).to(BF16)
    logits, back = run_program(program, (tokens, bias, weight))
    expected = torch.addmm(bias, tokens, weight)
    torch.testing.assert_close(logits, expected, rtol=2e-2, atol=2e-2)
    assert logits.stride() == expected.stride()
    torch.testing.assert_close(back, expected.exp() @ weight.t(), rtol=5e-2, atol=5e-2)


def _calls(program):
    return [step for step in program.schedule.steps if isinstance(step, OperatorCall)]


def _operands(columns, depth, *, tied):
    weight = torch.randn(columns, depth) / depth if tied else torch.randn(depth, columns) / depth
    return torch.randn(64, depth).to(BF16), torch.randn(columns).to(BF16), weight.to(BF16)


def _expected(tokens, bias, weight, *, tied):
    logits = torch.addmm(bias, tokens, weight.t() if tied else weight)
    return logits.view(8, 8, logits.shape[1])


@pytest.mark.parametrize(
    ("columns", "rows", "last"), [(1001, [24, 16, 8, 16], 1008), (1002, [24, 16, 8, 16], 1002)]
)
def test_large_results_that_leave_are_made_in_parts(monkeypatch, columns, rows, last):
    """Else the padded result and the caller's stand in memory together."""
    monkeypatch.setattr("inductor.schedule.fusion.LONGEST_WAIT", 1000)
    options = InductorOptions(strict=True, verify=True)
    program = plan(logits_graph(consumed=False, columns=columns), options)
    calls = _calls(program)
    assert [call.args[0].shape for call in calls] == [(count, 32) for count in rows]
    strides = [program.graph.buffers[call.outputs[0]].stride[0] for call in calls]
    assert strides == [1008, 1008, 1008, last]
    last_use = {name: at for at, names in enumerate(program.memory.release) for name in names}
    for call in calls:
        at = program.schedule.steps.index(call)
        assert isinstance(program.schedule.steps[at + 1], Kernel), "copied at once"
        assert last_use[call.outputs[0]] == at + 1
    options = InductorOptions(strict=True, verify=True, executor="triton_interpreter")
    program = plan(logits_graph(CPU, consumed=False, columns=columns), options)
    operands = _operands(columns, 32, tied=False)
    (logits,) = run_program(program, operands)
    expected = _expected(*operands, tied=False)
    torch.testing.assert_close(logits, expected, rtol=2e-2, atol=2e-2)
    assert logits.stride() == expected.stride()


@pytest.mark.parametrize("columns", [1001, 1002])
def test_a_weight_whose_columns_lie_one_after_another_is_not_copied(columns):
    """BERT's inference peaked 4% above eager's: a copy of the decoder's weight, and larger parts of the logits."""
    options = InductorOptions(strict=True, verify=True, executor="triton_interpreter")
    program = plan(logits_graph(CPU, consumed=False, tied=True, columns=columns), options)
    calls = _calls(program)
    shapes = [tuple(view.shape for view in call.views()) for call in calls]
    counts, left = products._part_rows(64, columns, 1000, 32)
    few, end = (64, (32, 1000)) if columns % 2 else (64 - left, (32, 1002))
    parts = [((count, 32), (32, 1000)) for count in counts]
    assert shapes == [*parts, ((few, 32), (32, 8)), ((left, 32), end)]
    inputs = {entry.name for entry in program.graph.inputs}
    assert all(view.buffer in inputs for call in calls for view in call.views())
    operands = _operands(columns, 32, tied=True)
    (logits,) = run_program(program, operands)
    expected = _expected(*operands, tied=True)
    torch.testing.assert_close(logits, expected, rtol=2e-2, atol=2e-2)
    assert logits.stride() == expected.stride()


@pytest.mark.parametrize("consumed", [False, True])
def test_few_rows_are_made_without_a_copy_of_the_weight(monkeypatch, consumed):
    """BERT's inference of 4 x 128 peaked 11% above eager's: 47 MB were a copy of the decoder's weight."""
    monkeypatch.setattr(products, "STRAIGHT_ROWS" if consumed else "STRAIGHT_LEAVING", 64)
    module = logits_graph(consumed=consumed, tied=True, columns=1002)
    program = plan(module, InductorOptions(strict=True, verify=True))
    call = _calls(program)[0]
    assert call.operator is aten.addmm.default
    assert [view.shape for view in call.views()] == [(1002,), (64, 32), (32, 1002)]
    assert program.graph.buffers[call.outputs[0]].stride == (1002, 1)
    assert program.graph.outputs[0].buffer == call.outputs[0]


def test_parts_are_whole_tiles_of_the_library_and_the_last_fits_into_the_rows_before_it(
    monkeypatch,
):
    monkeypatch.setattr(products, "STRAIGHT_TAIL", 160)
    bert, gpt2 = (
        products._part_rows(16384, 30522, 30520, 768),
        products._part_rows(8192, 50257, 50256, 768),
    )
    assert bert == ([8192, 4096, 2048, 1024, 512, 256, 128], 128)
    assert gpt2 == ([4096, 2048, 1024, 512, 256, 128, 64], 64)
    assert products._part_rows(4, 50257, 50256, 768) == ([], 4)
    for rows in range(1, 3000, 7):
        counts, left = products._part_rows(rows, 5003, 5000, 64)
        assert sum(counts) + left == rows
        assert all(count % 8 == 0 for count in counts)


@pytest.mark.parametrize(
    ("tied", "columns", "made"),
    [(False, 1002, False), (True, 1002, False), (False, 1001, True), (True, 1001, True)],
)
def test_parts_lie_inside_the_result_that_they_are_copied_into(monkeypatch, tied, columns, made):
    """GPT-2's inference peaked 1.2% above eager's: a part of the padded logits beside the logits."""
    monkeypatch.setattr(inside, "SMALLEST", 10_000)
    monkeypatch.setattr("inductor.schedule.fusion.LONGEST_WAIT", 1000)
    options = InductorOptions(strict=True, verify=True, executor="triton_interpreter")
    depth = 512
    module = logits_graph(CPU, consumed=False, tied=tied, columns=columns, depth=depth, made=made)
    program = plan(module, options)
    places, calls = program.memory.places, _calls(program)
    parts = [call.outputs[0] for call in calls if call.args[1].shape[1] > 8]
    assert [places[name].kind for name in parts] == ["inside"] * len(parts)
    result = program.graph.outputs[0].buffer
    last = calls[-1].args[0].buffer if made else result
    assert [places[name].of for name in parts] == [result] * (len(parts) - 1) + [last]
    before = 64 - calls[-1].args[0].shape[0]
    assert places[parts[-1]].offset == (0 if made else before * columns * 2)
    run = compile_program(program, module, BuildSettings.from_environment(), strict=True)
    tokens, bias, weight = _operands(columns, depth, tied=tied)
    with torch.profiler.profile(profile_memory=True) as profile:
        (logits,) = run([tokens, bias, weight])
    taken = {event.self_cpu_memory_usage for event in profile.events()}
    sizes = {
        2 * program.graph.buffers[name].shape[0] * program.graph.buffers[name].stride[0]
        for name in parts
    }
    assert native_launcher() is None or (64 * columns * 2 in taken and not sizes & taken)
    expected = _expected(-tokens if made else tokens, bias, weight, tied=tied)
    torch.testing.assert_close(logits, expected, rtol=2e-2, atol=2e-2)
    assert logits.untyped_storage().nbytes() == expected.untyped_storage().nbytes()


def test_what_another_operator_reads_is_made_whole():
    program = plan(logits_graph(), InductorOptions(strict=True, verify=True))
    calls = [step for step in program.schedule.steps if isinstance(step, OperatorCall)]
    assert [call.args[0].shape[0] for call in calls] == [64, 64]


def test_a_gradient_of_padded_logits_is_summed_into_rows_behind_which_there_is_room():
    context = ShapeContext()
    graph = Graph()
    nodes = []
    for shape in ((40, 601), (40, 16)):
        node = graph.placeholder(f"x{len(nodes)}")
        meta = TensorMeta(shape, (shape[1], 1), BF16, CPU)
        node.meta["val"] = FakeTensor.create(meta, context)
        node.meta["input"] = {"kind": "argument", "name": node.name, "static": False}
        nodes.append(node)

    def call(operator, *args):
        node = graph.call_function(operator, args)
        node.meta["val"] = operator(*torch.fx.node.map_arg(args, lambda n: n.meta["val"]))
        return node

    grad = call(aten.neg.default, call(aten.exp.default, nodes[0]))
    weight_grad = call(aten.mm.default, call(aten.t.default, grad), nodes[1])
    graph.output((weight_grad, call(aten.sum.dim_IntList, grad, [0])))
    module = GraphModule(torch.nn.Module(), graph)
    module.meta["wire"] = 1
    program = plan(module, InductorOptions(strict=True, verify=True, executor="triton_interpreter"))
    (product,) = (step for step in program.schedule.steps if isinstance(step, OperatorCall))
    assert program.graph.buffers[product.outputs[0]].shape == (608, 16)
    x, tokens = torch.randn(40, 601).to(BF16), torch.randn(40, 16).to(BF16)
    result, _ = run_program(program, (x, tokens))
    torch.testing.assert_close(result, (-x.exp()).t() @ tokens, rtol=5e-2, atol=1e-1)
    assert result.shape == (601, 16)
    assert result.stride() == (16, 1)
