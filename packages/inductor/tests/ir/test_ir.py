"""The loop IR: recording, text, verification, and the reference meaning against torch."""

import pytest
import torch

from inductor.errors import VerificationError
from inductor.ir import (
    OPERATIONS,
    BoundsCheck,
    Buffer,
    LoopBody,
    Operation,
    Recorder,
    ScalarOps,
    Stage,
    apply_operation,
    body_text,
    run_body,
    verify_body,
)
from inductor.ir.interpret import Interpreter

CPU = torch.device("cpu")


def buffers(**shapes):
    return {
        name: Buffer(name, (length,), (1,), dtype, CPU) for name, (length, dtype) in shapes.items()
    }


def softmax_body():
    recorder = Recorder((4,), (8,))
    (row,), (column,) = recorder.outer, recorder.inner
    recorder.stage("inner")
    largest = recorder.reduce(
        "max", recorder.load("x", row * 8 + column, torch.float32), dtype=torch.float32
    )
    recorder.stage("inner")
    value = recorder.load("x", row * 8 + column, torch.float32)
    power = recorder.op("exp", recorder.op("sub", value, largest))
    total = recorder.reduce("sum", power, dtype=torch.float32)
    recorder.store("t", column, power, torch.float32)
    recorder.stage("inner")
    result = recorder.op("div", recorder.load("t", column, torch.float32), total)
    recorder.store("out", row * 8 + column, result, torch.float32)
    return recorder.finish()


def test_protocol_and_table_name_the_same_operations():
    methods = {name for name in vars(ScalarOps) if not name.startswith("_")}
    assert methods == set(OPERATIONS)


def test_interpreter_has_a_meaning_for_every_operation():
    interpreter = Interpreter(LoopBody((), (), ()), {}, {}, {}, {})
    for name in OPERATIONS:
        assert callable(getattr(interpreter, name)), name


def test_softmax_text_shows_loops_and_sweeps():
    text = body_text(softmax_body())
    assert text.splitlines()[0] == "  for i0 < 4:"
    assert text.count("sweep r0 < 8:") == 3


def test_softmax_runs_as_torch_does():
    x = torch.randn(4, 8)
    out = torch.empty(4, 8)
    body = softmax_body()
    verify_body(
        "softmax",
        body,
        buffers(x=(32, torch.float32), t=(8, torch.float32), out=(32, torch.float32)),
    )
    run_body(body, {"x": x.view(-1), "out": out.view(-1), "t": torch.empty(8)}, locals_={"t": 8})
    torch.testing.assert_close(out, torch.softmax(x, -1))


def test_equal_operations_are_recorded_once_and_dead_ones_dropped():
    recorder = Recorder((4,))
    (i,) = recorder.outer
    first = recorder.load("x", i, torch.float32)
    again = recorder.load("x", i, torch.float32)
    assert first == again
    recorder.op("exp", first)
    recorder.store("y", i, recorder.op("add", first, again), torch.float32)
    assert [operation.name for _, operation, _ in recorder.finish().operations()] == [
        "load",
        "add",
        "store",
    ]


def test_a_load_of_what_was_stored_is_the_value():
    recorder = Recorder((4,))
    (i,) = recorder.outer
    value = recorder.op("exp", recorder.load("x", i, torch.float32))
    recorder.store("y", i, value, torch.float32)
    assert recorder.load("y", i, torch.float32) == value


def test_a_masked_load_of_what_was_stored_is_the_value_or_zero():
    recorder = Recorder((4,))
    (i,) = recorder.outer
    recorder.store("y", i, recorder.load("x", i, torch.float32), torch.float32)
    half = recorder.op(
        "lt", recorder.index_expression(i, torch.int64), recorder.constant(2, torch.int64)
    )
    with recorder.masked(half):
        value = recorder.load("y", i, torch.float32)
    recorder.store("z", i, value, torch.float32)
    body = recorder.finish()
    assert body.reads == {"x"}
    out = torch.empty(4)
    run_body(body, {"x": torch.arange(1.0, 5), "y": torch.empty(4), "z": out})
    assert out.tolist() == [1, 2, 0, 0]


