"""What is here, what is slow or missing, and the command that mends it.

In: this machine. Out: `Finding`s, one a line: good, slow (works, at a cost) or missing (something a
user may expect doesn't work). Invariant: looking changes nothing but a probe file in the cache
directory, removed again.
"""

from __future__ import annotations

import enum
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from compile_api.options import cache_directory, compiler_by_environment

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Finding", "State", "doctor", "examine"]

_DISTRIBUTIONS = (
    "compile-api",
    "compile-api-primtorch",
    "compile-api-dynamo",
    "compile-api-aot-autograd",
    "compile-api-inductor",
)
_NATIVE = {
    "dynamo": "guards and calls",
    "aot_autograd": "calls with gradients",
    "inductor": "kernel launches",
}


class State(enum.Enum):
    """How a thing is."""

    GOOD = "good"
    SLOW = "slow"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    what: str
    state: State
    detail: str
    remedy: str = ""

    def __str__(self) -> str:
        line = f"{self.state.value:<8} {self.what}: {self.detail}"
        return f"{line}\n         try: {self.remedy}" if self.remedy else line


def _versions() -> Iterator[Finding]:
    python = platform.python_version()
    supported = ("3.11", "3.12", "3.13")
    good = python.rpartition(".")[0] in supported
    yield Finding(
        "Python",
        State.GOOD if good else State.MISSING,
        python,
        "" if good else f"use Python {supported[0]} to {supported[-1]}",
    )
    numbers = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    good = (2, 11) <= numbers <= (2, 14)
    yield Finding(
        "torch",
        State.GOOD if good else State.MISSING,
        str(torch.__version__),
        "" if good else "pip install 'torch>=2.11,<2.15'",
    )
    for name in _DISTRIBUTIONS:
        try:
            yield Finding(name, State.GOOD, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Finding(name, State.SLOW, "imported from a source tree", f"pip install {name}")


def _native() -> Iterator[Finding]:
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    for package, what in _NATIVE.items():
        spec = importlib.util.find_spec(package)
        folders = list(spec.submodule_search_locations or ()) if spec is not None else []
        built = [path.name for folder in folders for path in Path(folder).rglob(f"*{suffix}")]
        if built:
            yield Finding(f"{package}, C parts", State.GOOD, ", ".join(sorted(built)))
        else:
            yield Finding(
                f"{package}, C parts",
                State.SLOW,
                f"not built: {what} run in Python",
                "install gcc, then pip install --force-reinstall --no-deps "
                f"compile-api-{package.replace('_', '-')}",
            )


def _compiler() -> Finding:
    named = compiler_by_environment()
    candidates = (named,) if named else ("g++", "clang++")
    remedy = "apt-get install g++ (or set CXX to a working compiler)"
    for name in candidates:
        path = shutil.which(name)
        if path is None:
            continue
        try:
            shown = subprocess.run(  # noqa: S603 - the user's own compiler
                [path, "--version"], capture_output=True, text=True, timeout=20, check=True
            )
        except (OSError, subprocess.SubprocessError) as fault:
            return Finding("C++ compiler", State.MISSING, f"{path} fails: {fault}", remedy)
        return Finding("C++ compiler", State.GOOD, f"{path}, {shown.stdout.partition(chr(10))[0]}")
    missing = f"CXX={named} is not there" if named else "neither g++ nor clang++ is there"
    return Finding("C++ compiler", State.MISSING, f"{missing}: CPU graphs run eagerly", remedy)


def _cuda() -> Iterator[Finding]:
    if not torch.cuda.is_available():
        yield Finding("CUDA", State.GOOD, "no device; the CPU is used")
        return
    yield Finding("CUDA", State.GOOD, f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}")
    try:
        yield Finding("triton", State.GOOD, importlib.metadata.version("triton"))
    except importlib.metadata.PackageNotFoundError:
        remedy = "pip install 'compile-api-inductor[triton]'"
        yield Finding("triton", State.MISSING, "CUDA graphs run eagerly without it", remedy)


def _caches() -> Finding:
    directory = cache_directory()
    remedy = f"set COMPILE_API_CACHE_DIR to a directory of your own, or: rm -r {directory}"
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=directory):
            pass
    except OSError as fault:
        detail = f"{directory} can't be written ({fault.strerror}): every process compiles anew"
        return Finding("cache directory", State.SLOW, detail, remedy)
    status = directory.stat()
    if hasattr(os, "getuid") and status.st_uid != os.getuid():
        detail = f"{directory} belongs to another user and is not used"
        return Finding("cache directory", State.SLOW, detail, remedy)
    size = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    return Finding("cache directory", State.GOOD, f"{directory}, {size / 1e6:.1f} MB")


def examine() -> list[Finding]:
    """Looks at everything; the order is fixed."""
    return [*_versions(), *_native(), _compiler(), *_cuda(), _caches()]


def doctor() -> str:
    """Gives the findings as text: what is here, what is slow or missing, what mends it."""
    return "\n".join(str(finding) for finding in examine())
