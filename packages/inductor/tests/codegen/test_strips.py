"""Loops in strips: what is done for a whole strip equals what is done one by one, at any length, in place or not."""

import importlib.util
from pathlib import Path

import pytest
import torch

from inductor.codegen.cpp import kernel_source
from inductor.ir import Recorder, Streamed
from primtorch.symbolic import Symbol

_SPEC = importlib.util.spec_from_file_location(
    "cpp_harness", Path(__file__).with_name("cpp_harness.py")
)
harness = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(harness)
check, make_kernel, run_cpp = harness.check, harness.make_kernel, harness.run_cpp

pytestmark = pytest.mark.cxx
F32 = torch.float32
HALVES = [torch.bfloat16, torch.float16]


def pointwise(count, result, *names, source=F32, out="out"):
    """`out = names[-1](... names[0](x))`, stored as `result`."""
    recorder = Recorder((count,))
    (i,) = recorder.outer
    value = recorder.to_dtype(recorder.load("x", i, source), F32)
    for name in names:
        value = recorder.op(name, value)
    recorder.store(out, i, recorder.to_dtype(value, result), result)
    return recorder.finish()


def run(body, x, out, **options):
    kernel = make_kernel(body, **options)
    assert run_cpp(kernel, {"x": x, "out": out}) == 0
    return out


def in_strips(body):
    return "for (i64 k = 0;" in kernel_source(make_kernel(body)).text


def ulps(ours, exact):
    """Distance in units in the last place of a float32, or 0 where both are the same special value."""
    reference = exact.float()
    same = (ours == reference) | (ours.isnan() & reference.isnan())
    upper = torch.nextafter(reference.abs(), torch.full_like(reference, torch.inf))
    unit = (upper.double() - reference.abs().double()).clamp(min=2.0**-149)
    return torch.where(same, 0.0, (ours.double() - exact).abs() / unit).max().item()


@pytest.mark.parametrize("dtype", HALVES)
def test_every_kind_of_number_is_rounded_as_torch_does(dtype):
    high = torch.arange(1 << 16, dtype=torch.int32) << 16
    low = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x0FFF, 0x1000, 0x1001, 0x3000])
    x = (high[:, None] | low.to(torch.int32)).view(-1).view(F32)
    body = pointwise(x.numel(), dtype)
    assert in_strips(body)
    out = run(body, x, torch.empty(x.numel(), dtype=dtype))
    expected = x.to(dtype)
    torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)
    numbers = ~expected.isnan()
    assert torch.equal(out.view(torch.int16)[numbers], expected.view(torch.int16)[numbers])


@pytest.mark.parametrize("name", ["exp", "erf"])
def test_functions_of_strips_are_within_two_ulp(name):
    wide = torch.linspace(-110, 95, 200_001)
    near = torch.cat([sign * torch.logspace(-44, 1, 20_001) for sign in (1, -1)])
    edges = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 88.72284, -103.97208])
    x = torch.cat([wide, near, edges])
    x = x[: x.numel() // 32 * 32]
    x[-7:] = edges
    body = pointwise(x.numel(), F32, name)
    assert in_strips(body)
    out = run(body, x, torch.empty_like(x))
    assert ulps(out, getattr(torch, name)(x.double())) <= 2
    if name == "erf":
        assert torch.equal(out[-7:].signbit(), x[-7:].signbit())


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_circular_functions_of_numbers_of_any_size(name):
    x = torch.cat([torch.logspace(-44, 38.5, 80_001), torch.randn(80_000) * 30])
    x = torch.cat([x, -x, torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan])])
    exact = getattr(torch, name)(x.double())
    body = pointwise(x.numel(), F32, name)
    assert in_strips(body)
    for shuffled in (
        torch.arange(x.numel()),
        torch.randperm(x.numel()),
    ):  # strips of one kind, of both
        out = run(body, x[shuffled].contiguous(), torch.empty_like(x))
        assert ulps(out, exact[shuffled]) <= 2
        assert torch.equal(
            out.signbit() & ~out.isnan(), (exact.signbit() & ~exact.isnan())[shuffled]
        )


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("length", [5, 32, 33, 63, 64, 96, 100, 129])
@pytest.mark.parametrize("source", [F32, torch.bfloat16, torch.int8, torch.bool])
def test_any_length(length, source, threads):
    x = (torch.randn(length) * 4).to(source)
    body = pointwise(length, torch.bfloat16, "erf", "exp", source=source)
    check(body, {"x": x, "out": torch.empty(length, dtype=torch.bfloat16)}, threads=threads)