def test_constants_keep_sign_and_type():
    recorder = Recorder((1,))
    assert recorder.constant(0.0, torch.float32) != recorder.constant(-0.0, torch.float32)
    assert recorder.constant(1, torch.int64) != recorder.constant(True, torch.bool)
    assert recorder.constant(float("nan"), torch.float32) == recorder.constant(
        float("nan"), torch.float32
    )


def test_halves_round_at_each_boundary():
    recorder = Recorder((16,))
    (i,) = recorder.outer
    x = recorder.load("x", i, torch.bfloat16)
    rounded = recorder.round_to(
        recorder.op("add", x, recorder.load("y", i, torch.bfloat16)), torch.bfloat16
    )
    recorder.store(
        "z", i, recorder.round_to(recorder.op("mul", rounded, x), torch.bfloat16), torch.bfloat16
    )
    x_, y_ = torch.randn(16).bfloat16(), torch.randn(16).bfloat16()
    z_ = torch.empty(16, dtype=torch.bfloat16)
    run_body(recorder.finish(), {"x": x_, "y": y_, "z": z_})
    assert torch.equal(z_, (x_ + y_) * x_)


def gather_body(check):
    recorder = Recorder((3,))
    (i,) = recorder.outer
    index = recorder.load("index", i, torch.int64)
    symbol = recorder.indirect(index, 5, wrap=True, check=check)
    recorder.store("out", i, recorder.load("table", symbol, torch.float32), torch.float32)
    return recorder.finish()


def test_indirect_loads_wrap_and_raise_as_eager_does():
    check = BoundsCheck(
        "IndexError", "index {index} is out of bounds for dimension {dimension} with size {size}"
    )
    table, out = torch.arange(5.0), torch.empty(3)
    storages = {"table": table, "index": torch.tensor([0, -1, 4]), "out": out}
    run_body(gather_body(check), storages)
    assert out.tolist() == [0.0, 4.0, 4.0]
    storages["index"] = torch.tensor([0, 7, 1])
    with pytest.raises(IndexError, match="index 7 is out of bounds for dimension 0 with size 5"):
        run_body(gather_body(check), storages)


def test_masked_loads_read_nothing_outside():
    recorder = Recorder((6,))
    (i,) = recorder.outer
    inside = recorder.op(
        "lt", recorder.index_expression(i, torch.int64), recorder.constant(4, torch.int64)
    )
    with recorder.masked(inside):
        value = recorder.load("x", i, torch.float32)
    recorder.store(
        "y",
        i,
        recorder.op("where", inside, value, recorder.constant(9.0, torch.float32)),
        torch.float32,
    )
    out = torch.empty(6)
    run_body(recorder.finish(), {"x": torch.arange(4.0), "y": out})
    assert out.tolist() == [0, 1, 2, 3, 9, 9]


def test_accumulate_combines_over_all_outer_points():
    recorder = Recorder((5,), (3,))
    (i,), (r,) = recorder.outer, recorder.inner
    recorder.stage("inner")
    recorder.accumulate("y", r, recorder.load("x", i * 3 + r, torch.float32), torch.float32, "sum")
    x, y = torch.randn(5, 3), torch.empty(3)
    run_body(recorder.finish(), {"x": x.view(-1), "y": y})
    torch.testing.assert_close(y, x.sum(0))


def test_welford_gives_mean_and_squared_deviations():
    recorder = Recorder((5,), (7,))
    (i,), (r,) = recorder.outer, recorder.inner
    recorder.stage("inner")
    result = recorder.reduce(
        "welford", recorder.load("x", i * 7 + r, torch.float32), dtype=torch.float32
    )
    recorder.stage("outer")
    recorder.store("mean", i, recorder.part(result, 0, torch.float32), torch.float32)
    recorder.store("m2", i, recorder.part(result, 1, torch.float32), torch.float32)
    x, mean, m2 = torch.randn(5, 7), torch.empty(5), torch.empty(5)
    run_body(recorder.finish(), {"x": x.view(-1), "mean": mean, "m2": m2})
    torch.testing.assert_close(mean, x.mean(1))
    torch.testing.assert_close(m2, x.var(1, correction=0) * 7)


