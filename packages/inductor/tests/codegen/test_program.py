"""Call programs: the C launcher against its Python twin and against torch."""

import gc
import importlib.util
import logging
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from inductor.codegen.program import _Encoder, build_kernels, compile_program
from inductor.codegen.program_python import PythonLauncher
from inductor.ir import (
    BoundsCheck,
    Buffer,
    Graph,
    GraphInput,
    MemoryPlan,
    OperatorCall,
    Place,
    Program,
    Recorder,
    Schedule,
    View,
)
from inductor.runtime import BuildSettings, ReferenceCallable
from inductor.runtime.launch import Opcode, native_launcher
from primtorch.symbolic import Symbol

_SPEC = importlib.util.spec_from_file_location(
    "cpp_harness", Path(__file__).with_name("cpp_harness.py")
)
harness = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(harness)

pytestmark = pytest.mark.cxx
F32 = torch.float32
CPU = torch.device("cpu")
aten = torch.ops.aten


def contiguous(shape):
    strides, running = [], 1
    for extent in reversed(shape):
        strides.append(running)
        running = running * extent
    return tuple(reversed(strides))


def buffer(name, *shape, dtype=F32):
    return Buffer(name, shape, contiguous(shape), dtype, CPU)


def tensor_input(name):
    return GraphInput(name, "tensor")


@pytest.fixture
def settings(tmp_path):
    return BuildSettings(cache_directory=tmp_path)


@pytest.fixture(params=["native", "python"])
def build(request, settings):
    def make(program, reference=None):
        built = build_kernels(program, settings)
        module = reference or torch.fx.symbolic_trace(lambda x: (x,))
        fallback = ReferenceCallable(module)
        if request.param == "python":
            return PythonLauncher(program, built, fallback)
        native = native_launcher()
        if native is None:
            pytest.skip("the C launcher is not built")
        return _Encoder(program, built, native).launcher(fallback, module, settings)

    return make


def linear_relu_program(rows):
    """out = relu(x @ w.T + b); total = x.sum over rows kept in the arena, returned doubled."""
    symbolic = isinstance(rows, Symbol)
    buffers = [buffer("x", rows, 8), buffer("w", 6, 8), buffer("b", 6), buffer("product", rows, 6)]
    buffers += [buffer("out", rows, 6), buffer("sums", rows), buffer("doubled", rows)]
    weight = View("w", (8, 6), (1, 8), 0, F32)
    table = {item.name: item for item in buffers}
    call = OperatorCall(
        "mm",
        "vendor",
        aten.addmm.default,
        (table["b"].view, table["x"].view, weight),
        {},
        ("product",),
        "",
    )
    recorder = Recorder((rows, 6))
    row, column = recorder.outer
    value = recorder.load("product", row * 6 + column, F32)
    recorder.store(
        "out", row * 6 + column, recorder.op("maximum", value, recorder.constant(0.0, F32)), F32
    )
    relu = harness.make_kernel(recorder.finish(), sizes=(rows,) if symbolic else ())
    recorder = Recorder((rows,), (8,))
    (row,), (column,) = recorder.outer, recorder.inner
    recorder.stage("inner")
    total = recorder.reduce("sum", recorder.load("x", row * 8 + column, F32), dtype=F32)
    recorder.stage("outer")
    recorder.store("sums", row, total, F32)
    sums = harness.make_kernel(recorder.finish(), sizes=(rows,) if symbolic else ())
    recorder = Recorder((rows,))
    (row,) = recorder.outer
    value = recorder.load("sums", row, F32)
    recorder.store("doubled", row, recorder.op("add", value, value), F32)
    double = harness.make_kernel(recorder.finish(), sizes=(rows,) if symbolic else ())
    steps = []
    for name, kernel in (("relu", relu), ("sums", sums), ("double", double)):
        object.__setattr__(kernel, "name", name)
        steps.append(kernel)
    inputs = [GraphInput("n", "size", rows)] if symbolic else []
    inputs += [tensor_input("x"), tensor_input("w"), tensor_input("b")]
    outputs = (
        table["out"].view,
        View("out", (6, rows), (1, 6), 0, F32),
        table["doubled"].view,
        None,
        rows * 2,
        3.5,
    )
    graph = Graph("g", tuple(inputs), table, (), outputs)
    places = {
        "x": Place("input"),
        "w": Place("input"),
        "b": Place("input"),
        "product": Place("operator"),
    }
    places |= {"out": Place("output"), "sums": Place("arena", 64), "doubled": Place("output")}
    memory = MemoryPlan(
        places,
        rows * 4 + 64,
        ((), ("out",), (), ("doubled",)),
        (("w", "b"), ("product",), ("x",), ()),
    )
    return Program(graph, Schedule((call, *steps), ()), memory)


