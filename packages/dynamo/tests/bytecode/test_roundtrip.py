"""Assembling what was decoded gives the same code object, on every interpreter that is installed.

The bytecode package knows nothing of torch, so other interpreters than the one that runs the tests
are tried in a subprocess that sees only that package.
"""

import os
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
WHOLE = os.environ.get("COMPILE_API_WHOLE_LIBRARY")
SOURCE = HERE.parents[1] / "src" / "dynamo"


def run(python, script, *arguments):
    done = subprocess.run(
        [python, str(HERE / script), str(SOURCE), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_assembling_what_was_decoded_is_the_identity_on_a_sample(version, python):
    assert "all equal" in run(python, "roundtrip_stdlib.py", "40")


@pytest.mark.skipif(not WHOLE, reason="a quarter of a minute each: run by nox -s interpreters")
def test_assembling_what_was_decoded_is_the_identity_on_the_standard_library(version, python):
    assert "all equal" in run(python, "roundtrip_stdlib.py", "1")


def test_built_instructions_mean_the_same_on_every_interpreter(version, python):
    assert "all right" in run(python, "build_programs.py")
