"""Generated Triton kernels against the reference interpreter of the loop IR."""

import dataclasses

import pytest
import torch

from inductor.ir import Recorder, Vector, run_body
from inductor.ir.kernel import Tile
from inductor.ir.operations import BoundsCheck
from inductor.schedule.blocks import Blocks
from primtorch.symbolic import Symbol

F32 = torch.float32


def check(
    run_kernel,
    kernel,
    storages,
    *,
    blocks=None,
    sizes=None,
    scalars=None,
    locals_=None,
    tolerance=1e-6,
):
    expected = {name: tensor.clone() for name, tensor in storages.items()}
    reference = dict(expected)
    for name, (dtype, _) in (locals_ or {}).items():
        reference[name] = torch.empty(1, dtype=dtype)
    run_body(
        kernel.body,
        reference,
        sizes or {},
        scalars or {},
        {name: n for name, (_, n) in (locals_ or {}).items()},
    )
    source = run_kernel(kernel, storages, blocks, sizes, scalars)
    for argument in kernel.arguments:
        if argument.access != "read":
            torch.testing.assert_close(
                storages[argument.buffer],
                expected[argument.buffer],
                rtol=tolerance,
                atol=tolerance,
                equal_nan=True,
            )
    return source


def pointwise_body():
    recorder = Recorder((5, 7))
    i, j = recorder.outer
    x = recorder.load("x", 7 * i + j, F32)
    bias = recorder.load("bias", j, F32)
    value = recorder.op("tanh", recorder.op("add", x, bias))
    recorder.store("out", 7 * i + j, recorder.op("mul", value, recorder.constant(0.5, F32)), F32)
    return recorder.finish()


def test_pointwise(run_kernel, make_kernel):
    storages = {"x": torch.randn(35), "bias": torch.randn(7), "out": torch.full((35,), torch.nan)}
    kernel = make_kernel(pointwise_body(), dict.fromkeys(storages, F32))
    check(run_kernel, kernel, storages)


def test_transposed_tile(run_kernel, make_kernel):
    recorder = Recorder((40, 50))
    i, j = recorder.outer
    recorder.store("out", 50 * i + j, recorder.load("x", i + 40 * j, F32), F32)
    kernel = make_kernel(recorder.finish(), {"x": F32, "out": F32}, tile=Tile((0, 1), 32))
    check(run_kernel, kernel, {"x": torch.randn(2000), "out": torch.zeros(2000)})


def softmax_body(rows, width):
    recorder = Recorder((rows,), (width,))
    (i,), (r,) = recorder.outer, recorder.inner
    recorder.stage("inner")
    highest = recorder.reduce("max", recorder.load("x", width * i + r, F32), dtype=F32)
    recorder.stage("inner")
    value = recorder.op("exp", recorder.op("sub", recorder.load("x", width * i + r, F32), highest))
    total = recorder.reduce("sum", value, dtype=F32)
    recorder.store("row", r, value, F32)
    recorder.stage("inner")
    recorder.store(
        "out", width * i + r, recorder.op("div", recorder.load("row", r, F32), total), F32
    )
    return recorder.finish()