def expected(x, w, b):
    out = torch.relu(torch.addmm(b, x, w.t()))
    return out, out.t(), x.sum(1) * 2


@pytest.mark.parametrize("rows", [5, Symbol("s0", 2)])
def test_program_runs_operators_and_kernels(build, rows):
    call = build(linear_relu_program(rows))
    for count in (5,) if isinstance(rows, int) else (2, 7):
        x, w, b = torch.randn(count, 8), torch.randn(6, 8, requires_grad=True), torch.randn(6)
        arguments = [x, w, b] if isinstance(rows, int) else [count, x, w, b]
        out, turned, doubled, nothing, twice, constant = call(arguments)
        assert arguments == []
        for ours, theirs in zip((out, turned, doubled), expected(x, w, b), strict=True):
            torch.testing.assert_close(ours, theirs.detach())
            assert ours.stride() == theirs.stride()
            assert not ours.requires_grad
        assert (nothing, twice, constant) == (None, 2 * count, 3.5)
        assert (
            out.data_ptr() != turned.data_ptr()
        )  # an inference graph's outputs don't share memory
        assert torch.is_grad_enabled()


def test_released_inputs_and_outputs_leave_nothing_behind(build):
    call = build(linear_relu_program(5))
    x, w, b = torch.randn(5, 8), torch.randn(6, 8), torch.randn(6)
    alive = [weakref.ref(tensor) for tensor in (x, w, b)]
    arguments = [x, w, b]
    del x, w, b
    results = call(arguments)
    gc.collect()
    assert [reference() for reference in alive] == [None] * 3
    alive = [weakref.ref(tensor) for tensor in results[:3]]
    del results
    gc.collect()
    assert [reference() for reference in alive] == [None] * 3


def test_vendor_failure_raises_what_eager_raises(build):
    call = build(linear_relu_program(5))
    x, w, b = torch.randn(5, 8), torch.randn(6, 8), torch.randn(6, dtype=torch.float64)
    with pytest.raises(RuntimeError) as ours:
        call([x, w, b])
    with pytest.raises(RuntimeError) as theirs:
        torch.addmm(b, x, w.t())
    assert str(ours.value) == str(theirs.value)


def test_wrong_arguments_are_refused(build):
    call = build(linear_relu_program(5))
    with pytest.raises(TypeError, match="3 inputs"):
        call([torch.randn(5, 8)])


def gather_program():
    table, index, out = (
        buffer("table", 10, 4),
        buffer("index", 3, dtype=torch.int64),
        buffer("out", 3, 4),
    )
    recorder = Recorder((3, 4))
    row, column = recorder.outer
    check = BoundsCheck(
        "IndexError", "index {index} is out of bounds for dimension {dimension} with size {size}"
    )
    place = recorder.indirect(recorder.load("index", row, torch.int64), 10, wrap=True, check=check)
    recorder.store("out", row * 4 + column, recorder.load("table", place * 4 + column, F32), F32)
    kernel = harness.make_kernel(recorder.finish())
    buffers = {item.name: item for item in (table, index, out)}
    places = {"table": Place("input"), "index": Place("input"), "out": Place("output")}
    graph = Graph("g", (tensor_input("table"), tensor_input("index")), buffers, (), (out.view,))
    return Program(
        graph, Schedule((kernel,), ()), MemoryPlan(places, 0, (("out",),), (("table", "index"),))
    )


