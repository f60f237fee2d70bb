"""Generated kernels compile to device code without a GPU: for Hopper and for one AMD target."""

import shutil

import pytest
import torch

from inductor.codegen.triton import write_kernel
from inductor.errors import OptionError
from inductor.ir import Recorder, Vector
from inductor.ir.machine import H200, KNOWN
from inductor.runtime.triton_build import TritonBuilder, TritonBuildError, TritonTarget
from inductor.schedule.blocks import choose_blocks

F32, BF16 = torch.float32, torch.bfloat16
TARGETS = [TritonTarget("cuda", 90, 32), TritonTarget("hip", "gfx942", 64)]


@pytest.fixture(scope="module", params=TARGETS, ids=["sm_90", "gfx942"])
def builder(request, tmp_path_factory):
    made = TritonBuilder(tmp_path_factory.mktemp("kernels"), request.param, processes=2)
    yield made
    made.close()


def _bodies():
    recorder = Recorder((64, 512))
    i, j = recorder.outer
    value = recorder.load("x", 512 * i + j, BF16)
    for name in (
        "tanh",
        "erf",
        "exp",
        "log1p",
        "expm1",
        "rsqrt",
        "sigmoid",
        "lgamma",
        "digamma",
        "erfinv",
        "atan",
    ):
        value = recorder.op(name, value)
    value = recorder.op("pow", value, recorder.load("y", j, F32))
    value = recorder.op("atan2", recorder.op("fmod", value, recorder.constant(3.0, F32)), value)
    recorder.store("out", 512 * i + j, value, BF16)
    yield "mathematics", recorder.finish(), {"x": BF16, "y": F32, "out": BF16}, None

    for kind in ("sum", "max", "argmax", "welford", "any"):
        recorder = Recorder((64,), (5000 if kind == "welford" else 20000,))
        (i,), (r,) = recorder.outer, recorder.inner
        recorder.stage("inner")
        dtype = {"argmax": torch.int64, "any": torch.bool}.get(kind, F32)
        reduced = recorder.reduce(kind, recorder.load("x", 20000 * i + r, F32), dtype=dtype)
        recorder.stage("outer")
        value = recorder.part(reduced, 1, F32) if kind == "welford" else reduced
        recorder.store("out", i, value, dtype)
        yield f"reduction_{kind}", recorder.finish(), {"x": F32, "out": dtype}, None

    recorder = Recorder((768,), (4096,))
    (i,), (r,) = recorder.outer, recorder.inner
    recorder.stage("inner")
    total = recorder.reduce("sum", recorder.load("x", i + 768 * r, BF16), dtype=F32)
    recorder.stage("outer")
    recorder.store("out", i, total, F32)
    yield "columns", recorder.finish(), {"x": BF16, "out": F32}, Vector("outer", 0, 16)

    for name in ("philox_uniform", "philox_normal"):
        for dtype in (F32, torch.float64):
            recorder = Recorder((100, 64))
            i, j = recorder.outer
            drawn = recorder.op(
                name,
                recorder.load("seed", 0, torch.int64),
                recorder.constant(3, torch.int64),
                recorder.index_expression(64 * i + j, torch.int64),
                dtype=dtype,
            )
            recorder.store("out", 64 * i + j, drawn, dtype)
            yield f"{name}_{dtype}", recorder.finish(), {"seed": torch.int64, "out": dtype}, None

    recorder = Recorder((8,), (300,))
    (i,), (r,) = recorder.outer, recorder.inner
    recorder.stage("inner")
    recorder.store(
        "out", 300 * i + r, recorder.scan(recorder.load("x", 300 * i + r, F32), "sum"), F32
    )
    yield "scan", recorder.finish(), {"x": F32, "out": F32}, None

    # one number, read where a condition that varies says so; a place that data tells
    recorder = Recorder((100,))
    (i,) = recorder.outer
    inside = recorder.op(
        "lt", recorder.index_expression(i, torch.int64), recorder.constant(50, torch.int64)
    )
    with recorder.masked(inside):
        value = recorder.load("x", 0, F32)
    place = recorder.indirect(recorder.load("at", 0, torch.int64), 7, wrap=True, check=None)
    value = recorder.op("add", value, recorder.load("table", place, F32))
    recorder.store("out", i, value, F32)
    dtypes = {"x": F32, "at": torch.int64, "table": F32, "out": F32}
    yield "one number for many points", recorder.finish(), dtypes, None

    for shape in ((65536, 256), (262144, 768), (4096, 1024)):
        recorder = Recorder(shape[:1], shape[1:])
        (i,), (r,) = recorder.outer, recorder.inner
        recorder.stage("inner")
        place = shape[1] * i + r
        value = recorder.op("mul", recorder.load("x", place, BF16), recorder.load("y", place, BF16))
        recorder.accumulate("columns", r, value, F32, "sum")
        total = recorder.reduce("sum", value, dtype=F32)
        recorder.stage("outer")
        recorder.store("out", i, total, F32)
        dtypes = {"x": BF16, "y": BF16, "columns": F32, "out": F32}
        yield f"columns of {shape[0]} rows", recorder.finish(), dtypes, None

    recorder = Recorder((256,), (2048,))
    (i,), (r,) = recorder.outer, recorder.inner
    recorder.stage("inner")
    spread = recorder.reduce("welford", recorder.load("x", 256 * r + i, BF16), dtype=F32)
    recorder.stage("outer")
    recorder.store("out", i, recorder.part(spread, 1, F32), F32)
    yield "spread of columns", recorder.finish(), {"x": BF16, "out": F32}, Vector("outer", 0, 16)

    recorder = Recorder((1000,), (30000,))
    (i,), (r,) = recorder.outer, recorder.inner
    recorder.stage("inner")
    total = recorder.reduce("sum", recorder.load("x", 30000 * i + r, BF16), dtype=F32)
    recorder.stage("inner")
    part = recorder.op("div", recorder.load("x", 30000 * i + r, BF16), total)
    recorder.store("out", 30000 * i + r, part, BF16)
    yield "a row walked twice", recorder.finish(), {"x": BF16, "out": BF16}, None

    recorder = Recorder((6,), (40,))
    (i,), (r,) = recorder.outer, recorder.inner
    recorder.stage("inner")
    inside = recorder.op(
        "lt", recorder.index_expression(r, torch.int64), recorder.constant(30, torch.int64)
    )
    with recorder.masked(inside):
        value = recorder.load("x", i, F32)
        other = recorder.load("y", r, F32)
    total = recorder.reduce("sum", recorder.op("mul", value, other), dtype=F32)
    recorder.stage("outer")
    recorder.store("out", i, total, F32)
    yield "one number for a row", recorder.finish(), {"x": F32, "y": F32, "out": F32}, None


