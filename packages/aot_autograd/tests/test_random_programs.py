"""Property: a program of views, in-place operators, changes of layout and outputs behaves compiled as in eager.

`training_programs.py` draws and runs the programs. `nox -s properties` runs 2,000 of them, `AOT_RANDOM_PROGRAMS` any
number; a failure is shown as the smallest program that still fails. A program that is refused by name counts as
refused, and few may be.
"""

import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))
from training_programs import accepted, by_aot, difference, drawn, shrunk

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
COUNT = int(os.environ.get("AOT_RANDOM_PROGRAMS", "2000" if LONG else "150"))


@pytest.mark.property
@pytest.mark.filterwarnings("ignore:The .grad attribute", "ignore:An output with one or more")
def test_random_programs(graph_runner):
    refused, compile_function = 0, by_aot(graph_runner)
    for seed in range(COUNT):
        program = accepted(drawn(seed))
        if not program.instructions:
            continue
        found = difference(program, compile_function)
        if found is None:
            refused += 1
        elif found:
            least = shrunk(program, compile_function)
            pytest.fail(f"seed {seed}\n{least}\n{difference(least, compile_function)}")
    assert refused <= 0.15 * COUNT
