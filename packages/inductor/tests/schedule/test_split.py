"""A GPU kernel in two passes computes what it computed in one."""

import pytest
import torch

from inductor.ir import Buffer, Graph, Recorder, run_body
from inductor.schedule import endings
from inductor.schedule.kernels import make_kernel
from inductor.schedule.split import split_kernels

F32 = torch.float32
CUDA, CPU = torch.device("cuda"), torch.device("cpu")


@pytest.fixture(autouse=True)
def _two_launches(monkeypatch):
    """The halves of a divided reduction are looked at by themselves here."""
    monkeypatch.setattr(endings, "_MOST_BYTES", 0)


def graph_of(device, **shapes):
    buffers = {}
    for name, (shape, dtype) in shapes.items():
        stride = tuple(torch.empty(shape, device="meta").stride())
        buffers[name] = Buffer(name, shape, stride, dtype, device)
    return Graph("graph", (), buffers, (), ())


def run_steps(graph, steps, storages):
    for name, buffer in graph.buffers.items():
        if name not in storages:
            count = 1
            for extent in buffer.shape:
                count *= extent
            storages[name] = torch.full((count,), 123, dtype=buffer.dtype)
    for kernel in steps:
        run_body(kernel.body, storages, {}, {}, {row.name: row.length for row in kernel.locals})


def reduction(kind, shape, dtype, result, *, columns=False):
    points, row = shape
    recorder = Recorder((points,), (row,))
    (i,), (r,) = recorder.outer, recorder.inner
    bias = recorder.load("bias", i, F32) if dtype is F32 else None
    recorder.stage("inner")
    value = recorder.load("x", i + points * r if columns else row * i + r, dtype)
    if bias is not None:
        value = recorder.op("sub", value, bias)
    reduced = recorder.reduce(kind, value, dtype=result)
    recorder.stage("outer")
    if kind == "welford":
        reduced = recorder.op("div", recorder.part(reduced, 1, F32), recorder.part(reduced, 2, F32))
    if result is F32:
        reduced = recorder.op("add", reduced, recorder.load("bias", i, F32))
    recorder.store("out", i, reduced, result)
    return recorder.finish()


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("shape", [(1, 1 << 16), (3, 50021), (64, 61440)])
@pytest.mark.parametrize("kind", ["sum", "max", "min", "any", "all", "welford", "prod"])
def test_long_reductions_of_few_rows(kind, shape, columns):
    result = torch.bool if kind in ("any", "all") else F32
    graph = graph_of(CUDA, x=(shape, F32), bias=((shape[0],), F32), out=((shape[0],), result))
    body = reduction(kind, shape, F32, result, columns=columns)
    kernel = make_kernel("k0", body, graph.buffers, locals_=(), device=CUDA, nodes=())
    split, steps = split_kernels(graph, [kernel])
    if kind == "welford" and shape[1] == 50021:
        assert len(steps) == 1, (
            "a prime length can't be divided evenly, and statistics can't be padded"
        )
    else:
        assert len(steps) == 2
    x = torch.randn(shape[0] * shape[1]) * (0.01 if kind == "prod" else 1.0) + (
        1.0 if kind == "prod" else 0.0
    )
    storages = {
        "x": x,
        "bias": torch.randn(shape[0]) * 0.001,
        "out": torch.zeros(shape[0], dtype=result),
    }
    expected = {name: tensor.clone() for name, tensor in storages.items()}
    run_steps(graph, [kernel], expected)
    run_steps(split, steps, storages)
    torch.testing.assert_close(storages["out"], expected["out"], rtol=2e-4, atol=1e-3)