@pytest.mark.parametrize("length", [32, 40, 64, 100])
def test_a_point_is_not_done_twice_in_place(length):
    x = torch.randn(length)
    check(pointwise(length, F32, "exp", out="x"), {"x": x})
    half = x.bfloat16()
    body = pointwise(length, torch.bfloat16, "exp", source=torch.bfloat16, out="x")
    check(body, {"x": half})
    # an output that takes the memory of what it was computed from
    shared = half.clone()
    body = pointwise(length, torch.bfloat16, "exp", source=torch.bfloat16)
    run(body, shared, shared, reuses=[("out", "x")])
    torch.testing.assert_close(shared, half.exp())


def test_one_text_serves_every_length():
    length = Symbol("s0", 2)
    body = pointwise(length, torch.bfloat16, "exp")
    for count in (3, 32, 77):
        x = torch.randn(count)
        out = torch.empty(count, dtype=torch.bfloat16)
        assert run_cpp(make_kernel(body, sizes=(length,)), {"x": x, "out": out}, (count,)) == 0
        torch.testing.assert_close(out, x.exp().bfloat16())


@pytest.mark.parametrize("columns", [7, 64, 100, 5000])
def test_sums_of_exponentials(columns):
    rows = 3
    recorder = Recorder((rows,), (columns,))
    (i,), (r,) = recorder.outer, recorder.inner
    recorder.stage("inner")
    power = recorder.op("exp", recorder.load("x", i * columns + r, F32))
    recorder.store(
        "powers", i * columns + r, recorder.to_dtype(power, torch.float16), torch.float16
    )
    total = recorder.reduce("sum", power, dtype=F32)
    recorder.stage("outer")
    recorder.store("out", i, total, F32)
    storages = {
        "x": torch.randn(rows * columns),
        "powers": torch.empty(rows * columns, dtype=torch.float16),
        "out": torch.empty(rows),
    }
    check(recorder.finish(), storages, rtol=1e-3, atol=1e-6)


def test_narrower_machines_take_exponentials_one_by_one():
    body = pointwise(64, F32, "exp")
    assert "ci_exp_strip" in kernel_source(make_kernel(body)).text
    assert "ci_exp_strip" not in kernel_source(make_kernel(body), wide=False).text


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.bool])
def test_bytes_are_half_precision_numbers_already(dtype):
    for half in HALVES:
        operations = [op.name for _, op, _ in pointwise(64, half, source=dtype).operations()]
        assert "round_to" not in operations
    values = torch.arange(256).to(dtype)
    assert torch.equal(values.bfloat16().float(), values.float())


def rows_apart(rows, columns, dtype):
    """Every second row of `x`, doubled, into every second row of `out`."""
    recorder = Recorder((rows, columns))
    i, j = recorder.outer
    place = i * 2 * columns + j
    value = recorder.to_dtype(recorder.load("x", place, F32), F32)
    value = recorder.to_dtype(recorder.op("add", value, value), dtype)
    recorder.store("out", place, value, dtype)
    return recorder.finish()


@pytest.mark.parametrize("dtype", [F32, *HALVES])
@pytest.mark.parametrize("columns", [32, 64, 96, 100])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("alone", [False, True])
def test_results_are_written_past_the_caches(dtype, columns, threads, alone):
    body, rows = rows_apart(9, columns, dtype), 18
    past = [Streamed("out", alone=alone)]
    assert "ci_stream_" not in kernel_source(make_kernel(body)).text
    assert "ci_stream_" in kernel_source(make_kernel(body, streamed=past)).text
    assert "ci_stream_" not in kernel_source(make_kernel(body, streamed=past), wide=False).text
    storages = {
        "x": torch.randn(rows * columns),
        "out": torch.zeros(rows * columns + 1, dtype=dtype)[1:],  # its lines begin elsewhere
    }
    check(body, storages, threads=threads, streamed=past)
    storages["out"] = torch.zeros(rows * columns, dtype=dtype)
    check(body, storages, threads=threads, streamed=past)


@pytest.mark.parametrize("kind", ["sum", "max"])
@pytest.mark.parametrize("columns", [20, 64, 77])
def test_running_results_of_halves(kind, columns):
    rows = 5
    recorder = Recorder((rows,), (columns,))
    (i,), (r,) = recorder.outer, recorder.inner
    recorder.stage("inner")
    value = recorder.load("x", i * columns + r, torch.bfloat16)
    running = recorder.scan(recorder.op("exp", value), kind)
    recorder.store(
        "out", i * columns + r, recorder.to_dtype(running, torch.bfloat16), torch.bfloat16
    )
    x = torch.randn(rows * columns).bfloat16()
    check(recorder.finish(), {"x": x, "out": torch.empty_like(x)})
