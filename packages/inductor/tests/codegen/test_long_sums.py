"""Sums and statistics over many points in C++ kernels are as near to float64 as eager's."""

import importlib.util
from pathlib import Path

import pytest
import torch

from inductor.codegen.cpp import kernel_source
from inductor.ir import Recorder

_SPEC = importlib.util.spec_from_file_location(
    "cpp_harness", Path(__file__).with_name("cpp_harness.py")
)
harness = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(harness)
make_kernel, run_cpp = harness.make_kernel, harness.run_cpp

pytestmark = pytest.mark.cxx
F32 = torch.float32


def error(found, exact):
    return float((found.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("outer", [(32768,), (8, 4096)])
@pytest.mark.parametrize("threads", [1, 3])
def test_columns_that_are_added_beside_rows_keep_their_digits(outer, threads):
    columns = 16
    recorder = Recorder(outer, (columns,))
    place, (column,) = recorder.outer, recorder.inner
    row = place[0] if len(outer) == 1 else place[0] * outer[1] + place[1]
    recorder.stage("inner")
    value = recorder.load("x", row * columns + column, F32)
    recorder.store("out", row * columns + column, value, F32)
    recorder.accumulate("total", column, value, F32, "sum")
    x = torch.randn(32768, columns, generator=torch.Generator().manual_seed(0)) + 0.1
    total, out = torch.empty(columns), torch.empty(x.numel())
    kernel = make_kernel(recorder.finish(), parallel=len(outer))
    assert run_cpp(kernel, {"x": x.reshape(-1), "out": out, "total": total}, threads=threads) == 0
    assert torch.equal(out, x.reshape(-1))
    exact = x.double().sum(0)
    assert error(total, exact) <= max(1.5 * error(x.sum(0), exact), 1e-6)


@pytest.mark.parametrize("side", [1, 3, 16, 40])
@pytest.mark.parametrize("vector", ["column", "auto"])
def test_statistics_of_small_images_in_a_large_batch(side, vector):
    batch, columns = 8192 // side, 24
    recorder = Recorder((columns,), (batch, side))
    (column,), (number, place) = recorder.outer, recorder.inner
    recorder.stage("inner")
    value = recorder.load("x", (number * side + place) * columns + column, F32)
    statistics = recorder.reduce("welford", value, dtype=F32)
    recorder.stage("outer")
    for k, name in enumerate(("mean", "m2", "count")):
        recorder.store(name, column, recorder.part(statistics, k, F32), F32)
    x = torch.randn(batch * side, columns, generator=torch.Generator().manual_seed(0)) + 3
    out = {name: torch.empty(columns) for name in ("mean", "m2", "count")}
    kernel = make_kernel(recorder.finish(), vector=vector)
    assert run_cpp(kernel, {"x": x.reshape(-1), **out}) == 0
    exact = x.double()
    assert error(out["mean"], exact.mean(0)) <= 1.5e-7
    assert error(out["m2"], (exact - exact.mean(0)).square().sum(0)) <= 3e-7
    assert torch.equal(out["count"], torch.full((columns,), float(batch * side)))


def test_a_sum_beside_a_store_keeps_its_digits():
    rows, columns = 32768, 16
    recorder = Recorder((columns,), (rows,))
    (column,), (row,) = recorder.outer, recorder.inner
    recorder.stage("inner")
    value = recorder.load("x", row * columns + column, F32)
    recorder.store("out", row * columns + column, value, F32)
    total = recorder.reduce("sum", value, dtype=F32)
    recorder.stage("outer")
    recorder.store("total", column, total, F32)
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)) + 0.1
    storages = {"x": x.reshape(-1), "out": torch.empty(x.numel()), "total": torch.empty(columns)}
    assert run_cpp(make_kernel(recorder.finish(), vector="column"), storages) == 0
    assert torch.equal(storages["out"], x.reshape(-1))
    exact = x.double().sum(0)
    assert error(storages["total"], exact) <= max(1.5 * error(x.sum(0), exact), 1e-6)


@pytest.mark.parametrize("extents", [(0, 4), (4, 0)])
def test_statistics_of_no_points_count_none(extents):
    recorder = Recorder((24,), extents)
    (column,), (number, place) = recorder.outer, recorder.inner
    recorder.stage("inner")
    value = recorder.load("x", (number * extents[1] + place) * 24 + column, F32)
    statistics = recorder.reduce("welford", value, dtype=F32)
    recorder.stage("outer")
    recorder.store("count", column, recorder.part(statistics, 2, F32), F32)
    count = torch.ones(24)
    kernel = make_kernel(recorder.finish(), vector="column")
    assert run_cpp(kernel, {"x": torch.empty(1), "count": count}) == 0
    assert torch.equal(count, torch.zeros(24))


@pytest.mark.parametrize("threads", [1, 3])
def test_columns_of_no_rows_are_empty_sums(threads):
    columns = 6
    recorder = Recorder((0,), (columns,))
    (row,), (column,) = recorder.outer, recorder.inner
    recorder.stage("inner")
    value = recorder.load("x", row * columns + column, F32)
    recorder.store("out", row * columns + column, value, F32)
    recorder.accumulate("total", column, value, F32, "sum")
    total = torch.full((columns,), float("nan"))
    kernel = make_kernel(recorder.finish(), parallel=1)
    tensors = {"x": torch.empty(1), "out": torch.empty(1), "total": total}
    assert run_cpp(kernel, tensors, threads=threads) == 0
    assert torch.equal(total, torch.zeros(columns))


