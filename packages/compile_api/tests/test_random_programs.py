"""Some random programs in training through all packages; 2,000 of each kind are `random_programs/run.py`."""

import json
import subprocess
import sys
import warnings
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


COMPLETE = 2000


@pytest.mark.parametrize(
    ("report", "wider"), [("complete_run.json", False), ("complete_run_wider.json", True)]
)
def test_the_committed_run_found_no_difference(report, wider):
    run = json.loads((FOLDER / report).read_text())
    assert not run["differ"]
    assert run["wider"] is wider
    assert sum(run["captured as"].values()) == run["programs"]
    if run["programs"] < COMPLETE:  # says so in pytest's summary until it is complete
        last = run["first"] + run["programs"] - 1
        warnings.warn(
            f"{report}: seeds {run['first']} to {last} only, not {COMPLETE}", stacklevel=1
        )
