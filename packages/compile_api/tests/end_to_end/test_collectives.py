"""Collectives through the whole compiler, on two processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parents[3] / "dynamo" / "tests" / "collective_programs.py"


@pytest.mark.cxx
def test_two_processes(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", PROGRAMS, "2", "whole"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert sorted(found) == ["0", "1"]
    for outcomes in found.values():
        assert len(outcomes) > 12
        assert set(outcomes.values()) == {"equal"}, outcomes
