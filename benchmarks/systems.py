"""The systems that are compared, by name: what turns a module or a function into what is timed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

import compile_api

if TYPE_CHECKING:
    from collections.abc import Callable


def systems(compare: str) -> dict[str, Callable[[Any], Callable[..., Any]]]:
    """Eager, ours, and torch.compile when it is asked for."""
    found: dict[str, Callable[[Any], Callable[..., Any]]] = {
        "eager": lambda target: target,
        "ours": compile_api.compile,
    }
    if compare == "torch":
        found["torch"] = torch.compile
    return found


def reset(compare: str) -> None:
    compile_api.reset()
    if compare == "torch":
        torch._dynamo.reset()
