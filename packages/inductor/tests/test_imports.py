"""What importing the package doesn't do: a warm start restores programs and needs no code generator."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("absent", ["inductor.codegen", "inductor.devices", "triton", "sympy"])
def test_importing_the_package_loads_no(absent):
    code = (
        "import torch, sys; before = set(sys.modules); import inductor; "
        f"sys.exit({absent!r} in set(sys.modules) - before)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
