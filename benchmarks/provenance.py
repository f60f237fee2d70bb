"""Of which code and where a row was measured: what stands in every file of results.

Out: the commit (with `+` where files were changed since), the day, torch's version, the processor and the number of
threads. Where there is no repository, as on a machine that got the files alone, `BENCHMARK_COMMIT` tells the commit.
"""

from __future__ import annotations

import datetime as dt
import os
import platform
import subprocess
from pathlib import Path

import torch

__all__ = ["PROVENANCE", "provenance"]

PROVENANCE = ("commit", "date", "torch_version", "processor", "threads")
"""The keys, in order; tables leave them out of the rows' cells."""


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()


def _commit() -> str:
    told = os.environ.get("BENCHMARK_COMMIT") or _git("rev-parse", "--short", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", "../packages", ".")
    results_alone = all("benchmarks/results/" in line for line in changed.splitlines())
    return (told or "unknown") + ("" if results_alone else "+")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def provenance() -> dict[str, str | int]:
    """The values of `PROVENANCE`, for a row or a file's first line."""
    return {
        "commit": _commit(),
        "date": f"{dt.datetime.now(dt.UTC):%Y-%m-%d}",
        "torch_version": torch.__version__,
        "processor": _processor(),
        "threads": torch.get_num_threads(),
    }
