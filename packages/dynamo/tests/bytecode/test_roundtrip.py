"""Assembling what was decoded gives the same code object, on every interpreter that is installed.

The bytecode package knows nothing of torch, so other interpreters than the one that runs the tests
are tried in a subprocess that sees only that package.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src" / "dynamo"
PYENV = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"


def runs(python, version):
    """Whether `python` is that version: a version manager's shim may be there and refuse to run."""
    done = subprocess.run(
        [python, "-c", "import sys; print('{}.{}'.format(*sys.version_info[:2]))"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() == version


def interpreters():
    found = {"{}.{}".format(*sys.version_info[:2]): sys.executable}
    for version in ("3.11", "3.12", "3.13"):
        candidates = sorted(map(str, PYENV.glob(f"{version}.*/bin/python")), reverse=True)
        installed = shutil.which(f"python{version}")
        for python in (*candidates, installed):
            if version not in found and python is not None and runs(python, version):
                found[version] = python
    return sorted(found.items())


def run(python, script, *arguments):
    done = subprocess.run(
        [python, str(HERE / script), str(SOURCE), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("version", "python"), interpreters())
def test_assembling_what_was_decoded_is_the_identity_on_a_sample(version, python):
    assert "all equal" in run(python, "roundtrip_stdlib.py", "40")


@pytest.mark.property
@pytest.mark.skipif(
    os.environ.get("HYPOTHESIS_PROFILE") != "long", reason="a minute: run by nox -s properties"
)
@pytest.mark.parametrize(("version", "python"), interpreters())
def test_assembling_what_was_decoded_is_the_identity_on_the_standard_library(version, python):
    assert "all equal" in run(python, "roundtrip_stdlib.py", "1")


@pytest.mark.parametrize(("version", "python"), interpreters())
def test_built_instructions_mean_the_same_on_every_interpreter(version, python):
    assert "all right" in run(python, "build_programs.py")
