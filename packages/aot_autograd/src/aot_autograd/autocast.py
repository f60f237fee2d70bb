"""Autocast around traces and calls: its state, put back after a trace that failed, and a block without it."""

from __future__ import annotations

import torch

__all__ = ["AutocastOff", "autocast_state", "restore_autocast"]

_KINDS = ("cpu", "cuda")


def autocast_state() -> list[tuple[str, bool, torch.dtype]]:
    """For each kind of device whether autocast is on, and its dtype."""
    return [
        (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _KINDS
    ]


def restore_autocast(state: list[tuple[str, bool, torch.dtype]]) -> None:
    """Undo what a graph that failed between entering and leaving an autocast region left behind."""
    for kind, enabled, dtype in state:
        if torch.is_autocast_enabled(kind) != enabled:
            torch.set_autocast_enabled(kind, enabled)
        if torch.get_autocast_dtype(kind) != dtype:
            torch.set_autocast_dtype(kind, dtype)


class AutocastOff:
    """Autocast as it is outside every autocast block.

    A backward is called there, and what a compiled graph calls has its casts already.
    """

    __slots__ = ("_enabled",)

    def __enter__(self) -> None:
        self._enabled = [kind for kind in _KINDS if torch.is_autocast_enabled(kind)]
        for kind in self._enabled:
            torch.set_autocast_enabled(kind, False)

    def __exit__(self, *_: object) -> None:
        for kind in self._enabled:
            torch.set_autocast_enabled(kind, True)
