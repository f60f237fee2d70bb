"""Some random programs whose sizes change from call to call; 1,500 are `sized_programs/run.py`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "sized_programs"


@pytest.mark.parametrize(
    "shard",
    [
        ["--first", "10000", "--count", "15", "--backend", "eager"],
        ["--first", "10003", "--count", "2"],
    ],
    ids=["captured", "compiled"],
)
def test_programs_whose_sizes_change_do_as_in_eager(shard, tmp_path):
    report = tmp_path / "report.json"
    command = [sys.executable, str(FOLDER / "run.py"), "--no-shrink", *shard]
    done = subprocess.run(
        [*command, "--json", str(report)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(report.read_text())["programs"] == int(shard[3])


def test_a_program_is_the_same_each_time():
    sys.path.append(str(FOLDER))
    import sized

    assert str(sized.drawn(7)) == str(sized.drawn(7))


def test_the_committed_run_found_no_difference():
    run = json.loads((FOLDER / "complete_run_eager.json").read_text())
    assert run["programs"] >= 1500
    assert not run["differ"]
