"""C++ kernels against the reference interpreter of the loop IR."""

import importlib.util
from pathlib import Path

import pytest
import torch

from inductor.codegen.cpp import kernel_source
from inductor.codegen.cpp.scalar import SCALAR_EXPRESSIONS, ArithmeticOps
from inductor.ir import OPERATIONS, BoundsCheck, LocalBuffer, Recorder, Streamed, Tile
from primtorch.symbolic import Symbol

_SPEC = importlib.util.spec_from_file_location(
    "cpp_harness", Path(__file__).with_name("cpp_harness.py")
)
harness = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(harness)
check, make_kernel, run_cpp = harness.check, harness.make_kernel, harness.run_cpp

pytestmark = pytest.mark.cxx
F32 = torch.float32
FLOATS = [torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
MODES = ["auto", None, "column"]


def special(dtype, count=67):
    torch.manual_seed(0)
    if dtype == torch.bool:
        return torch.rand(count) > 0.5
    if dtype.is_complex:
        return torch.randn(count, dtype=dtype)
    if dtype.is_floating_point:
        value = torch.randn(count, dtype=dtype) * 3
        edge = [
            0.0,
            -0.0,
            float("inf"),
            float("-inf"),
            float("nan"),
            1.0,
            -1.0,
            0.5,
            1e-30,
            100.0,
            -100.0,
            2.0,
        ]
        value[: len(edge)] = torch.tensor(edge, dtype=dtype)
        return value
    info = torch.iinfo(dtype)
    value = torch.randint(max(info.min, -9), min(info.max, 9), (count,)).to(dtype)
    value[:4] = torch.tensor([info.min, info.max, 0, 1], dtype=dtype)
    return value


def test_every_scalar_operation_is_printed():
    memory = {
        "index_expression",
        "argument",
        "load",
        "store",
        "accumulate",
        "indirect",
        "reduce",
        "part",
        "scan",
    }
    assert set(OPERATIONS) <= SCALAR_EXPRESSIONS | memory
    assert all(callable(getattr(ArithmeticOps, name)) for name in SCALAR_EXPRESSIONS)


UNARY = [n for n, s in OPERATIONS.items() if s.family == "unary" and n not in {"real", "imag"}]
INTEGER_UNARY = {
    "neg",
    "abs",
    "sign",
    "bitwise_not",
    "isnan",
    "isinf",
    "signbit",
    "logical_not",
    "floor",
    "ceil",
}


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32, torch.uint8, torch.bool])
def test_unary_operations_equal_torch(dtype):
    names = [n for n in UNARY if (n in INTEGER_UNARY or dtype.is_floating_point)]
    if dtype.is_floating_point:
        names.remove("bitwise_not")
    if dtype == torch.bool:
        names = ["logical_not", "bitwise_not"]
    x = special(dtype)
    recorder = Recorder((x.numel(),))
    (i,) = recorder.outer
    value = recorder.load("x", i, dtype)
    storages = {"x": x}
    for name in names:
        result = recorder.op(name, value)
        recorder.store(name, i, result, result.dtype)
        storages[name] = torch.empty(x.numel(), dtype=result.dtype)
    check(
        recorder.finish(),
        storages,
        rtol=2e-6 if dtype == F32 else 1e-12,
        atol=2e-6 if dtype == F32 else 1e-12,
    )


