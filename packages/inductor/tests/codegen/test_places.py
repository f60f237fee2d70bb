"""C++ kernels that read on at several places in turn do every point once, whatever their number."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from inductor.ir import Recorder

_SPEC = importlib.util.spec_from_file_location(
    "cpp_harness", Path(__file__).with_name("cpp_harness.py")
)
harness = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(harness)
make_kernel, run_cpp = harness.make_kernel, harness.run_cpp

pytestmark = pytest.mark.cxx
F32 = torch.float32
LENGTHS = [1, 63, 64, 65, 255, 257, 4095, 4097, 8191, 20000]


def in_turn(kernel, places):
    return replace(kernel, decisions=replace(kernel.decisions, places=places))


@pytest.mark.parametrize("places", [2, 4])
@pytest.mark.parametrize("threads", [1, 2])
def test_points_written_over_what_was_read(places, threads):
    for length in LENGTHS:
        recorder = Recorder((length,))
        (point,) = recorder.outer
        recorder.stage("outer")
        left = recorder.load("x", point, F32)
        right = recorder.load("y", point, F32)
        recorder.store("z", point, recorder.op("add", left, right), F32)
        kernel = in_turn(make_kernel(recorder.finish(), reuses=(("z", "x"),)), places)
        x, y = torch.randn(length + 64), torch.randn(length)
        expected = torch.cat((x[:length] + y, x[length:]))
        assert run_cpp(kernel, {"x": x, "y": y, "z": x}, threads=threads) == 0
        assert torch.equal(x, expected)


@pytest.mark.parametrize("places", [2, 4])
@pytest.mark.parametrize("threads", [1, 3])
def test_sums_of_integers_that_floats_hold(places, threads):
    for length in [*LENGTHS, 100003]:
        recorder = Recorder((), (length,))
        (point,) = recorder.inner
        recorder.stage("inner")
        total = recorder.reduce("sum", recorder.load("x", point, F32), dtype=F32)
        recorder.stage("outer")
        recorder.store("out", 0, total, F32)
        kernel = in_turn(make_kernel(recorder.finish(), split=True), places)
        x, out = torch.randint(-8, 9, (length,)).float(), torch.empty(1)
        assert run_cpp(kernel, {"x": x, "out": out}, threads=threads) == 0
        assert out.item() == x.double().sum().item()