def test_index_out_of_bounds_raises_what_eager_raises(build):
    reference = torch.fx.symbolic_trace(lambda table, index: (aten.index.Tensor(table, [index]),))
    call = build(gather_program(), reference)
    table = torch.randn(10, 4)
    index = torch.tensor([1, -1, 9])
    torch.testing.assert_close(call([table, index])[0], table[index])
    bad = torch.tensor([1, 12, 0])
    with pytest.raises(IndexError) as ours:
        call([table, bad])
    with pytest.raises(IndexError) as theirs:
        table[bad]
    assert str(ours.value) == str(theirs.value)


def gives_up_the_lock(program, settings):
    encoder = _Encoder(program, build_kernels(program, settings), native_launcher())
    module = torch.fx.symbolic_trace(lambda x: (x,))
    encoder.launcher(ReferenceCallable(module), module, settings)
    return encoder._places()[:1] == [Opcode.BEGIN]


def test_the_interpreter_lock_is_kept_where_kernels_are_brief(settings):
    if native_launcher() is None:
        pytest.skip("the C launcher is not built")
    brief = gather_program()
    assert not gives_up_the_lock(brief, settings)
    (kernel,) = brief.schedule.steps
    longer = replace(kernel, decisions=replace(kernel.decisions, work=1 << 24))
    assert gives_up_the_lock(replace(brief, schedule=Schedule((longer,), ())), settings)
    assert gives_up_the_lock(linear_relu_program(5), settings)  # a vendor's call may take long
    assert gives_up_the_lock(linear_relu_program(Symbol("s0", 2)), settings)


@pytest.fixture(scope="module")
def looks():
    """What `inductor_tests::look` does when it is called: the last; its library is made once, `torch.ops` keeps it."""
    found = []
    library = torch.library.Library("inductor_tests", "FRAGMENT")
    library.define("look(Tensor x) -> Tensor")

    def look(x):
        found[-1]()
        return x.clone()

    library.impl("look", look, "CPU")
    yield found
    library._destroy()


def test_inputs_live_no_longer_than_a_kernel_may_refuse_its_data(build, looks):
    """Until then torch's operators may have to run from the inputs on; afterwards nobody needs them."""
    seen = []
    looks.append(lambda: seen.append([reference() is not None for reference in alive]))
    program = gather_program()
    (kernel,) = program.schedule.steps
    calls = [
        OperatorCall(
            "look",
            "fallback",
            torch.ops.inductor_tests.look.default,
            (View(source, shape, contiguous(shape), 0, F32),),
            {},
            (made,),
            "",
        )
        for source, shape, made in (("other", (2,), "before"), ("out", (3, 4), "after"))
    ]
    more = {item.name: item for item in (buffer("other", 2), buffer("before", 2))}
    more["after"] = buffer("after", 3, 4)
    made = {name: Place("operator") for name in ("before", "after")}
    graph = replace(
        program.graph,
        inputs=(*program.graph.inputs, tensor_input("other")),
        buffers={**program.graph.buffers, **more},
        outputs=(more["before"].view, more["after"].view),
    )
    memory = replace(
        program.memory,
        places={**program.memory.places, **made, "other": Place("input")},
        allocate=((), ("out",), ()),
        release=(("other",), ("table", "index"), ("out",)),
    )
    steps = Schedule((calls[0], kernel, calls[1]), ())
    reference = torch.fx.symbolic_trace(
        lambda table, index, other: (other, aten.index.Tensor(table, [index]))
    )
    call = build(Program(graph, steps, memory), reference)
    inputs = [torch.randn(10, 4), torch.tensor([1, -1, 9]), torch.randn(2)]
    expected = inputs[0][inputs[1]]
    alive = [weakref.ref(tensor) for tensor in inputs]
    assert torch.equal(call(inputs)[1], expected)
    assert seen == [[True, True, True], [False, False, False]]
    inputs = [torch.randn(10, 4), torch.tensor([1, 10, 9]), torch.randn(2)]
    with pytest.raises(IndexError):
        call(inputs)