BINARY = [n for n, s in OPERATIONS.items() if s.family == "binary" and n != "make_complex"]
FLOAT_ONLY = {"div", "atan2", "copysign", "hypot", "nextafter"}
INTEGER_ONLY = {"bitwise_and", "bitwise_or", "bitwise_xor", "shift_left", "shift_right"}
BOOLEAN = {
    "add",
    "mul",
    "maximum",
    "minimum",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
}


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool])
def test_binary_operations_equal_torch(dtype):
    if dtype == torch.bool:
        names = [*BOOLEAN, "logical_and", "logical_or", "logical_xor", "ge"]
    elif dtype.is_floating_point:
        names = [n for n in BINARY if n not in INTEGER_ONLY and n != "trunc_div"]
    else:
        names = [n for n in BINARY if n not in FLOAT_ONLY]
    x = special(dtype, 160)
    y = special(dtype, 160).flip(0).clone()
    if dtype in {torch.int32, torch.int64, torch.int8, torch.int16}:
        y[5], x[5] = -1, torch.iinfo(dtype).min + 1
    y[20:32] = x[20:32]
    if not dtype.is_floating_point and dtype != torch.bool:
        y = torch.where(y == 0, 3, y).to(dtype)  # zero is refused: its own test
    recorder = Recorder((x.numel(),))
    (i,) = recorder.outer
    left, right = recorder.load("x", i, dtype), recorder.load("y", i, dtype)
    storages = {"x": x, "y": y}
    for name in names:
        result = recorder.op(name, left, right)
        recorder.store(name, i, result, result.dtype)
        storages[name] = torch.empty(x.numel(), dtype=result.dtype)
    tolerance = 2e-6 if dtype == F32 else 1e-12
    check(recorder.finish(), storages, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_arithmetic_equals_torch(dtype):
    x, y = special(dtype), special(dtype).flip(0).clone()
    recorder = Recorder((x.numel(),))
    (i,) = recorder.outer
    left, right = recorder.load("x", i, dtype), recorder.load("y", i, dtype)
    storages = {"x": x, "y": y}
    for name in ("add", "sub", "mul", "div"):
        recorder.store(name, i, recorder.op(name, left, right), dtype)
        storages[name] = torch.empty_like(x)
    for name in ("neg", "exp", "sqrt", "sin", "cos", "tanh", "sigmoid", "log"):
        recorder.store(name, i, recorder.op(name, left), dtype)
        storages[name] = torch.empty_like(x)
    part = torch.float32 if dtype == torch.complex64 else torch.float64
    real, imag = recorder.op("real", left, dtype=part), recorder.op("imag", left, dtype=part)
    recorder.store("swapped", i, recorder.op("make_complex", imag, real, dtype=dtype), dtype)
    storages["swapped"] = torch.empty_like(x)
    tolerance = 2e-5 if dtype == torch.complex64 else 1e-10
    check(recorder.finish(), storages, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("source", [*FLOATS, *INTEGERS, torch.bool, torch.float16, torch.bfloat16])
def test_conversions_equal_torch(source):
    if source.is_floating_point:
        x = torch.tensor([0.0, -0.0, 1.5, -1.5, 2.5, 100.25, -100.75, 3.0, 1e-8], dtype=source)
    else:
        x = special(source)
        if source == torch.int64:
            x = x.clamp(-(2**40), 2**40)
    recorder = Recorder((x.numel(),))
    (i,) = recorder.outer
    value = recorder.load("x", i, source)
    storages = {"x": x}
    targets = [
        *FLOATS,
        torch.float16,
        torch.bfloat16,
        torch.bool,
        torch.complex64,
        torch.int64,
        torch.int32,
    ]
    if not source.is_floating_point:
        targets += [torch.uint8, torch.int8, torch.int16]
    for target in targets:
        if source == torch.int64 and target == torch.float16:
            continue
        name = str(target)
        recorder.store(name, i, recorder.to_dtype(value, target), target)
        storages[name] = torch.empty(x.numel(), dtype=target)
    check(recorder.finish(), storages, rtol=0, atol=0)


def test_random_numbers_equal_the_reference():
    recorder = Recorder((5, 33))
    row, column = recorder.outer
    seed = recorder.load("seed", 0, torch.int64)
    offset = recorder.constant(7 << 33, torch.int64)
    element = recorder.index_expression(row * 33 + column, torch.int64)
    storages = {"seed": torch.tensor([0x1234_5678_9ABC_DEF])}
    for name, dtype in [
        ("philox_uniform", F32),
        ("philox_uniform", torch.float64),
        ("philox_bits", torch.int64),
    ]:
        buffer = f"{name}_{dtype}"
        recorder.store(
            buffer, row * 33 + column, recorder.op(name, seed, offset, element, dtype=dtype), dtype
        )
        storages[buffer] = torch.empty(165, dtype=dtype)
    body = recorder.finish()
    check(body, storages, rtol=0, atol=0)
    source = kernel_source(make_kernel(body))
    assert source.literals == (7 << 33,)
    assert str(7 << 33) not in source.text


def test_normal_numbers_equal_the_reference():
    recorder = Recorder((1000,))
    (i,) = recorder.outer
    seed, offset = recorder.load("seed", 0, torch.int64), recorder.constant(3, torch.int64)
    element = recorder.index_expression(i, torch.int64)
    storages = {"seed": torch.tensor([-5])}
    for dtype in FLOATS:
        recorder.store(
            str(dtype), i, recorder.op("philox_normal", seed, offset, element, dtype=dtype), dtype
        )
        storages[str(dtype)] = torch.empty(1000, dtype=dtype)
    check(recorder.finish(), storages, rtol=1e-5, atol=1e-6)


def softmax(rows, columns, dtype=F32):
    recorder = Recorder((rows,), (columns,))
    (row,), (column,) = recorder.outer, recorder.inner
    recorder.stage("inner")
    largest = recorder.reduce("max", recorder.load("x", row * columns + column, dtype), dtype=F32)
    recorder.stage("inner")
    value = recorder.load("x", row * columns + column, dtype)
    power = recorder.op("exp", recorder.op("sub", value, largest))
    total = recorder.reduce("sum", power, dtype=F32)
    recorder.store("t", column, power, F32)
    recorder.stage("inner")
    result = recorder.op("div", recorder.load("t", column, F32), total)
    recorder.store("out", row * columns + column, recorder.to_dtype(result, dtype), dtype)
    return recorder.finish()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [F32, torch.bfloat16])
def test_softmax(mode, threads, dtype):
    rows, columns = 37, 77
    x = torch.randn(rows * columns).to(dtype)
    local = LocalBuffer("t", F32, columns)
    storages = {"x": x, "out": torch.empty_like(x)}
    tolerance = 1e-6 if dtype == F32 else 1e-2
    body = softmax(rows, columns, dtype)
    check(
        body,
        storages,
        vector=mode,
        threads=threads,
        locals_=[local],
        rtol=tolerance,
        atol=tolerance,
    )


def test_softmax_of_symbolic_size_serves_every_size_with_one_text():
    rows, columns = Symbol("s0", 2), Symbol("s1", 2)
    body = softmax(rows, columns)
    for shape in [(3, 5), (8, 1500)]:
        x = torch.randn(shape[0] * shape[1])
        local = LocalBuffer("t", F32, columns)
        sizes = {rows: shape[0], columns: shape[1]}
        kernel = make_kernel(body, sizes=tuple(sizes), locals_=[local])
        out = torch.empty_like(x)
        assert run_cpp(kernel, {"x": x, "out": out}, tuple(sizes.values()), threads=2) == 0
        torch.testing.assert_close(out.view(shape), torch.softmax(x.view(shape), -1))


def layer_norm(rows, columns):
    recorder = Recorder((rows,), (columns,))
    (row,), (column,) = recorder.outer, recorder.inner
    recorder.stage("inner")
    value = recorder.load("x", row * columns + column, F32)
    statistics = recorder.reduce("welford", value, dtype=F32)
    recorder.stage("outer")
    mean, m2 = recorder.part(statistics, 0, F32), recorder.part(statistics, 1, F32)
    count = recorder.part(statistics, 2, F32)
    variance = recorder.op("div", m2, count)
    scale = recorder.op("rsqrt", recorder.op("add", variance, recorder.constant(1e-5, F32)))
    recorder.store("mean", row, mean, F32)
    recorder.stage("inner")
    value = recorder.load("x", row * columns + column, F32)
    result = recorder.op("mul", recorder.op("sub", value, mean), scale)
    recorder.store(
        "out",
        row * columns + column,
        recorder.op("mul", result, recorder.load("w", column, F32)),
        F32,
    )
    return recorder.finish()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("columns", [1, 77, 5000])
def test_layer_norm(mode, columns):
    rows = 19
    x = torch.randn(rows * columns) + 100
    storages = {
        "x": x,
        "w": torch.randn(columns),
        "out": torch.empty_like(x),
        "mean": torch.empty(rows),
    }
    check(layer_norm(rows, columns), storages, vector=mode, threads=2, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "dtype", [F32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool]
)
@pytest.mark.parametrize("special_values", [False, True])
def test_reductions(mode, dtype, special_values):
    rows, depth, columns = 9, 3, 41
    torch.manual_seed(1)
    if dtype == torch.bool:
        x = torch.rand(rows * depth * columns) > 0.02
    elif dtype.is_floating_point:
        x = torch.randn(rows * depth * columns, dtype=dtype)
        if special_values:
            x[5], x[200], x[300] = float("nan"), float("inf"), float("-inf")
    else:
        x = torch.randint(0, 5, (rows * depth * columns,)).to(dtype)
    x = x.clone()
    recorder = Recorder((rows,), (depth, columns))
    (row,), (slab, column) = recorder.outer, recorder.inner
    recorder.stage("inner")
    value = recorder.load("x", (row * depth + slab) * columns + column, dtype)
    total_dtype = dtype if dtype.is_floating_point else torch.int64
    wide = recorder.to_dtype(value, total_dtype)
    truth = recorder.to_dtype(value, torch.bool)
    kinds = {
        "sum": recorder.reduce("sum", wide, dtype=total_dtype),
        "prod": recorder.reduce("prod", wide, dtype=total_dtype),
        "max": recorder.reduce("max", value, dtype=dtype),
        "min": recorder.reduce("min", value, dtype=dtype),
        "any": recorder.reduce("any", truth, dtype=torch.bool),
        "all": recorder.reduce("all", truth, dtype=torch.bool),
        "argmax": recorder.reduce("argmax", value, dtype=torch.int64),
        "argmin": recorder.reduce("argmin", value, dtype=torch.int64),
    }
    recorder.stage("outer")
    storages = {"x": x}
    for name, result in kinds.items():
        recorder.store(name, row, result, result.dtype)
        storages[name] = torch.empty(rows, dtype=result.dtype)
    check(recorder.finish(), storages, vector=mode, threads=2, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_empty_reductions_give_their_identities(mode):
    recorder = Recorder((4,), (0,))
    (row,) = recorder.outer
    recorder.stage("inner")
    value = recorder.load("x", 0, F32)
    total, product = (
        recorder.reduce("sum", value, dtype=F32),
        recorder.reduce("prod", value, dtype=F32),
    )
    recorder.stage("outer")
    recorder.store("sum", row, total, F32)
    recorder.store("prod", row, product, F32)
    storages = {"x": torch.empty(0), "sum": torch.empty(4), "prod": torch.empty(4)}
    ours = {name: storage.clone() for name, storage in storages.items()}
    assert run_cpp(make_kernel(recorder.finish(), vector=mode), ours) == 0
    assert ours["sum"].tolist() == [0.0] * 4
    assert ours["prod"].tolist() == [1.0] * 4


@pytest.mark.parametrize("length", [100, 5000, 200_000])
def test_long_sums_keep_their_digits(length):
    x = torch.rand(length)
    recorder = Recorder((), (length,))
    (column,) = recorder.inner
    recorder.stage("inner")
    total = recorder.reduce("sum", recorder.load("x", column, F32), dtype=F32)
    recorder.stage("outer")
    recorder.store("out", 0, total, F32)
    ours = {"x": x, "out": torch.empty(1)}
    assert run_cpp(make_kernel(recorder.finish()), ours) == 0
    exact = x.double().sum().item()
    assert abs(ours["out"].item() - exact) <= 2e-6 * exact


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min", "logaddexp"])
def test_scans(mode, kind):
    rows, columns = 21, 30
    recorder = Recorder((rows,), (columns,))
    (row,), (column,) = recorder.outer, recorder.inner
    recorder.stage("inner")
    value = recorder.load("x", row * columns + column, torch.float64)
    recorder.store("out", row * columns + column, recorder.scan(value, kind), torch.float64)
    x = torch.randn(rows * columns, dtype=torch.float64)
    check(recorder.finish(), {"x": x, "out": torch.empty_like(x)}, vector=mode, threads=2)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("kind", ["sum", "max"])
def test_accumulate_joins_all_rows(threads, kind):
    rows, columns = 50, 33
    recorder = Recorder((rows,), (columns,))
    (row,), (column,) = recorder.outer, recorder.inner
    recorder.stage("inner")
    value = recorder.load("x", row * columns + column, F32)
    total = recorder.reduce("sum", value, dtype=F32)
    recorder.accumulate("columns", column * 2, value, F32, kind)
    recorder.stage("outer")
    recorder.store("rows", row, total, F32)
    storages = {
        "x": torch.randn(rows * columns),
        "columns": torch.zeros(2 * columns),
        "rows": torch.empty(rows),
    }
    check(recorder.finish(), storages, threads=threads, rtol=1e-5, atol=1e-5)


def gather(rows, columns, length):
    recorder = Recorder((rows, columns))
    row, column = recorder.outer
    index = recorder.load("index", row, torch.int64)
    checked = BoundsCheck("IndexError", "index {index} is out of bounds", 0)
    place = recorder.indirect(index, length, wrap=True, check=checked)
    recorder.store(
        "out", row * columns + column, recorder.load("table", place * columns + column, F32), F32
    )
    return recorder.finish()


def test_gather_wraps_negative_indices_and_reports_bad_ones():
    rows, columns, length = 6, 40, 10
    body = gather(rows, columns, length)
    storages = {
        "index": torch.tensor([0, 9, -1, -10, 3, 3]),
        "table": torch.randn(length * columns),
        "out": torch.empty(rows * columns),
    }
    check(body, storages, rtol=0, atol=0, threads=2)
    for bad in (10, -11, 2**62):
        storages["index"] = torch.tensor([0, bad, 0, 0, 0, 0])
        assert run_cpp(make_kernel(body), storages, threads=2) != 0


@pytest.mark.parametrize("parallel", [0, 1, 2])
def test_scatter_adds_where_indices_meet(parallel):
    rows, columns, length = 200, 24, 7
    recorder = Recorder((rows, columns))
    row, column = recorder.outer
    place = recorder.indirect(
        recorder.load("index", row, torch.int64), length, wrap=False, check=None
    )
    value = recorder.load("x", row * columns + column, F32)
    recorder.store("out", place * columns + column, value, F32, "add")
    storages = {
        "index": torch.randint(0, length, (rows,)),
        "x": torch.randn(rows * columns),
        "out": torch.zeros(length * columns),
    }
    check(recorder.finish(), storages, parallel=parallel, threads=2, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("repeats", [False, True])
def test_threads_share_the_columns_of_rows_that_meet(threads, repeats):
    rows, columns, length = 200, 40, 7
    recorder = Recorder((rows,), (columns,))
    row, column = recorder.outer[0], recorder.inner[0]
    recorder.stage("outer")
    place = recorder.indirect(
        recorder.load("index", row, torch.int64),
        length,
        wrap=False,
        check=BoundsCheck("IndexError", "index {index} is out of bounds", 0),
    )
    recorder.stage("inner")
    value = recorder.load("x", row * columns + column, F32)
    target = place * columns if repeats else place * columns + column  # or all in one element
    recorder.store("out", target, value, F32, "add")
    storages = {
        "index": torch.randint(0, length, (rows,)),
        "x": torch.randn(rows * columns),
        "out": torch.zeros(length * columns),
    }
    body = recorder.finish()
    text = kernel_source(make_kernel(body)).text
    assert ("j < (end - begin)" in text) is not repeats
    check(body, storages, threads=threads, rtol=1e-4, atol=1e-4)
    storages["index"][-1] = length
    assert run_cpp(make_kernel(body), storages, threads=threads) != 0


def test_masked_loads_do_not_touch_memory_outside():
    recorder = Recorder((4, 50))
    row, column = recorder.outer
    position = recorder.index_expression(column - 3, torch.int64)
    inside = recorder.op("ge", position, recorder.constant(0, torch.int64))
    with recorder.masked(inside):
        value = recorder.load("x", row * 47 + column - 3, F32)
    recorder.store("out", row * 50 + column, value, F32)
    check(recorder.finish(), {"x": torch.randn(4 * 47), "out": torch.empty(200)}, rtol=0, atol=0)


def test_scalar_inputs_and_collapsed_loops():
    recorder = Recorder((3, 4, 70))
    a, b, c = recorder.outer
    value = recorder.op(
        "mul",
        recorder.load("x", a * 280 + b * 70 + c, torch.float64),
        recorder.argument("f", torch.float64),
    )
    index = recorder.to_dtype(recorder.argument("k", torch.int64), torch.float64)
    recorder.store("out", c * 12 + b * 3 + a, recorder.op("add", value, index), torch.float64)
    storages = {
        "x": torch.randn(840, dtype=torch.float64),
        "out": torch.empty(840, dtype=torch.float64),
    }
    check(recorder.finish(), storages, scalars={"f": 2.5, "k": -3}, parallel=2, threads=2)


def test_equal_computations_have_equal_texts():
    texts = set()
    for names in ("x", "out"), ("buffer_7", "buffer_9"):
        recorder = Recorder((64,))
        (i,) = recorder.outer
        recorder.store(names[1], i, recorder.op("exp", recorder.load(names[0], i, F32)), F32)
        texts.add(kernel_source(make_kernel(recorder.finish())).text)
    assert len(texts) == 1


@pytest.mark.parametrize("dtype", [F32, torch.float64, torch.bfloat16, torch.uint8, torch.bool])
@pytest.mark.parametrize("parallel", [0, 1, 2])
@pytest.mark.parametrize("shape", [(3, 40, 70), (1, 8, 8), (2, 33, 5)])
def test_tiled_transposition(dtype, parallel, shape):
    batch, rows, columns = shape
    recorder = Recorder(shape)
    slab, row, column = recorder.outer
    turned = recorder.load("x", (slab * columns + column) * rows + row, dtype)
    straight = recorder.load("y", (slab * rows + row) * columns + column, dtype)
    result = recorder.op("add", turned, straight)
    recorder.store(
        "out", (slab * rows + row) * columns + column, recorder.to_dtype(result, dtype), dtype
    )
    count = batch * rows * columns
    x, y = ((torch.rand(count) * 50).to(dtype) for _ in range(2))
    storages = {"x": x, "y": y, "out": torch.empty_like(x)}
    tile = Tile((1, 2), 32)
    check(recorder.finish(), storages, tile=tile, parallel=parallel, threads=2, rtol=0, atol=0)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8, torch.bool], ids=str
)
@pytest.mark.parametrize("shape", [(2, 40, 77), (1, 1, 300), (3, 64, 64), (1, 1030, 2050)])
@pytest.mark.parametrize("offset", [0, 3])
@pytest.mark.parametrize("least", [None, 0, 1 << 16])
def test_a_transposition_alone_goes_from_memory_to_memory(dtype, shape, offset, least):
    """In whole blocks and rests of them, past the caches where it is large, to rows that are lines and to others."""
    batch, rows, columns = shape
    recorder = Recorder(shape)
    slab, row, column = recorder.outer
    value = recorder.load("x", (slab * columns + column) * rows + row, dtype)
    recorder.store("out", (slab * rows + row) * columns + column + offset, value, dtype)
    count = batch * rows * columns
    x = (torch.rand(count) * 50).to(dtype)
    storages = {"x": x, "out": torch.zeros(count + offset, dtype=dtype)}
    body = recorder.finish()
    streamed = () if least is None else (Streamed("out", least),)
    tile = Tile((1, 2), 64)
    check(body, storages, tile=tile, parallel=2, threads=2, streamed=streamed, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["argmax", "argmin"])
@pytest.mark.parametrize("columns", [1, 7, 64, 77, 1000])
def test_the_first_of_equal_extremes_is_found(kind, columns):
    rows = 40
    for x in (
        torch.randint(0, 3, (rows * columns,)).float(),
        torch.full((rows * columns,), float("-inf")),
        torch.full((rows * columns,), float("inf")),
        torch.where(torch.rand(rows * columns) > 0.9, float("nan"), 1.0),
    ):
        recorder = Recorder((rows,), (columns,))
        (row,), (column,) = recorder.outer, recorder.inner
        recorder.stage("inner")
        found = recorder.reduce(
            kind, recorder.load("x", row * columns + column, F32), dtype=torch.int64
        )
        recorder.stage("outer")
        recorder.store("out", row, found, torch.int64)
        expected = getattr(x.view(rows, columns), kind)(1)
        for vector in MODES:
            ours = {"x": x, "out": torch.empty(rows, dtype=torch.int64)}
            assert run_cpp(make_kernel(recorder.finish(), vector=vector), ours) == 0
            assert torch.equal(ours["out"], expected)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("shape", [(40,), (5000,), (100_000,), (7, 300), (1, 64), (3, 20_000)])
@pytest.mark.parametrize("dtype", [F32, torch.int64])
def test_divided_sweeps(threads, shape, dtype):
    recorder = Recorder((), shape)
    index = 0
    for symbol, extent in zip(recorder.inner, shape, strict=True):
        index = index * extent + symbol
    scale = recorder.load("scale", 0, dtype)
    recorder.stage("inner")
    value = recorder.op("mul", recorder.load("x", index, dtype), scale)
    kinds = ("sum", "max", "min", "any", "all")
    results = {}
    for kind in kinds:
        logic = kind in {"any", "all"}
        operand = recorder.to_dtype(value, torch.bool) if logic else value
        results[kind] = recorder.reduce(kind, operand, dtype=torch.bool if logic else dtype)
    recorder.stage("outer")
    storages = {}
    for kind in kinds:
        if kind == "sum":
            results[kind] = recorder.op("add", results[kind], scale)
        recorder.store(kind, 0, results[kind], results[kind].dtype)
        storages[kind] = torch.empty(1, dtype=results[kind].dtype)
    count = 1
    for extent in shape:
        count *= extent
    storages["x"] = torch.randint(-5, 6, (count,)).to(dtype)
    storages["scale"] = torch.full((1,), 2, dtype=dtype)
    body = recorder.finish()
    check(body, storages, split=True, parallel=0, threads=threads, rtol=1e-6, atol=1e-6)
    if dtype == F32:
        storages["x"][count // 2] = float("nan")
        check(body, storages, split=True, parallel=0, threads=threads)


@pytest.mark.parametrize("name", ["floor_div", "trunc_div", "remainder", "fmod"])
def test_division_by_zero_is_refused(name):
    recorder = Recorder((100,))
    (i,) = recorder.outer
    left, right = recorder.load("x", i, torch.int64), recorder.load("y", i, torch.int64)
    recorder.store("out", i, recorder.op(name, left, right), torch.int64)
    kernel = make_kernel(recorder.finish())
    storages = {
        "x": torch.arange(100),
        "y": torch.full((100,), 3),
        "out": torch.empty(100, dtype=torch.int64),
    }
    assert run_cpp(kernel, storages) == 0
    storages["y"][77] = 0
    assert run_cpp(kernel, storages) != 0
    assert kernel_source(kernel).checks


@pytest.mark.parametrize("columns", [24, 40, 64, 100])
def test_statistics_of_long_columns_keep_their_digits(columns):
    rows = 5000
    recorder = Recorder((columns,), (rows,))
    (column,), (row,) = recorder.outer, recorder.inner
    recorder.stage("inner")
    value = recorder.load("x", row * columns + column, F32)
    statistics = recorder.reduce("welford", value, dtype=F32)
    total = recorder.reduce("sum", value, dtype=F32)
    recorder.stage("outer")
    mean, m2 = recorder.part(statistics, 0, F32), recorder.part(statistics, 1, F32)
    for name, result in (("mean", mean), ("m2", m2), ("total", total)):
        recorder.store(name, column, result, F32)
    x = torch.randn(rows, columns) + 30
    out = {name: torch.empty(columns) for name in ("mean", "m2", "total")}
    kernel = make_kernel(recorder.finish(), vector="column")
    assert run_cpp(kernel, {"x": x.reshape(-1), **out}, threads=2) == 0
    exact = x.double()
    torch.testing.assert_close(out["mean"].double(), exact.mean(0), rtol=2e-7, atol=0)
    deviations = (exact - exact.mean(0)).square().sum(0)
    torch.testing.assert_close(out["m2"].double(), deviations, rtol=5e-6, atol=0)
    torch.testing.assert_close(out["total"].double(), exact.sum(0), rtol=2e-6, atol=0)
