"""The text of C++ kernels: goldens, the same on every processor; the compiler makes AVX2, AVX-512 or NEON of it."""

import shutil
import subprocess

import pytest
import torch
import torch.nn.functional as F

from inductor.codegen.cpp import kernel_source
from inductor.ir import Kernel
from inductor.runtime.cpp_build import prelude

torch.manual_seed(0)
X = torch.randn(16, 256)
GRADIENT = torch.randn(16, 256)
ROW = torch.randn(256)
WIDE = torch.randn(256, 512)
_, MEAN, RECIPROCAL = torch.ops.aten.native_layer_norm(X, [256], ROW, ROW, 1e-5)


def norm_backward(gradient, x, weight, mean, reciprocal):
    return torch.ops.aten.native_layer_norm_backward(
        gradient, x, [256], mean, reciprocal, weight, weight, [True, True, True]
    )


KERNELS = {
    "gelu of bfloat16": (F.gelu, X.bfloat16()),
    "layer norm": (lambda x, w: F.layer_norm(x, (256,), w, w), X, ROW),
    "layer norm, backward": (norm_backward, GRADIENT, X, ROW, MEAN, RECIPROCAL),
    "column statistics": (lambda x: torch.var_mean(x, 0), WIDE),
    "transposed copy": (lambda x: x.t().contiguous(), WIDE),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernel_text(compare, snapshot, name):
    function, *inputs = KERNELS[name]
    program = compare(function, *inputs, tolerance=1e-2 if "bfloat16" in name else 1e-4)
    kernels = [step for step in program.schedule.steps if isinstance(step, Kernel)]
    text = "\n".join(kernel_source(kernel).text for kernel in kernels)
    assert "ia32" not in text
    assert text == snapshot


@pytest.mark.cxx
def test_what_belongs_to_one_processor_is_left_out_elsewhere():
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no compiler")
    command = [compiler, "-E", "-P", "-x", "c++", "-U__AVX512F__", "-DCI_VECTOR_ERF", "-"]
    done = subprocess.run(command, input=prelude(), capture_output=True, text=True, check=True)
    assert "ci_erf_series" in done.stdout
    assert "ia32" not in done.stdout
    assert "ZGV" not in done.stdout
