"""The options of aot_autograd: one frozen dataclass, passed as an argument.

Options come in as `AotOptions` or as a mapping (`AotOptions.from_mapping`, which names the nearest
valid option when one is misspelt) and are part of every cache key: they are hashable and hold
plain values only.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Self

from aot_autograd.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping


def checked_budget(budget: float) -> float:
    """A memory budget; `OptionError` if it is not between 0 and 1."""
    if not 0.0 <= budget <= 1.0:
        raise OptionError(
            "activation_memory_budget is out of range",
            f"{budget!r} is not between 0 and 1",
            "pass 1.0 for speed, less to trade time for memory",
        )
    return budget


@dataclass(frozen=True, slots=True)
class AotOptions:
    """How a graph is traced and cut; each field's help says what it does."""

    activation_memory_budget: float = field(
        default=1.0,
        metadata={
            "help": "bytes saved for the backward as a share of what the cheapest cut saves; "
            "1.0 repeats only what is nearly free, 0.0 saves inputs only"
        },
    )
    fallback_random: bool = field(
        default=False,
        metadata={"help": "call ATen's random operators in program order: numbers as in eager"},
    )
    double_backward: bool = field(
        default=True,
        metadata={"help": "keep references to the inputs, for gradients of gradients"},
    )
    lazy_backward: bool = field(
        default=True,
        metadata={"help": "compile the backward after the forward has begun to run, not before"},
    )
    backward_worker: bool = field(
        default=True,
        metadata={
            "help": "compile the backward in a thread that starts with the forward's first call; "
            "off: at the first backward call"
        },
    )
    verify: bool = field(
        default=False,
        metadata={"help": "check every node of every graph between the stages"},
    )
    strict: bool = field(
        default=False,
        metadata={"help": "raise on this package's own faults instead of falling back"},
    )

    def __post_init__(self) -> None:
        checked_budget(self.activation_memory_budget)

    @classmethod
    def from_mapping(cls, options: Mapping[str, object]) -> Self:
        """Options from a mapping; an unknown key raises `OptionError` naming the nearest one."""
        known = [one.name for one in fields(cls)]
        for key in options:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                remedy = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
                raise OptionError(f"unknown option {key!r}", "aot_autograd has no such one", remedy)
        return cls(**options)  # type: ignore[arg-type]
