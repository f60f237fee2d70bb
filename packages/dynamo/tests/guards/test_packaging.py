"""The source distribution builds with a compiler and without, and works either way."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

hatchling = pytest.importorskip("hatchling")
HERE = Path(__file__).parent
PACKAGE = HERE.parents[1]


def hatch(folder, *arguments, **environment):
    command = [sys.executable, "-m", "hatchling", "build", *arguments]
    env = {**os.environ, **environment}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The source distribution, unpacked."""
    folder = tmp_path_factory.mktemp("sdist")
    hatch(PACKAGE, "-t", "sdist", "-d", str(folder))
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        # Python 3.11 has filters from 3.11.4 on; the archive is our own.
        tar.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return next(path for path in folder.iterdir() if path.is_dir())


def wheel(unpacked, folder, **environment):
    said = hatch(unpacked, "-t", "wheel", "-d", str(folder), **environment)
    (made,) = folder.glob("*.whl")
    with zipfile.ZipFile(made) as archive:
        archive.extractall(folder / "installed")
        return made.name, archive.namelist(), said


def test_the_source_distribution_has_what_a_build_needs(unpacked):
    names = {path.name for path in unpacked.rglob("*")}
    sources = {path.name for path in (PACKAGE / "src" / "dynamo").glob("*.[ch]")}
    assert {"hatch_build.py", "_fast.h", "_guards.h", "_trace.c", *sources} <= names
    assert not [name for name in names if name.endswith(".so")]


def test_a_wheel_with_the_extension(unpacked, tmp_path):
    name, files, _ = wheel(unpacked, tmp_path)
    tag = "cp{}{}".format(*sys.version_info[:2])
    assert f"-{tag}-{tag}-" in name
    assert len([file for file in files if file.endswith(".so")]) == 1
    assert not [file for file in files if file.endswith((".c", ".h"))]
    assert "True" in have_c(tmp_path)


def have_c(folder):
    code = "import dynamo._native as n; print(n.HAVE_C, n.why_no_c)"
    rest = [path for path in sys.path if path and not path.endswith("packages/dynamo/src")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder / "installed"), *rest])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "environment",
    [{"CC": "/no/such/compiler"}, {"CC": "false"}, {"DYNAMO_NO_EXTENSION": "1"}],
    ids=["no compiler", "compiler fails", "switched off"],
)
def test_a_pure_wheel_where_nothing_can_be_compiled(unpacked, tmp_path, environment):
    for left in unpacked.rglob("*.so"):
        left.unlink()
    name, files, said = wheel(unpacked, tmp_path, **environment)
    assert name.endswith("-py3-none-any.whl")
    assert not [file for file in files if file.endswith(".so")]
    assert "no C extension" in said
    assert "False" in have_c(tmp_path)
    assert "_fast" in have_c(tmp_path)


def test_everything_works_in_pure_python(unpacked, tmp_path):
    for left in unpacked.rglob("*.so"):
        left.unlink()
    wheel(unpacked, tmp_path, DYNAMO_NO_EXTENSION="1")
    rest = [path for path in sys.path if path and not path.endswith("packages/dynamo/src")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "installed"), *rest])}
    tests = [str(HERE / name) for name in ("test_dispatch.py", "test_mutations.py")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
