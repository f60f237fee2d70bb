"""Finding the C++ compiler and saying what it is.

Comes in: `BuildSettings`. Goes out: a `Compiler` (path, identity, flags) or `CompilerMissingError`. Invariant: the
identity names everything that decides what machine code comes out of a source: compiler binary, flags, processor.
"""

from __future__ import annotations

import hashlib
import shlex
import shutil
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from inductor.runtime.errors import CompilerMissingError
from inductor.runtime.processor import instruction_sets

__all__ = ["Compiler", "find_compiler"]

# Measured: -O2 leaves the random-number kernels scalar; the two -fno flags let the vectoriser turn selections into
# masks and change no result; contraction into fused multiply-adds keeps IEEE special values.
_FLAGS = (
    "-x",
    "c++",
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fopenmp",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-asynchronous-unwind-tables",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-fPIC",
    "-shared",
    "-w",
)


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler that exists.

    Fields:
        path: absolute path of the binary.
        flags: arguments that go before the source.
        libraries: arguments that go after the source.
        identity: hash of binary, flags and processor.
    """

    path: str
    flags: tuple[str, ...]
    libraries: tuple[str, ...]
    identity: str

    def command(self, source: str, target: str) -> list[str]:
        """The command line that builds shared library `target` from `source`."""
        return [self.path, *self.flags, "-o", target, source, "-x", "none", *self.libraries]


@lru_cache(maxsize=16)
def _describe(path: str, modified: int, size: int, arguments: tuple[str, ...]) -> Compiler:
    flags: tuple[str, ...] = (*arguments, *_FLAGS)
    libraries: tuple[str, ...] = ("-lm",)
    if not any("clang" in Path(part).name for part in (path, *arguments)):
        # Kernels need neither start-up objects nor the C++ library; without them linking takes half as long.
        flags = (*flags, "-fno-semantic-interposition", "-nostdlib")
        libraries = ("-lgomp", "-lm", "-lgcc")
    text = "\0".join((path, str(modified), str(size), *flags, *libraries, instruction_sets()))
    return Compiler(path, flags, libraries, hashlib.sha256(text.encode()).hexdigest()[:16])


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command) or [command]
    except ValueError:  # an unclosed quote
        return [command]


def find_compiler(name: str | None) -> Compiler:
    """The compiler called `name`, or g++ or clang++ when None.

    A name may be a command with arguments, as build tools write it in CXX: `ccache g++`, `g++ -B/opt/bin`.

    Raises:
        CompilerMissingError: if none is there.
    """
    for candidate in (name,) if name else ("g++", "clang++"):
        found = shutil.which(candidate)
        arguments: tuple[str, ...] = ()
        if found is None:
            command, *words = _words(candidate)
            found, arguments = shutil.which(command), tuple(words)
        if found is not None:
            path = Path(found).resolve() if Path(found).exists() else Path(found)
            status = path.stat()
            # The resolved file tells the version; the found name is what runs (a wrapper may look at its own name).
            where = str(Path(found).absolute())
            return _describe(where, status.st_mtime_ns, status.st_size, arguments)
    raise CompilerMissingError(name)
