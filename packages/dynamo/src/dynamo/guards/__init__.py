"""Conditions under which a compiled entry may run.

Capture makes `Guard`s; `compile_program` orders them and builds a `GuardProgram`, evaluated by the
C extension where it is there and by Python otherwise; `explain` says which guard failed and how.
"""

from dynamo.guards.kinds import (
    FailedGuard,
    Guard,
    GuardKind,
    TensorGuard,
    check_guard,
    describe_guard,
    same_constant,
)
from dynamo.guards.program import GuardProgram, compile_program
from dynamo.guards.state import GlobalState

__all__ = [
    "FailedGuard",
    "GlobalState",
    "Guard",
    "GuardKind",
    "GuardProgram",
    "TensorGuard",
    "check_guard",
    "compile_program",
    "describe_guard",
    "same_constant",
]