@pytest.mark.parametrize("kind", ["sum", "max", "min"])
def test_integers_are_padded_with_what_changes_nothing(kind):
    graph = graph_of(CUDA, x=((2, 80009), torch.int32), out=((2,), torch.int32))
    body = reduction(kind, (2, 80009), torch.int32, torch.int32)
    kernel = make_kernel("k0", body, graph.buffers, locals_=(), device=CUDA, nodes=())
    split, steps = split_kernels(graph, [kernel])
    assert len(steps) == 2
    storages = {
        "x": torch.randint(-50, -1, (160018,), dtype=torch.int32),
        "out": torch.zeros(2, dtype=torch.int32),
    }
    expected = {name: tensor.clone() for name, tensor in storages.items()}
    run_steps(graph, [kernel], expected)
    run_steps(split, steps, storages)
    assert torch.equal(storages["out"], expected["out"])


@pytest.mark.parametrize(
    ("device", "shape"),
    [(CPU, (1, 1 << 16)), (CUDA, (5000, 4096)), (CUDA, (2, 600)), (CUDA, (100, 30000))],
)
def test_kernels_that_fill_the_device_or_are_short_stay_whole(device, shape):
    graph = graph_of(device, x=(shape, F32), bias=((shape[0],), F32), out=((shape[0],), F32))
    body = reduction("sum", shape, F32, F32)
    kernel = make_kernel("k0", body, graph.buffers, locals_=(), device=device, nodes=())
    _, steps = split_kernels(graph, [kernel])
    assert steps == [kernel]


@pytest.mark.parametrize(
    ("rows", "columns", "parts"),
    [
        (16384, 4096, 32),
        (65536, 1024, 128),
        (65536, 256, 128),
        (16384, 16384, 4),
        (262144, 512, 128),
    ],
)
def test_large_columns_are_divided_among_more_programs(rows, columns, parts):
    """As many as still have 65 kB each, and where there would be too many, as many as run at once."""
    half = torch.bfloat16
    graph = graph_of(CUDA, x=((rows, columns), half), bias=((columns,), F32), out=((columns,), F32))
    body = reduction("sum", (columns, rows), half, F32, columns=True)
    kernel = make_kernel("k0", body, graph.buffers, locals_=(), device=CUDA, nodes=())
    _, (first, _) = split_kernels(graph, [kernel])
    assert first.body.ranges == (parts, columns)


def test_columns_become_rows_of_partial_results():
    rows, width = 1000, 48
    graph = graph_of(
        CUDA,
        x=((rows, width), F32),
        y=((rows, width), F32),
        total=((width,), F32),
        half=((width,), torch.bfloat16),
    )
    recorder = Recorder((rows,), (width,))
    (i,), (r,) = recorder.outer, recorder.inner
    recorder.stage("inner")
    value = recorder.load("x", width * i + r, F32)
    recorder.store("y", width * i + r, recorder.op("neg", value), F32)
    recorder.accumulate("total", r, value, F32, "sum")
    kernel = make_kernel("k0", recorder.finish(), graph.buffers, locals_=(), device=CUDA, nodes=())
    convert = Recorder((width,))
    (j,) = convert.outer
    convert.store("half", j, convert.load("total", j, F32), torch.bfloat16)
    narrow = make_kernel("k1", convert.finish(), graph.buffers, locals_=(), device=CUDA, nodes=())
    split, steps = split_kernels(graph, [kernel, narrow])
    assert len(steps) == 2, "the conversion joins the kernel that adds the parts"
    (parts,) = set(split.buffers) - set(graph.buffers)
    programs, length = split.buffers[parts].shape
    assert length == width
    assert parts in steps[0].body.writes
    x = torch.randn(rows * width)
    rows_of_parts = torch.zeros(programs * width)
    rows_of_parts[: 2 * width] = torch.cat(
        [x.view(rows, width)[:600].sum(0), x.view(rows, width)[600:].sum(0)]
    )
    storages = {parts: rows_of_parts, "total": torch.zeros(width)}
    storages["half"] = torch.zeros(width, dtype=torch.bfloat16)
    run_body(steps[1].body, storages)
    torch.testing.assert_close(storages["total"], x.view(rows, width).sum(0))
    assert torch.equal(storages["half"], storages["total"].bfloat16())
