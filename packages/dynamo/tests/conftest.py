"""Tests that take `version` and `python` run on every interpreter that is installed here."""

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

VERSIONS = ("3.11", "3.12", "3.13")
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


@functools.cache
def interpreters():
    found = {"{}.{}".format(*sys.version_info[:2]): sys.executable}
    for version in VERSIONS:
        candidates = sorted(map(str, PYENV.glob(f"{version}.*/bin/python")), reverse=True)
        for python in (*candidates, shutil.which(f"python{version}")):
            if version not in found and python is not None and runs(python, version):
                found[version] = python
    return tuple(sorted(found.items()))


def pytest_generate_tests(metafunc):
    if {"version", "python"} <= set(metafunc.fixturenames):
        names = [version for version, _ in interpreters()]
        metafunc.parametrize(("version", "python"), interpreters(), ids=names)
