"""Some random programs in training through all packages; 2,000 of each kind are `random_programs/run.py`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "random_programs"


@pytest.mark.parametrize(
    "kind", [["--first", "5000"], ["--wider", "--first", "200"]], ids=["views", "wider"]
)
def test_random_programs_train_as_in_eager(kind, tmp_path):
    report = tmp_path / "report.json"
    command = [sys.executable, str(FOLDER / "run.py"), "--count", "6", *kind]
    done = subprocess.run(
        [*command, "--json", str(report)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert sum(json.loads(report.read_text())["captured as"].values()) == 6


def test_the_complete_run_found_no_difference():
    complete = json.loads((FOLDER / "complete_run.json").read_text())
    assert complete["programs"] >= 2000
    assert not complete["differ"]
