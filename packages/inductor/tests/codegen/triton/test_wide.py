"""More than 2**31 elements: places are counted in 64 bits, and only then."""

import pytest
import torch

from inductor.codegen.triton import write_kernel
from inductor.ir import Buffer, Recorder, Vector, run_body
from inductor.ir.kernel import Tile
from inductor.ir.machine import H200
from inductor.schedule.blocks import Blocks, choose_blocks
from inductor.schedule.decide import NARROW, decide

F32, I64 = torch.float32, torch.int64
CPU = torch.device("cpu")


def points(count):
    recorder = Recorder((count,))
    (i,) = recorder.outer
    value = recorder.op("add", recorder.load("x", i, F32), recorder.constant(1.0, F32))
    recorder.store("out", i, value, F32)
    return recorder.finish()


def outer_sum(n, m):
    recorder = Recorder((), (n, m))
    i, j = recorder.inner
    recorder.stage("inner")
    value = recorder.op("mul", recorder.load("x", i, F32), recorder.load("y", j, F32))
    total = recorder.reduce("sum", value, dtype=F32)
    recorder.stage("outer")
    recorder.store("out", 0, total, F32)
    return recorder.finish()


def line(name, length, dtype=F32):
    return Buffer(name, (length,), (1,), dtype, CPU)


@pytest.mark.parametrize(
    ("count", "wide"), [(1000, False), (NARROW - 1, False), (2**31 - 5, True), (2**33, True)]
)
def test_a_long_line_is_wide(count, wide):
    """Up to the end of 32 bits and not only from there: the last program's places go beyond the end."""
    body = points(count)
    assert decide(body, {n: line(n, count) for n in ("x", "out")}).wide_index == wide


@pytest.mark.parametrize(("side", "wide"), [(1000, False), (1 << 16, True)])
def test_a_table_that_is_never_stored_is_wide_too(side, wide):
    buffers = {"x": line("x", side), "y": line("y", side), "out": line("out", 1)}
    assert decide(outer_sum(side, side), buffers).wide_index == wide


def tiles():
    recorder = Recorder((40, 50))
    i, j = recorder.outer
    recorder.store("out", 50 * i + j, recorder.load("x", 40 * j + i, F32), F32)
    return recorder.finish()


def rows(length):
    recorder = Recorder((5,), (length,))
    (i,), (r,) = recorder.outer, recorder.inner
    recorder.stage("inner")
    value = recorder.load("x", length * i + r, F32)
    best, total = (
        recorder.reduce("argmax", value, dtype=I64),
        recorder.reduce("sum", value, dtype=F32),
    )
    recorder.stage("outer")
    recorder.store("at", i, best, I64)
    recorder.store("out", i, total, F32)
    return recorder.finish()


def columns():
    recorder = Recorder((48,), (300,))
    (i,), (r,) = recorder.outer, recorder.inner
    recorder.stage("inner")
    total = recorder.reduce("sum", recorder.load("x", i + 48 * r, F32), dtype=F32)
    recorder.stage("outer")
    recorder.store("out", i, total, F32)
    return recorder.finish()


LOOPED = Blocks("looped", 1, 64, 1, 4, 1, 0)
CASES = {
    "points": (points(1000), 1000, {}, None),
    "tiles": (tiles(), 2000, {"tile": Tile((0, 1), 32)}, None),
    "rows": (rows(37), 5 * 37, {}, None),
    "looped rows": (rows(150), 5 * 150, {}, LOOPED),
    "columns": (columns(), 48 * 300, {"vector": Vector("outer", 0, 16)}, None),
}


@pytest.mark.parametrize("name", CASES)
def test_wide_kernels_compute_the_same(make_kernel, run_kernel, name):
    body, length, decisions, blocks = CASES[name]
    dtypes = {"x": F32, "out": F32, "at": I64}
    storages = {
        "x": torch.randn(length),
        "out": torch.zeros(length),
        "at": torch.zeros(5, dtype=I64),
    }
    expected = {name: tensor.clone() for name, tensor in storages.items()}
    run_body(body, expected)
    source = run_kernel(make_kernel(body, dtypes, wide=True, **decisions), storages, blocks)
    for name, found in storages.items():
        torch.testing.assert_close(found, expected[name], rtol=1e-5, atol=1e-4)
    assert "tl.program_id(0).to(tl.int64)" in source.text
    assert ".to(tl.int32)" not in source.text
    narrow = write_kernel(
        make_kernel(body, dtypes, **decisions),
        blocks or choose_blocks(make_kernel(body, dtypes), H200),
    )
    assert "tl.program_id(0).to(tl.int32)" in narrow.text


def test_a_value_may_be_wider_than_its_place(make_kernel, run_kernel):
    recorder = Recorder((9,))
    (i,) = recorder.outer
    recorder.store("out", i, recorder.index_expression(3_000_000_000 * i - 7, I64), I64)
    storages = {"out": torch.zeros(9, dtype=I64)}
    source = run_kernel(make_kernel(recorder.finish(), {"out": I64}), storages)
    assert storages["out"].tolist() == [3_000_000_000 * k - 7 for k in range(9)]
    assert "program_id(0).to(tl.int32)" in source.text