@pytest.mark.parametrize(
    "blocks", [None, Blocks("looped", 1, 16, 1, 4, 1, 0), Blocks("looped", 4, 64, 1, 4, 1, 0)]
)
def test_softmax_keeps_its_row_in_registers_or_computes_it_again(run_kernel, make_kernel, blocks):
    storages = {"x": torch.randn(3 * 50), "out": torch.zeros(150)}
    kernel = make_kernel(
        softmax_body(3, 50), dict.fromkeys(storages, F32), locals_=[("row", F32, 50)]
    )
    check(run_kernel, kernel, storages, blocks=blocks, locals_={"row": (F32, 50)})


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("special", [None, torch.inf, -torch.inf, torch.nan, "all -inf"])
def test_maximum_and_sum_of_a_long_row_come_from_one_walk(run_kernel, make_kernel, stored, special):
    recorder = Recorder((3,), (50,))
    (i,), (r,) = recorder.outer, recorder.inner
    place = 50 * i + r

    def shifted():
        return recorder.op("add", recorder.load("x", place, F32), recorder.load("bias", r, F32))

    recorder.stage("inner")
    value = shifted()
    if stored:
        recorder.store("kept", place, value, F32)
    highest = recorder.reduce("max", value, dtype=F32)
    recorder.stage("inner")
    value = recorder.load("kept", place, F32) if stored else shifted()
    total = recorder.reduce(
        "sum", recorder.op("exp", recorder.op("sub", value, highest)), dtype=F32
    )
    recorder.stage("outer")
    result = recorder.op("add", highest, recorder.op("log", total))
    recorder.store("out", i, result, F32)
    names = ("x", "bias", "out", *(["kept"] if stored else []))
    storages = {"x": 3 * torch.randn(150), "bias": torch.randn(50), "out": torch.zeros(3)}
    if stored:
        storages["kept"] = torch.zeros(150)
    if special == "all -inf":
        storages["x"][50:100] = -torch.inf
    elif special is not None:
        storages["x"][70] = special
    kernel = make_kernel(recorder.finish(), dict.fromkeys(names, F32))
    blocks = Blocks("looped", 1, 16, 1, 4, 1, 0)
    source = check(run_kernel, kernel, storages, blocks=blocks)
    assert source.text.count("for r_start in range(0") == 1


def test_a_sum_that_hangs_on_another_maximum_is_walked_by_itself(run_kernel, make_kernel):
    recorder = Recorder((3,), (50,))
    (i,), (r,) = recorder.outer, recorder.inner
    recorder.stage("inner")
    highest = recorder.reduce("max", recorder.load("x", 50 * i + r, F32), dtype=F32)
    recorder.stage("inner")
    value = recorder.load("y", 50 * i + r, F32)
    total = recorder.reduce(
        "sum", recorder.op("exp", recorder.op("sub", value, highest)), dtype=F32
    )
    recorder.stage("outer")
    recorder.store("out", i, total, F32)
    storages = {"x": torch.randn(150), "y": torch.randn(150), "out": torch.zeros(3)}
    kernel = make_kernel(recorder.finish(), dict.fromkeys(storages, F32))
    source = check(
        run_kernel, kernel, storages, blocks=Blocks("looped", 1, 16, 1, 4, 1, 0), tolerance=1e-5
    )
    assert source.text.count("for r_start in range(0") == 2


def test_rows_of_half_types_are_divided_by_their_reciprocal(run_kernel, make_kernel):
    values = torch.tensor([2e-38, 3e-38, 1.0, 3e38, 0.0, -2.0, torch.inf, torch.nan])
    recorder = Recorder((8,), (8,))
    (i,), (r,) = recorder.outer, recorder.inner
    recorder.stage("outer")
    divisor = recorder.load("y", i, torch.bfloat16)
    recorder.stage("inner")
    quotient = recorder.op("div", recorder.load("x", 8 * i + r, torch.bfloat16), divisor)
    recorder.store("out", 8 * i + r, recorder.round_to(quotient, torch.bfloat16), torch.bfloat16)
    recorder.reduce("sum", quotient, dtype=F32)
    storages = {
        "y": values.bfloat16(), "x": values.bfloat16().repeat(8),
        "out": torch.zeros(64, dtype=torch.bfloat16),
    }  # fmt: skip
    kernel = make_kernel(recorder.finish(), dict.fromkeys(storages, torch.bfloat16))
    source = check(run_kernel, kernel, storages, tolerance=8e-3)
    assert "divide_by_row" in source.text