def test_scan_runs_along_the_row():
    recorder = Recorder((2,), (4,))
    (i,), (r,) = recorder.outer, recorder.inner
    recorder.stage("inner")
    value = recorder.scan(recorder.load("x", i * 4 + r, torch.float32), "sum")
    recorder.store("y", i * 4 + r, value, torch.float32)
    x, y = torch.randn(2, 4), torch.empty(2, 4)
    run_body(recorder.finish(), {"x": x.view(-1), "y": y.view(-1)})
    torch.testing.assert_close(y, x.cumsum(1))


BAD = [
    ("isn't visible", (Operation("exp", (1,), torch.float32),)),
    ("no value dtype", (Operation("constant", (), torch.bfloat16, attribute="1.0"),)),
    ("unknown operation", (Operation("frobnicate", (), torch.float32),)),
    ("unknown buffer", (Operation("load", (), torch.float32, "nowhere", 0),)),
    (
        "have dtypes",
        (
            Operation("constant", (), torch.float32, attribute="1.0"),
            Operation("constant", (), torch.int64, attribute="1"),
            Operation("add", (0, 1), torch.float32),
        ),
    ),
    ("takes 2 operands", (Operation("add", (), torch.float32),)),
]


@pytest.mark.parametrize(("problem", "operations"), BAD, ids=[problem for problem, _ in BAD])
def test_verify_names_what_is_wrong(problem, operations):
    body = LoopBody((2,), (), (Stage("outer", 0, operations),))
    with pytest.raises(VerificationError, match=problem):
        verify_body("n0", body, {})


def test_values_of_a_sweep_end_with_it():
    load = Operation("load", (), torch.float32, "x", 0)
    body = LoopBody(
        (2,),
        (3,),
        (Stage("inner", 0, (load,)), Stage("outer", 1, (Operation("exp", (0,), torch.float32),))),
    )
    with pytest.raises(VerificationError, match="isn't visible"):
        verify_body("n0", body, buffers(x=(3, torch.float32)))


def test_apply_operation_passes_fields_as_the_protocol_says():
    calls = []

    class Probe:
        def __getattr__(self, name):
            return lambda *arguments: calls.append((name, arguments)) or name

    apply_operation(
        Probe(), Operation("load", (0,), torch.float32, "x", 3, "bfloat16", masked=True), {0: "m"}
    )
    assert calls == [("load", ("x", 3, torch.bfloat16, (), "m"))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("by", [0.9, 3.0, 0.0, -2.0, float("inf"), float("nan")])
def test_a_truth_value_over_a_constant(dtype, by):
    recorder = Recorder((2,))
    (i,) = recorder.outer
    mask = recorder.load("mask", i, torch.bool)
    quotient = recorder.op("div", recorder.to_dtype(mask, dtype), recorder.constant(by, dtype))
    recorder.store("out", i, quotient, dtype)
    body = recorder.finish()
    assert ("div" in {operation.name for _, operation, _ in body.operations()}) == (
        not 0 < by < float("inf")
    )
    storages = {"mask": torch.tensor([True, False]), "out": torch.zeros(2, dtype=dtype)}
    run_body(body, storages, {}, {}, {})
    expected = torch.tensor([1, 0], dtype=dtype) / torch.tensor(by, dtype=dtype)
    torch.testing.assert_close(storages["out"], expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_constants_and_truth_values_are_rounded_while_recording(dtype):
    recorder = Recorder((2,))
    (i,) = recorder.outer
    mask = recorder.load("mask", i, torch.bool)
    choice = recorder.op(
        "where", mask, recorder.constant(0.3, torch.float32), recorder.constant(1e9, torch.float32)
    )
    recorder.store("out", i, recorder.round_to(choice, dtype), dtype)
    recorder.store("number", i, recorder.to_dtype(mask, dtype), dtype)
    body = recorder.finish()
    assert "round_to" not in {operation.name for _, operation, _ in body.operations()}
    storages = {"mask": torch.tensor([True, False])}
    storages |= {name: torch.zeros(2, dtype=dtype) for name in ("out", "number")}
    run_body(body, storages, {}, {}, {})
    assert torch.equal(storages["out"], torch.tensor([0.3, 1e9]).to(dtype))
    assert storages["number"].tolist() == [1, 0]