@pytest.mark.parametrize("stored", [False, True])
def test_a_batchs_means_are_summed_in_double(stored):
    """As eager's: a mean far from zero has no more than the error of its own rounding."""
    batch, channels, pixels = 8, 4, 784
    recorder = Recorder((channels,), (batch, pixels))
    (channel,), (image, pixel) = recorder.outer, recorder.inner
    place = image * channels * pixels + channel * pixels + pixel
    recorder.stage("inner")
    value = recorder.load("x", place, F32)
    if stored:
        recorder.store("out", place, value, F32)
    moments = recorder.reduce("welford", value, dtype=F32)
    recorder.stage("outer")
    recorder.store("mean", channel, recorder.part(moments, 0, F32), F32)
    recorder.store("m2", channel, recorder.part(moments, 1, F32), F32)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, channels, pixels, generator=generator) * 0.1 + 37.3
    buffers = {"x": x.reshape(-1), "mean": torch.empty(channels), "m2": torch.empty(channels)}
    if stored:
        buffers["out"] = torch.empty(x.numel())
    assert run_cpp(make_kernel(recorder.finish()), buffers) == 0
    variance, mean = torch.var_mean(x.double(), (0, 2), correction=0)
    assert torch.equal(buffers["mean"], mean.float())
    assert error(buffers["m2"] / (batch * pixels), variance) < 1e-6


@pytest.mark.parametrize("columns", [256, 320, 1000, 5000])
@pytest.mark.parametrize("placed", [False, True])
def test_sums_of_bfloat16_take_their_lanes_in_any_order(columns, placed):
    """Numbers of 16 bits are widened two by two, unless something in the sum depends on a point's place."""
    rows = 5
    recorder = Recorder((rows,), (columns,))
    (row,), (column,) = recorder.outer, recorder.inner
    recorder.stage("inner")
    half = torch.bfloat16
    value = recorder.op(
        "mul",
        recorder.load("x", row * columns + column, half),
        recorder.load("weight", column, half),
    )
    if placed:
        place = recorder.to_dtype(recorder.index_expression(column, torch.int64), F32)
        value = recorder.op("mul", value, place)
    total = recorder.reduce("sum", value, dtype=F32)
    recorder.stage("outer")
    recorder.store("out", row, total, F32)
    kernel = make_kernel(recorder.finish())
    assert ("ci_widen_bf16" in kernel_source(kernel).text) == (not placed)
    x, weight = torch.randn(rows, columns).to(half), torch.randn(columns).to(half)
    weight[3] = -0.0
    out = torch.empty(rows)
    assert run_cpp(kernel, {"x": x.reshape(-1), "weight": weight, "out": out}) == 0
    exact = x.double() * weight.double() * (torch.arange(columns) if placed else 1)
    spread = exact.abs().sum(1)
    assert ((out - exact.sum(1)).abs() <= 1e-6 * spread).all()


@pytest.mark.parametrize("dtype", [F32, torch.bfloat16])
def test_a_sum_fetches_what_comes_next_where_it_reads_once(dtype):
    def text(reduction):
        recorder = Recorder((7,), (640,))
        (row,), (column,) = recorder.outer, recorder.inner
        recorder.stage("inner")
        value = recorder.to_dtype(recorder.load("x", row * 640 + column, dtype), F32)
        found = recorder.reduce(reduction, value, dtype=F32)
        recorder.stage("outer")
        found = recorder.part(found, 0, F32) if reduction == "welford" else found
        recorder.store("out", row, found, F32)
        return kernel_source(make_kernel(recorder.finish())).text

    assert "__builtin_prefetch" in text("sum")
    assert "__builtin_prefetch" not in text("welford")


@pytest.mark.parametrize("columns", [5, 64, 300, 4096, 5000])
@pytest.mark.parametrize("dtype", [F32, torch.bfloat16])
def test_statistics_beside_sums_and_stores(columns, dtype):
    """What a norm's backward does that takes its statistics again."""
    rows = 6
    recorder = Recorder((rows,), (columns,))
    (row,), (column,) = recorder.outer, recorder.inner
    place = row * columns + column
    recorder.stage("inner")
    x = recorder.to_dtype(recorder.load("x", place, dtype), F32)
    y = recorder.to_dtype(recorder.load("y", place, dtype), F32)
    both = recorder.op("mul", x, y)
    total = recorder.reduce("sum", both, dtype=F32)
    found = recorder.reduce("welford", x, dtype=F32)
    recorder.accumulate("columns", column, y, F32, "sum")
    recorder.store("products", place, both, F32)
    recorder.stage("outer")
    for name, value in (
        ("total", total), ("mean", recorder.part(found, 0, F32)), ("spread", recorder.part(found, 1, F32)),
    ):  # fmt: skip
        recorder.store(name, row, value, F32)
    storages = {
        "x": (torch.randn(rows * columns) + 3).to(dtype),
        "y": torch.randn(rows * columns).to(dtype),
        "columns": torch.empty(columns),
        "products": torch.empty(rows * columns),
        "total": torch.empty(rows), "mean": torch.empty(rows), "spread": torch.empty(rows),
    }  # fmt: skip
    kernel = make_kernel(recorder.finish())
    assert ("_t[" in kernel_source(kernel).text) == (columns > 4096)  # a copy of the row
    harness.check(kernel.body, storages, threads=2, rtol=2e-5, atol=2e-4)
