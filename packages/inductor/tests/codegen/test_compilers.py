"""The same kernels by clang, where one is installed, and for a machine without AVX-512.

The other tests use g++ for this machine.
"""

import platform
import shutil
import subprocess

import pytest
import torch
import torch.nn.functional as F

from inductor import InductorOptions, compile_fx

pytestmark = pytest.mark.cxx

X = torch.linspace(-3, 3, 96 * 40).reshape(96, 40)
PROGRAMS = {
    "pointwise": (lambda x: F.gelu(x) * torch.tanh(x) + x.exp().log1p(), X),
    "row reductions": (lambda x: F.layer_norm(F.softmax(x, -1), (40,)), X),
    "column reductions": (lambda x: (x.sum(0), x.amax(0), x.var(0)), X),
    "half precision": (lambda x: F.silu(x).sum(-1), X.bfloat16()),
    "a turned copy": (lambda x: x.t().contiguous() + 1, X),
    "a turned copy alone": (lambda x: x.t().contiguous(), X),
    "a large turned copy alone": (lambda x: x.t().contiguous(), torch.rand(2048, 1088).bfloat16()),
    "integers": (lambda x: (x // 3, x % 5, x >> 1), torch.arange(-60, 60)),
    "complex numbers": (lambda x: torch.sqrt(torch.complex(x, x)).abs(), X),
    "additions at indices": (
        lambda x, i: torch.zeros(7, 40).index_add(0, i, x),
        X,
        torch.arange(96) % 7,
    ),
    "prefix sums": (lambda x: torch.cumsum(x, 1), X),
}


@pytest.fixture(params=["clang++", "g++ for AVX2", "clang++ for AVX2"])
def compiler(request, tmp_path):
    """A compiler's path: one that compiles for AVX2 is a script around it."""
    name, _, machine = request.param.partition(" for ")
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    if not machine:
        return name
    if platform.machine() != "x86_64":
        pytest.skip("AVX2 is of x86-64")
    script = tmp_path / f"{name}-avx2"
    script.write_text(f'#!/bin/sh\nexec {name} "$@" -march=haswell\n')
    script.chmod(0o755)
    return str(script)


def test_the_script_compiles_for_another_machine(compiler):
    if "avx2" not in compiler:
        pytest.skip("compiles for this machine")
    asked = [compiler, "-march=native", "-dM", "-E", "-x", "c++", "/dev/null"]
    defined = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    assert "__AVX2__" in defined
    assert "__AVX512F__" not in defined


@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_agree_with_eager(traced, name, compiler):
    function, *inputs = PROGRAMS[name]
    expected = function(*inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    options = InductorOptions(strict=True, compiler=compiler)
    threads = torch.get_num_threads()
    for count in (1, 2):
        torch.set_num_threads(count)
        try:
            found = compile_fx(traced(function, *inputs), options=options)([*inputs])
        finally:
            torch.set_num_threads(threads)
        for ours, eagers in zip(found, expected, strict=True):
            digits = 2e-2 if ours.dtype == torch.bfloat16 else 1e-5
            torch.testing.assert_close(ours, eagers, rtol=digits, atol=1e-4)