BODIES = list(_bodies())


@pytest.mark.parametrize("case", BODIES, ids=[name for name, *_ in BODIES])
def test_kernels_compile(builder, make_kernel, case):
    _, body, dtypes, vector = case
    kernel = make_kernel(body, dtypes, vector=vector)
    card = next(card for name, card in KNOWN.items() if TritonTarget.named(name) == builder.target)
    source = write_kernel(kernel, choose_blocks(kernel, card))
    built = builder.submit(source, range(source.pointers)).result()
    assert built.binary[:4] == b"\x7fELF"
    assert built.warps == source.warps


def test_a_finished_kernel_is_found_on_disk_and_a_damaged_one_is_made_again(builder, make_kernel):
    _, body, dtypes, _ = BODIES[0]
    kernel = make_kernel(body, dtypes)
    source = write_kernel(kernel, choose_blocks(kernel, H200))
    first = builder.submit(source, ()).result()
    again = TritonBuilder(builder.directory, builder.target, processes=1)
    try:
        assert again.submit(source, ()).result() == first
        assert not again._running  # nobody was asked
        for path in builder.directory.glob("*.bin"):
            path.write_bytes(b"damaged")
        assert again.submit(source, ()).result().binary == first.binary
    finally:
        again.close()


def test_a_kernel_that_triton_rejects_is_an_error_with_its_text(tmp_path, make_kernel):
    import dataclasses

    builder = TritonBuilder(tmp_path, TARGETS[0], processes=1)
    _, body, dtypes, _ = BODIES[0]
    kernel = make_kernel(body, dtypes)
    source = write_kernel(kernel, choose_blocks(kernel, H200))
    broken = dataclasses.replace(source, text=source.text.replace("tl.arange(0, ", "tl.arange(1, "))
    try:
        with pytest.raises(TritonBuildError, match="not compiled"):
            builder.submit(broken, ()).result()
        name = builder.submit(source, ()).result().name
        assert f"def {name}(" in source.text
    finally:
        builder.close()
    shutil.rmtree(tmp_path, ignore_errors=True)


def test_a_target_is_called_as_the_compilers_call_it():
    assert [TritonTarget.named(name) for name in ("sm_90", "gfx942")] == TARGETS
    for wrong in ("hopper", "sm_", "90"):
        with pytest.raises(OptionError, match="try: sm_90"):
            TritonTarget.named(wrong)
