"""What programs are shaped like on different cards."""

import pytest
import torch

from inductor.ir import Recorder
from inductor.ir.machine import H200, KNOWN, DeviceProperties
from inductor.schedule import endings
from inductor.schedule.blocks import choose_blocks
from inductor.schedule.kernels import make_kernel
from inductor.schedule.split import split_kernels

from .test_split import CUDA, F32, graph_of, reduction, run_steps

MI300X = KNOWN["gfx942"]
SMALL = DeviceProperties("small", lanes=32, units=20, threads=512)
SHAPES = [(1000, 64), (5000, 1024), (300, 16384), (300, 30000), (300, 100000)]


@pytest.fixture(autouse=True)
def _two_launches(monkeypatch):
    """The halves of a divided reduction are looked at by themselves here."""
    monkeypatch.setattr(endings, "_MOST_BYTES", 0)


def rows(shape, kind="sum"):
    graph = graph_of(CUDA, x=(shape, F32), bias=((shape[0],), F32), out=((shape[0],), F32))
    body = reduction(kind, shape, F32, F32)
    return graph, make_kernel("k0", body, graph.buffers, locals_=(), device=CUDA, nodes=())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("card", [H200, MI300X, SMALL], ids=lambda card: card.name)
def test_no_program_has_more_threads_than_the_card_gives(card, shape):
    blocks = choose_blocks(rows(shape)[1], card)
    threads = blocks.warps * card.lanes
    assert card.lanes <= threads <= card.threads
    assert blocks.warps & (blocks.warps - 1) == 0


