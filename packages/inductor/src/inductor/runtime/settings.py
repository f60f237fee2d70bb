"""How kernels are built on this machine: compiler, cache directory, limits.

Comes in: the process environment (read only here) or explicit values. Goes out: one frozen `BuildSettings` that every
function of the runtime takes as an argument. Invariant: nothing else in the runtime reads the environment.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BuildSettings"]


@dataclass(frozen=True, slots=True)
class BuildSettings:
    """Where and how native kernels are built.

    Fields:
        compiler: the C++ compiler's name or path; None tries g++, then clang++.
        cache_directory: where compiled kernels are kept; None keeps nothing beyond this process.
        timeout: seconds after which a compiler is taken for hung.
        cache_bytes: size above which the oldest kernels are deleted.
        parallel_jobs: compilers that may run at the same time.
        kernels_per_unit: kernels in one translation unit; more are split and compiled in parallel.
    """

    compiler: str | None = None
    cache_directory: Path | None = None
    timeout: float = 120.0
    cache_bytes: int = 1 << 30
    parallel_jobs: int = 2
    kernels_per_unit: int = 8

    @staticmethod
    def from_environment(environment: Mapping[str, str] | None = None) -> BuildSettings:
        """Settings from `CXX` and `COMPILE_API_CACHE_DIR`, the user's cache directory otherwise."""
        values = os.environ if environment is None else environment
        directory = values.get("COMPILE_API_CACHE_DIR")
        # absolute: compilers run in directories of their own
        path = (
            Path(directory).absolute()
            if directory
            else Path(platformdirs.user_cache_dir("compile_api"))
        )
        return BuildSettings(
            compiler=values.get("CXX") or None,
            cache_directory=path / "inductor",
            parallel_jobs=max(1, os.cpu_count() or 1),
        )
