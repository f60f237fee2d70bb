"""Compiled graphs as ranges of torch.profiler, named by module and line.

In: a compiled graph and its place in the program. Out: the same callable inside a range. Used only under the option
`profile_ranges`: without it a call passes no Python of ours. Invariant: the callable's results and attributes stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ranged"]


def ranged(compiled: Callable[..., Any], place: str) -> Callable[..., Any]:
    """The callable in a range `compile_api: <module> <file>:<line>`."""
    name = f"compile_api: {place}" if place else "compile_api"

    def call(*args: Any) -> Any:
        with torch.profiler.record_function(name):
            return compiled(*args)

    call.boxed = getattr(compiled, "boxed", False)  # type: ignore[attr-defined]  # a function may carry attributes
    return call