@pytest.mark.parametrize("shape", SHAPES)
def test_wide_warps_are_half_as_many(shape):
    measured, wide = (choose_blocks(rows(shape)[1], card) for card in (H200, MI300X))
    assert wide.warps == max(measured.warps // 2, 1)
    assert (wide.mode, wide.inner) == (measured.mode, measured.inner)


@pytest.mark.parametrize("kind", ["sum", "welford"])
def test_a_card_of_few_units_divides_reductions_less(kind):
    shape = (70, 70000)
    parts = {}
    for card in (H200, SMALL, MI300X):
        graph, kernel = rows(shape, kind)
        split, steps = split_kernels(graph, [kernel], card=card)
        parts[card.name] = steps[0].body.ranges[0] if len(steps) == 2 else 1
        storages = {"x": torch.randn(70 * 70000), "bias": torch.randn(70), "out": torch.zeros(70)}
        expected = {name: tensor.clone() for name, tensor in storages.items()}
        run_steps(graph, [kernel], expected)
        run_steps(split, steps, storages)
        torch.testing.assert_close(storages["out"], expected["out"], rtol=2e-4, atol=1e-3)
    assert parts["small"] < parts[H200.name] < parts[MI300X.name]


@pytest.mark.parametrize("card", [H200, MI300X, SMALL], ids=lambda card: card.name)
def test_partial_sums_of_columns_are_as_many_as_programs_write(card):
    recorder = Recorder((100000,), (768,))
    (i,), (r,) = recorder.outer, recorder.inner
    recorder.stage("inner")
    recorder.accumulate("total", r, recorder.load("x", 768 * i + r, F32), F32, "sum")
    graph = graph_of(CUDA, x=((100000, 768), F32), total=((768,), F32))
    kernel = make_kernel("k0", recorder.finish(), graph.buffers, locals_=(), device=CUDA, nodes=())
    split, (first, _) = split_kernels(graph, [kernel], card=card)
    programs = choose_blocks(first, card).programs
    (parts,) = (b for name, b in split.buffers.items() if name not in graph.buffers)
    assert parts.shape == (programs, 768)
    assert programs % card.units == 0


def columns_beside_rows(shape, columns=1, dtype=torch.bfloat16):
    recorder = Recorder(shape[:1], shape[1:])
    (i,), (r,) = recorder.outer, recorder.inner
    recorder.stage("inner")
    place = shape[1] * i + r
    value = recorder.load("x", place, dtype)
    for number in range(columns):
        recorder.accumulate(f"c{number}", r, value, F32, "sum")
    recorder.store("y", place, value, dtype)
    names = {f"c{number}": ((shape[1],), F32) for number in range(columns)}
    graph = graph_of(CUDA, x=(shape, dtype), y=(shape, dtype), **names)
    return make_kernel("k0", recorder.finish(), graph.buffers, locals_=(), device=CUDA, nodes=())


@pytest.mark.parametrize(
    ("shape", "columns", "warps", "resident", "ahead"),
    [
        ((262144, 768), 1, 1, 16, 0),
        ((32768, 768), 1, 1, 8, 0),
        ((65536, 256), 1, 1, 8, 1),
        ((65536, 256), 2, 2, 8, 0),
        ((8192, 4096), 1, 8, 4, 0),
    ],
)
def test_rows_with_sums_of_columns(shape, columns, warps, resident, ahead):
    blocks = choose_blocks(columns_beside_rows(shape, columns), H200)
    assert (blocks.warps, blocks.programs, blocks.ahead) == (warps, resident * H200.units, ahead)


def test_rows_of_wide_operands_take_two_warps():
    blocks = choose_blocks(columns_beside_rows((262144, 1024), dtype=F32), H200)
    assert (blocks.warps, blocks.programs) == (2, 8 * H200.units)


@pytest.mark.parametrize("shared", [2, 4, 6])
def test_what_points_share_does_not_count_as_their_own(shared):
    recorder = Recorder((40000, 256))
    i, j = recorder.outer
    value = recorder.load("x", 256 * i + j, F32)
    for number in range(shared):
        value = recorder.op("add", value, recorder.load(f"s{number}", j, F32))
    recorder.store("y", 256 * i + j, value, F32)
    small = {f"s{number}": ((256,), F32) for number in range(shared)}
    graph = graph_of(CUDA, x=((40000, 256), F32), y=((40000, 256), F32), **small)
    kernel = make_kernel("k0", recorder.finish(), graph.buffers, locals_=(), device=CUDA, nodes=())
    assert choose_blocks(kernel, H200).outer == (2048 if shared < 6 else 1024)


@pytest.mark.parametrize(("row", "mode"), [(25088, "looped"), (32768, "persistent")])
def test_rows_that_fill_a_program_badly_are_walked(row, mode):
    assert choose_blocks(rows((2048, row), "welford")[1], H200).mode == mode


def test_rows_of_a_small_cache_are_not_kept():
    kernel = rows((300, 100000))[1]
    assert choose_blocks(rows((300, 40000))[1], H200).keeps
    assert not choose_blocks(kernel, H200).keeps


@pytest.mark.parametrize(
    ("channels", "inner", "piece"),
    [
        ((8, 3136), 4096, 3136),
        ((2, 12544), 2048, 1792),
        ((20, 1024), 1024, 1024),
        ((5, 3334), 4096, 0),
    ],
)
def test_rows_of_channels_are_walked_by_pieces(channels, inner, piece):
    """What a channel has for itself is loaded once a turn, where a channel can be divided into large pieces."""
    groups, row = 2048, channels[0] * channels[1]
    graph = graph_of(
        CUDA, x=((groups, *channels), F32), w=(channels[:1], F32), y=((groups, row), F32)
    )
    recorder = Recorder((groups,), channels)
    (i,), (c, r) = recorder.outer, recorder.inner
    place = row * i + channels[1] * c + r
    recorder.stage("inner")
    total = recorder.reduce("sum", recorder.load("x", place, F32), dtype=F32)
    recorder.stage("inner")
    left = recorder.op("sub", recorder.load("x", place, F32), total)
    recorder.store("y", place, recorder.op("mul", left, recorder.load("w", c, F32)), F32)
    kernel = make_kernel("k0", recorder.finish(), graph.buffers, locals_=(), device=CUDA, nodes=())
    blocks = choose_blocks(kernel, H200)
    assert (blocks.mode, blocks.inner, blocks.piece) == ("looped", inner, piece)
    assert blocks.warps == inner // 256
