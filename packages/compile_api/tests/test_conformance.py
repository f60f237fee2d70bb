"""A fixed shard of the conformance kit on both of our code generators; the whole is `conformance/run.py`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "conformance"


@pytest.mark.parametrize(("generator", "samples"), [("cpp", 1), ("triton", 1)])
def test_a_shard_conforms(generator, samples, tmp_path):
    report = tmp_path / "report.json"
    arguments = ["--shard", "11/40", "--samples", str(samples), "--json", str(report)]
    for dtype in ("float32", "bfloat16", "int64", "complex64"):
        arguments += ["--dtype", dtype]
    command = [sys.executable, str(FOLDER / "run.py"), generator, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text())
    assert found["pairs"] >= 15
    assert not found["unexpected"]


def test_known_failures_have_a_cause_and_stay_few():
    known = json.loads((FOLDER / "known_failures.json").read_text())
    assert set(known) == {"cpp", "triton", "torch"}
    assert not known["cpp"]
    for listed in known.values():
        assert all(len(cause) > 10 for cause in listed.values())
    assert len(known["triton"]) <= 12
