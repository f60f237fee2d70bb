"""Operators with symbolic sizes, captured: at most two compiles at three sizes, equal to eager.

`nox -s symbolic_operators` compiles them with kernels too.
"""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "symbolic_operators"))

from calls import CALLS, PINNED
from run import fault_of


@pytest.mark.parametrize("name", [name for name in CALLS if name not in PINNED])
def test_at_most_two_compiles(name):
    assert not fault_of(name, "eager")