def test_operator_results_are_brought_into_the_promised_layout(build):
    x = buffer("x", 4, 6)
    turned = Buffer("turned", (6, 4), (4, 1), F32, CPU)
    call = OperatorCall("t", "fallback", aten.t.default, (x.view,), {}, ("turned",), "")
    largest = OperatorCall(
        "m", "fallback", aten.max.dim, (turned.view, 1), {}, ("values", "places"), ""
    )
    values, places = buffer("values", 6), buffer("places", 6, dtype=torch.int64)
    buffers = {item.name: item for item in (x, turned, values, places)}
    graph = Graph("g", (tensor_input("x"),), buffers, (), (turned.view, values.view, places.view))
    kinds = {
        "x": Place("input"),
        "turned": Place("operator"),
        "values": Place("operator"),
        "places": Place("operator"),
    }
    memory = MemoryPlan(kinds, 0, ((), ()), ((), ()))
    run = build(Program(graph, Schedule((call, largest), ()), memory))
    argument = torch.randn(4, 6)
    ours, *extremes = run([argument])
    assert ours.stride() == (4, 1)
    torch.testing.assert_close(ours, argument.t())
    for one, other in zip(extremes, argument.t().max(1), strict=True):
        torch.testing.assert_close(one, other)


def test_attention_and_convolution_go_through_the_c_abi(build):
    names = ["q", "k", "v", "image", "filter"]
    shapes = [(1, 2, 8, 16)] * 3 + [(2, 3, 9, 9), (4, 3, 3, 3)]
    buffers = {name: buffer(name, *shape) for name, shape in zip(names, shapes, strict=True)}
    buffers["attended"] = Buffer("attended", (1, 2, 8, 16), (256, 16, 32, 1), F32, CPU)
    buffers["scores"] = Buffer("scores", (1, 2, 8), (16, 1, 2), F32, CPU)
    buffers["convolved"] = buffer("convolved", 2, 4, 5, 5)
    views = {name: item.view for name, item in buffers.items()}
    attend = OperatorCall(
        "a",
        "vendor",
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        (views["q"], views["k"], views["v"], 0.0, True),
        {"scale": 0.5},
        ("attended", None),
        "",
    )
    convolve = OperatorCall(
        "c",
        "vendor",
        aten.convolution.default,
        (views["image"], views["filter"], None, [2, 2], [1, 1], [1, 1], False, [0, 0], 1),
        {},
        ("convolved",),
        "",
    )
    graph = Graph(
        "g",
        tuple(tensor_input(n) for n in names),
        buffers,
        (),
        (views["attended"], views["convolved"]),
    )
    kinds = {name: Place("input") for name in names}
    kinds |= {
        "attended": Place("operator"),
        "scores": Place("operator"),
        "convolved": Place("operator"),
    }
    run = build(
        Program(graph, Schedule((attend, convolve), ()), MemoryPlan(kinds, 0, ((), ()), ((), ())))
    )
    tensors = [torch.randn(shape) for shape in shapes]
    attended, convolved = run(list(tensors))
    q, k, v, image, kernel = tensors
    torch.testing.assert_close(
        attended,
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.5),
    )
    torch.testing.assert_close(
        convolved, torch.nn.functional.conv2d(image, kernel, stride=2, padding=1)
    )


def test_without_a_compiler_the_graph_runs_on_torch_with_one_warning(tmp_path, caplog):
    reference = torch.fx.symbolic_trace(lambda x, w, b: (torch.relu(aten.addmm(b, x, aten.t(w))),))
    settings = BuildSettings(compiler=str(tmp_path / "no-such-compiler"), cache_directory=tmp_path)
    with caplog.at_level(logging.WARNING, "inductor"):
        for _ in range(2):
            call = compile_program(linear_relu_program(5), reference, settings)
    warnings = [record.message for record in caplog.records]
    assert len(warnings) == 1
    assert "apt-get install g++" in warnings[0]
    x, w, b = torch.randn(5, 8), torch.randn(6, 8), torch.randn(6)
    torch.testing.assert_close(call([x, w, b])[0], expected(x, w, b)[0])
