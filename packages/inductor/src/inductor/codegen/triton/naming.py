"""What a Triton kernel is called, so that a profile tells what it computes.

Comes in: how it is walked, its operations, its text. Goes out: an identifier. Invariant: equal text has an equal name.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from inductor.ir import Operation

__all__ = ["function_name", "telling_words"]

_TELLING = {
    "add",
    "cos",
    "div",
    "erf",
    "exp",
    "indirect",
    "log",
    "maximum",
    "mul",
    "philox",
    "rsqrt",
    "sigmoid",
    "sin",
    "sqrt",
    "tanh",
    "where",
}
_MOST_WORDS = 5


def telling_words(operations: Iterable[Operation]) -> list[str]:
    """The first of those operations that tell what a kernel computes."""
    words: dict[str, None] = {}
    for operation in operations:
        if operation.name in ("reduce", "accumulate", "scan"):
            words[str(operation.attribute)] = None
        elif operation.name in _TELLING:
            words[operation.name] = None
    return list(words)[:_MOST_WORDS]


def function_name(mode: str, operations: Iterable[Operation], lines: str) -> str:
    """How the kernel is walked and what it mainly computes; equal text has an equal name."""
    digest = sha256(lines.encode()).hexdigest()[:6]
    return "_".join((mode, *telling_words(operations), digest))
