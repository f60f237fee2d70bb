"""The options of capture: frozen, passed as an argument, part of every cache key."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["DynamoOptions"]


@dataclass(frozen=True, slots=True)
class DynamoOptions:
    """How functions are captured."""

    recompile_limit: int = field(
        default=8, metadata={"help": "entries per function before it runs eagerly on a miss"}
    )
    strict: bool = field(
        default=False,
        metadata={"help": "raise on a fault of the compiler instead of running eagerly"},
    )
    capture_scalar_outputs: bool = field(
        default=False,
        metadata={
            "help": "item(), tolist(), int() and float() of a tensor stay in the graph as numbers "
            "known only at run time"
        },
    )
    capture_dynamic_output_shape_ops: bool = field(
        default=False,
        metadata={
            "help": "nonzero, masks, unique and the like stay in the graph; their size is known "
            "only at run time"
        },
    )