def norm_body(rows, width):
    recorder = Recorder((rows,), (width,))
    (i,), (r,) = recorder.outer, recorder.inner
    place = width * i + r
    recorder.stage("inner")
    total = recorder.op("add", recorder.load("a", place, F32), recorder.load("b", place, F32))
    recorder.store("x", place, total, F32)
    moments = recorder.reduce("welford", total, dtype=F32)
    recorder.stage("outer")
    mean, m2 = recorder.part(moments, 0, F32), recorder.part(moments, 1, F32)
    variance = recorder.op("div", m2, recorder.constant(width, F32))
    scale = recorder.op("rsqrt", recorder.op("add", variance, recorder.constant(1e-5, F32)))
    recorder.store("mean", i, mean, F32)
    recorder.store("rstd", i, scale, F32)
    recorder.stage("inner")
    centred = recorder.op("sub", recorder.load("x", place, F32), mean)
    value = recorder.op("mul", recorder.op("mul", centred, scale), recorder.load("w", r, F32))
    recorder.store("y", place, value, F32)
    return recorder.finish()


@pytest.mark.parametrize(
    "blocks", [None, Blocks("looped", 1, 32, 1, 4, 1, 0), Blocks("looped", 2, 32, 1, 4, 1, 0)]
)
def test_norm_reads_what_an_earlier_sweep_stored(run_kernel, make_kernel, blocks):
    rows, width = 5, 70
    storages = {name: torch.randn(rows * width) for name in ("a", "b", "x", "y")}
    storages |= {"w": torch.randn(width), "mean": torch.zeros(rows), "rstd": torch.zeros(rows)}
    kernel = make_kernel(norm_body(rows, width), dict.fromkeys(storages, F32))
    check(run_kernel, kernel, storages, blocks=blocks, tolerance=1e-5)


@pytest.mark.parametrize(
    "blocks",
    [
        None,
        Blocks("looped", 1, 16, 1, 4, 1, 0, unrolled=True),
        Blocks("looped", 1, 16, 1, 4, 1, 0, piece=12),
        Blocks("looped", 1, 32, 1, 4, 1, 0, piece=24, unrolled=True),
        Blocks("looped", 1, 8, 1, 4, 1, 0, piece=8, unrolled=True),
    ],
)
def test_rows_of_channels_are_walked_by_pieces_of_one_channel(run_kernel, make_kernel, blocks):
    """What a channel has for itself is one number of a turn; positions of extremes count as ever."""
    groups, channels, pixels = 5, 3, 24
    row = channels * pixels
    recorder = Recorder((groups,), (channels, pixels))
    (i,), (c, r) = recorder.outer, recorder.inner
    recorder.stage("inner")
    x = recorder.load("x", row * i + pixels * c + r, F32)
    spread = recorder.reduce("welford", x, dtype=F32)
    highest = recorder.reduce("argmax", x, dtype=torch.int64)
    recorder.stage("outer")
    mean, square, count = (recorder.part(spread, number, F32) for number in range(3))
    recorder.store("at", i, highest, torch.int64)
    recorder.store("count", i, count, F32)
    recorder.stage("inner")
    centred = recorder.op("sub", recorder.load("x", row * i + pixels * c + r, F32), mean)
    scaled = recorder.op("mul", centred, recorder.op("rsqrt", recorder.op("div", square, count)))
    weighted = recorder.op("mul", scaled, recorder.load("w", channels * i + c, F32))
    turned = recorder.op("add", weighted, recorder.load("z", r, F32))
    recorder.store("y", row * i + pixels * c + r, turned, F32)
    floats = {"x": groups * row, "w": groups * channels, "z": pixels, "y": groups * row}
    storages = {name: torch.randn(length) for name, length in floats.items()}
    storages |= {"at": torch.zeros(groups, dtype=torch.int64), "count": torch.zeros(groups)}
    dtypes = {name: tensor.dtype for name, tensor in storages.items()}
    kernel = make_kernel(recorder.finish(), dtypes)
    source = check(run_kernel, kernel, storages, blocks=blocks, tolerance=1e-5)
    assert ("static_range" in source.text) == (blocks is not None and blocks.unrolled)


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min", "any", "all", "argmax", "argmin"])
@pytest.mark.parametrize("mode", ["persistent", "looped"])
@pytest.mark.parametrize("dtype", [F32, torch.int64, torch.int32])
def test_every_reduction(run_kernel, make_kernel, kind, mode, dtype):
    recorder = Recorder((3,), (4, 5))
    (i,), (r, s) = recorder.outer, recorder.inner
    recorder.stage("inner")
    value = recorder.load("x", 20 * i + 5 * r + s, dtype)
    result = {
        "any": torch.bool,
        "all": torch.bool,
        "argmax": torch.int64,
        "argmin": torch.int64,
    }.get(kind, dtype)
    reduced = recorder.reduce(kind, value, dtype=result)
    recorder.stage("outer")
    recorder.store("out", i, reduced, result)
    x = torch.randn(60).to(dtype) if dtype is F32 else torch.randint(-3, 4, (60,), dtype=dtype)
    if dtype is F32 and kind in ("max", "min", "argmax", "argmin"):
        x[25] = torch.nan
    storages = {"x": x, "out": torch.zeros(3, dtype=result)}
    kernel = make_kernel(recorder.finish(), {"x": dtype, "out": result})
    blocks = Blocks("looped", 2, 8, 1, 4, 1, 0) if mode == "looped" else None
    check(run_kernel, kernel, storages, blocks=blocks, tolerance=1e-5)


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min", "logaddexp"])
@pytest.mark.parametrize("mode", ["persistent", "looped"])
def test_every_scan(run_kernel, make_kernel, kind, mode):
    recorder = Recorder((3,), (20,))
    (i,), (r,) = recorder.outer, recorder.inner
    recorder.stage("inner")
    recorder.store("out", 20 * i + r, recorder.scan(recorder.load("x", 20 * i + r, F32), kind), F32)
    kernel = make_kernel(recorder.finish(), {"x": F32, "out": F32})
    blocks = Blocks("looped", 2, 8, 1, 4, 1, 0) if mode == "looped" else None
    check(
        run_kernel,
        kernel,
        {"x": torch.randn(60), "out": torch.zeros(60)},
        blocks=blocks,
        tolerance=1e-5,
    )


