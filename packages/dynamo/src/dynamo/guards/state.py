"""The process's and thread's state that changes what an operator means.

Comes in: nothing, the state is read from torch. Goes out: a frozen snapshot that compares equal
exactly when the same program captured under both means the same. Invariant: every field has a text
for messages, and the C evaluator compares the same fields.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch

from dynamo import _torch

__all__ = ["GlobalState"]


@dataclass(frozen=True, slots=True)
class GlobalState:
    """A snapshot; `GlobalState.now()` takes one."""

    grad_enabled: bool
    inference_mode: bool
    autocast: tuple[tuple[bool, torch.dtype], ...]  # per device of AUTOCAST_DEVICES
    autocast_cache: bool
    default_dtype: torch.dtype
    deterministic: tuple[bool, bool, bool]  # algorithms, warn only, fill uninitialised memory
    float32_matmul_precision: str
    threads: int
    functorch_depth: int
    forward_level: int  # of derivatives that are carried forward in dual tensors; -1 where none are
    function_overrides: bool
    function_modes: tuple[tuple[Any, ...], ...]  # a default device is one of them
    dispatch_modes: tuple[tuple[Any, ...], ...]

    @classmethod
    def now(cls) -> GlobalState:
        """The state of this moment on this thread."""
        return cls(
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            tuple(
                (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
                for device in _torch.AUTOCAST_DEVICES
            ),
            _torch.autocast_cache_enabled(),
            torch.get_default_dtype(),
            (
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
                bool(torch.utils.deterministic.fill_uninitialized_memory),
            ),
            torch.get_float32_matmul_precision(),
            torch.get_num_threads(),
            _torch.functorch_depth(),
            _torch.forward_level(),
            _torch.function_overrides_enabled(),
            tuple(map(_torch.mode_identity, _torch.function_mode_stack())),
            tuple(map(_torch.mode_identity, _torch.dispatch_mode_stack())),
        )

    def holds(self) -> bool:
        """Whether it is the state of this moment on this thread."""
        return self.difference(GlobalState.now()) is None

    def difference(self, other: GlobalState) -> tuple[str, str, str] | None:
        """The first field that differs: its name, its value here and there; None if all are equal.

        The dtype of a device's autocast counts only while its autocast is on.
        """
        for field in fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            if field.name == "autocast":
                mine, theirs = _effective(mine), _effective(theirs)
            if mine != theirs:
                return field.name.replace("_", " "), _text(mine), _text(theirs)
        return None


def _effective(autocast: tuple[tuple[bool, torch.dtype], ...]) -> tuple[torch.dtype | None, ...]:
    return tuple(dtype if enabled else None for enabled, dtype in autocast)


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_text, value)) + ")"
    return value.__name__ if isinstance(value, type) else str(value)
