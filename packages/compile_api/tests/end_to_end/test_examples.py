"""Every example of the repository runs, in a process of its own, as a reader would run it."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[4] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_it_runs(path: Path) -> None:
    needs = re.search(r"\(needs (.*)\)", path.read_text())
    for name in re.split(r" and |, ", needs[1]) if needs else ():
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} isn't installed here")
    done = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COMPILE_API_STRICT": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout
