"""What can go wrong between a kernel's text and its machine code.

These never reach the user as exceptions by themselves: whoever runs a program catches `BuildError`, warns once with
its text, and runs the kernel, or the graph where no kernel could be built, with torch's operators.
"""

from __future__ import annotations

__all__ = [
    "BuildError",
    "CompilerFailedError",
    "CompilerHungError",
    "CompilerMissingError",
    "CompilerRejectedError",
]


class BuildError(RuntimeError):
    """Native code could not be had; the text says why and what to do."""


class CompilerMissingError(BuildError):
    """There is no usable C++ compiler."""

    def __init__(self, wanted: str | None) -> None:
        searched = f"CXX={wanted!r}, which can't be run" if wanted else "g++ and clang++ on PATH"
        super().__init__(
            f"no C++ compiler found (looked for {searched}); compiled graphs run with torch's own operators instead. "
            "Install one (Debian/Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++; conda: conda install gxx) "
            "or point CXX at it.",
        )


class CompilerFailedError(BuildError):
    """The compiler returned an error, crashed, hung or was killed."""

    def __init__(self, compiler: str, what: str, output: str) -> None:
        tail = "\n".join(output.strip().splitlines()[:20])
        super().__init__(
            f"{compiler} {what} while compiling generated kernels; torch's own operators run in their place. "
            f"Check that the compiler can build a small OpenMP program, or set CXX to another one.\n{tail}".rstrip(),
        )


class CompilerHungError(CompilerFailedError):
    """The compiler did not end in time."""


class CompilerRejectedError(CompilerFailedError):
    """The compiler ran to its end and found fault with the text: another text may pass."""