@pytest.mark.parametrize("ahead", [0, 1])
def test_columns_of_a_norm_backward_are_partial_rows(run_kernel, make_kernel, ahead):
    rows, width, programs = 37, 20, 4
    recorder = Recorder((rows,), (width,))
    (i,), (r,) = recorder.outer, recorder.inner
    recorder.stage("inner")
    value = recorder.load("x", width * i + r, F32)
    recorder.store("y", width * i + r, recorder.op("mul", value, value), F32)
    recorder.accumulate("columns", r, value, F32, "sum")
    kernel = make_kernel(recorder.finish(), dict.fromkeys(("x", "y", "columns"), F32))
    x = torch.randn(rows * width)
    storages = {
        "x": x,
        "y": torch.zeros(rows * width),
        "columns": torch.full((programs * width,), torch.nan),
    }
    blocks = Blocks("persistent", 4, 32, 1, 4, 1, programs, ahead)
    source = run_kernel(kernel, storages, blocks)
    assert ("num_stages=2" in source.text) == bool(ahead)
    torch.testing.assert_close(
        storages["columns"].view(programs, width).sum(0), x.view(rows, width).sum(0)
    )
    torch.testing.assert_close(storages["y"], x * x)


def test_column_reduction_walks_wide_tiles(run_kernel, make_kernel):
    rows, width = 100, 48
    recorder = Recorder((width,), (rows,))
    (i,), (r,) = recorder.outer, recorder.inner
    recorder.stage("inner")
    total = recorder.reduce("sum", recorder.load("x", i + width * r, F32), dtype=F32)
    recorder.stage("outer")
    recorder.store("out", i, total, F32)
    vector = Vector("outer", 0, 16)
    kernel = make_kernel(recorder.finish(), {"x": F32, "out": F32}, vector=vector)
    check(
        run_kernel,
        kernel,
        {"x": torch.randn(rows * width), "out": torch.zeros(width)},
        tolerance=1e-5,
    )


def test_sizes_and_scalars_are_parameters(run_kernel, make_kernel):
    size = Symbol("s0", 2, None)
    recorder = Recorder((size, 3))
    i, j = recorder.outer
    scaled = recorder.to_dtype(recorder.argument("alpha", torch.float64), F32)
    recorder.store(
        "out", 3 * i + j, recorder.op("mul", recorder.load("x", 3 * i + j, F32), scaled), F32
    )
    kernel = make_kernel(
        recorder.finish(),
        {"x": F32, "out": F32},
        sizes=(size,),
        scalars=(("alpha", torch.float64),),
    )
    storages = {"x": torch.randn(21), "out": torch.zeros(21)}
    check(run_kernel, kernel, storages, sizes={size: 7}, scalars={"alpha": 2.5})


def test_gather_wraps_negative_indices(run_kernel, make_kernel):
    recorder = Recorder((6, 4))
    i, j = recorder.outer
    check_bounds = BoundsCheck("IndexError", "index {index} is out of bounds")
    row = recorder.indirect(
        recorder.load("index", i, torch.int64), 10, wrap=True, check=check_bounds
    )
    recorder.store("out", 4 * i + j, recorder.load("x", 4 * row + j, F32), F32)
    kernel = make_kernel(recorder.finish(), {"x": F32, "index": torch.int64, "out": F32})
    storages = {
        "x": torch.randn(40),
        "index": torch.tensor([0, 9, -1, -10, 3, 3]),
        "out": torch.zeros(24),
    }
    source = check(run_kernel, kernel, storages)
    assert source.bounds_checked


def test_scatter_adds_where_points_meet(run_kernel, make_kernel):
    recorder = Recorder((6, 4))
    i, j = recorder.outer
    row = recorder.indirect(recorder.load("index", i, torch.int64), 3, wrap=False, check=None)
    recorder.store("out", 4 * row + j, recorder.load("x", 4 * i + j, F32), F32, "add")
    kernel = make_kernel(recorder.finish(), {"x": F32, "index": torch.int64, "out": F32})
    storages = {
        "x": torch.randn(24),
        "index": torch.tensor([0, 1, 1, 2, 0, 1]),
        "out": torch.zeros(12),
    }
    check(run_kernel, kernel, storages)


def test_half_types_are_computed_in_float32(run_kernel, make_kernel):
    for half in (torch.float16, torch.bfloat16):
        recorder = Recorder((33,))
        (i,) = recorder.outer
        value = recorder.op("mul", recorder.load("x", i, half), recorder.constant(1.1, F32))
        value = recorder.round_to(value, half)
        recorder.store("out", i, recorder.op("exp", value), half)
        kernel = make_kernel(recorder.finish(), {"x": half, "out": half})
        # the interpreter cuts bfloat16 where the hardware rounds: a step of its grid, which exp multiplies
        tolerance = 1e-3 if half is torch.float16 else 4e-2
        storages = {"x": torch.randn(33).to(half), "out": torch.zeros(33, dtype=half)}
        check(run_kernel, kernel, storages, tolerance=tolerance)


def test_equal_kernels_have_equal_text(make_kernel):
    from inductor.codegen.triton import write_kernel
    from inductor.ir.machine import H200
    from inductor.schedule.blocks import choose_blocks

    def text(names):
        recorder = Recorder((64,))
        (i,) = recorder.outer
        recorder.store(names[1], i, recorder.op("neg", recorder.load(names[0], i, F32)), F32)
        kernel = make_kernel(recorder.finish(), dict.fromkeys(names, F32))
        return write_kernel(
            dataclasses.replace(kernel, name=names[0]), choose_blocks(kernel, H200)
        ).text

    assert text(("a", "b")) == text(("first", "second"))
